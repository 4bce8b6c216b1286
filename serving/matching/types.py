"""What a matching rule sees and decides. Times in seconds, rates in devices a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

JobId = NewType("JobId", str)

Group = NewType("Group", str)
"""A requirement: all jobs with equal requirements are a group."""

Atom = frozenset[Group]
"""The requirements that a device meets. Devices of one atom are interchangeable for every order of jobs."""

Rates = Mapping[Atom, float]
"""How many devices of each atom become free a second, averaged over a long time (Venn: 24 hours)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A job's outstanding request. remaining: devices that it still needs for this round. left: devices of all rounds
    to come, this one included, None if nobody knows. age_s: since the job arrived. served_s: service that the job has
    received. fair_s: M · (time alone), where M is the number of jobs at once."""

    job: JobId
    group: Group
    remaining: int
    arrived: float
    left: float | None = None
    age_s: float = 0.0
    served_s: float = 0.0
    fair_s: float = 0.0


Order = Mapping[Atom, Sequence[JobId]]
"""For each atom the jobs that its devices go to, first one first; jobs that need no more are passed over."""


class Matching(Protocol):
    """A rule. It is asked again whenever a request comes or is done."""

    def order(self, requests: Sequence[Request], rates: Rates) -> Order: ...


def eligible(group: Group, rates: Rates) -> set[Atom]:
    """Return the atoms whose devices meet a requirement: S_j."""
    return {atom for atom in rates if group in atom}


def size(atoms: set[Atom], rates: Rates) -> float:
    """Return |S|: the rate of devices of these atoms."""
    return sum(rates[atom] for atom in atoms)
