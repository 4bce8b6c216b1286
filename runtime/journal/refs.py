"""References to runs, checkpoints and snapshots, in a syntax like git's.

    @                the newest run
    3f2a             a run by its id or a unique prefix of at least four characters: its latest root checkpoint
    3f2a:o7.0.3      a branch of the run, by its path or the end of its path: the branch's latest checkpoint
    3f2a:base        the workspace as it was when the run began
    3f2a~2           two checkpoints earlier (before the beginning of a branch come those of its parent)
    c41d…, 9b0e…     a checkpoint or a snapshot by its id or a unique prefix

If a prefix fits several kinds, runs come first, then checkpoints, then snapshots. The functions are pure: the caller
passes the rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import AmbiguousRef, RunNotFound
from ramify.runtime.records import ROOT, CheckpointRecord, RunRecord

Name = TypeVar("Name", bound=str)

SHORTEST_PREFIX = 4
BASE = "base"
NEWEST = "@"

_REF = re.compile(r"(?P<name>[^:~]+)(?::(?P<branch>[^:~]+))?(?:~(?P<back>\d*))?")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Ref:
    """A parsed reference, not yet resolved."""

    text: str
    name: str  # "@", or an id or its beginning
    branch: str | None = None  # "base", or a suffix of a branch's path
    back: int = 0

    @property
    def is_whole_run(self) -> bool:
        """Whether it can mean a whole run, not only one state of it."""
        return self.branch is None and self.back == 0


@dataclass(frozen=True, slots=True)
class Place:
    """A resolved state: its snapshot, and the checkpoint and run if the reference named them."""

    snapshot: SnapshotId
    checkpoint: CheckpointRecord | None = None
    run: RunRecord | None = None


def parse(text: str) -> Ref:
    """Parse a reference. Raises `RunNotFound` if the text is not one."""
    found = _REF.fullmatch(text)
    if found is None:
        raise RunNotFound(f"{text!r} does not name a run or checkpoint: write RUN, RUN:BRANCH, RUN:base, RUN~N or @")
    return Ref(text, found["name"], found["branch"], _steps_back(found["back"]))


def _steps_back(digits: str | None) -> int:
    """Return how far back a reference goes: of "~" one, and of more digits than Python reads very far."""
    if digits is None:
        return 0
    return int(digits or 1) if len(digits) < _MOST_DIGITS else 10**_MOST_DIGITS


def find_run(ref: Ref, runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the run that the reference names, or None. `runs`: newest first.

    Raises `AmbiguousRef`, and `RunNotFound` for "@" if there are no runs.
    """
    if ref.name == NEWEST:
        if not runs:
            raise RunNotFound("there are no runs yet: start one with `ramify run FILE.py:NAME`")
        return runs[0]
    found = {run.id: run for run in runs}
    fitting = _fitting(ref, found)
    return found[fitting] if fitting is not None else None


def resolve(
    text: str,
    runs: Sequence[RunRecord],
    checkpoints: Sequence[CheckpointRecord],
    snapshots: Iterable[SnapshotId] = (),
) -> Place:
    """Return the state that `text` names.

    runs: all runs, newest first.
    checkpoints: those of the named run, or of all runs if the reference names no run.
    snapshots: ids to search if no run or checkpoint fits.

    Raises `RunNotFound`, which says what to try, and `AmbiguousRef`, which lists the candidates.
    """
    ref = parse(text)
    run = find_run(ref, runs)
    if run is not None:
        mine = [one for one in checkpoints if one.run_id == run.id]
        return _back(ref, _on_branch(ref, run, mine), run, mine)
    by_id = {one.id: one for one in checkpoints}
    fitting = _fitting(ref, by_id)
    if fitting is not None and ref.branch is None:
        start = by_id[fitting]
        owner = next((run for run in runs if run.id == start.run_id), None)
        return _back(ref, start, owner, [one for one in checkpoints if one.run_id == start.run_id])
    snapshot = _fitting(ref, set(snapshots))
    if snapshot is not None and ref.is_whole_run:
        return Place(snapshot)
    raise RunNotFound(f"{text}: no run, checkpoint or snapshot begins with {ref.name!r}. {_advice(ref)}")


def _advice(ref: Ref) -> str:
    if len(ref.name) < SHORTEST_PREFIX:
        return f"Write at least {SHORTEST_PREFIX} characters of an id; `ramify ls` lists the runs"
    return "`ramify ls` lists the runs, `ramify tree RUN` what is in one"


def _fitting(ref: Ref, names: Iterable[Name]) -> Name | None:
    """Return the name that equals the reference, or the only one that begins with it; None if there is none."""
    found = [name for name in names if name.startswith(ref.name)]
    exact = [name for name in found if name == ref.name]
    if exact:
        return exact[0]
    if len(ref.name) < SHORTEST_PREFIX:
        return None
    if len(found) > 1:
        raise AmbiguousRef(f"{ref.text}: {_listed(sorted(found))} all begin with {ref.name!r}: write more of it")
    return found[0] if found else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _on_branch(ref: Ref, run: RunRecord, mine: Sequence[CheckpointRecord]) -> CheckpointRecord:
    """Return the latest checkpoint of the branch that the reference names."""
    if ref.branch == BASE:
        chosen = [one for one in mine if one.seq == 0]
    else:
        path = ROOT if ref.branch is None else _branch_path(ref, ref.branch, mine)
        chosen = [one for one in mine if one.branch == path]
    if not chosen:
        raise RunNotFound(f"{ref.text}: run {run.id} has no such checkpoint. `ramify tree {run.id}` shows it")
    return max(chosen, key=lambda one: one.seq)


def _branch_path(ref: Ref, branch: str, mine: Sequence[CheckpointRecord]) -> str:
    paths = sorted({one.branch for one in mine})
    if branch in paths:
        return branch
    found = [path for path in paths if path.endswith(f"/{branch}")]
    if len(found) > 1:
        raise AmbiguousRef(f"{ref.text}: branches {_listed(found)} all end with {branch!r}: write more of it")
    if not found:
        raise RunNotFound(
            f"{ref.text}: no branch ends with {branch!r} and has a checkpoint: there is {_listed(paths)}"
        )
    return found[0]


def _back(ref: Ref, start: CheckpointRecord, run: RunRecord | None, mine: Sequence[CheckpointRecord]) -> Place:
    by_id = {one.id: one for one in mine}
    here = start
    for gone in range(ref.back):
        earlier = by_id.get(here.parents[0]) if here.parents else None
        if earlier is None:
            there = "is only 1 checkpoint" if gone == 1 else f"are only {gone} checkpoints"
            raise RunNotFound(f"{ref.text}: there {there} before it")
        here = earlier
    return Place(here.snapshot_id, here, run)
