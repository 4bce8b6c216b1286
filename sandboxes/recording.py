"""What a snapshot records beside the files: what the shell knew, and what ran."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ramify.fork_engine.types import Processes, ProcessTier, Snapshot
from ramify.sandboxes.shellstate import HOUSEKEEPING, NAME


@dataclass(frozen=True, slots=True)
class ShellState:
    """What a snapshot keeps beside the files: the exported variables as a difference, the directory, what ran."""

    env: Mapping[str, str]
    unset: tuple[str, ...]
    cwd: str
    processes: Processes

    @classmethod
    def of(
        cls, now: Mapping[str, str], cwd: str, start: Mapping[str, str], tree: str, own: str, processes: Processes
    ) -> ShellState:
        """A directory in the tree is kept relative to it, which may stand elsewhere in the next world. One in the
        world's `own` folder beside its tree goes with the world: the next one starts at the top of its tree."""
        kept = {name: value for name, value in now.items() if name not in HOUSEKEEPING}
        env = {name: value for name, value in sorted(kept.items()) if start.get(name) != value}
        gone = (name for name in start if NAME.fullmatch(name) and name not in kept and name not in HOUSEKEEPING)
        if f"{cwd}/".startswith(tree.rstrip("/") + "/"):
            cwd = "" if cwd == tree else os.path.relpath(cwd, tree)
        elif f"{cwd}/".startswith(own + "/"):
            cwd = ""
        return cls(env, tuple(sorted(gone)), cwd, processes)

    @classmethod
    def standing(cls, snapshot: Snapshot, processes: Processes) -> ShellState:
        """Of a world whose shell did not start yet."""
        return cls(snapshot.env, snapshot.env_unset, snapshot.cwd, processes)

    def because(self, reason: str) -> ShellState:
        """With why processes are not kept better."""
        return replace(self, processes=replace(self.processes, reason=reason))

    def same_as(self, snapshot: Snapshot) -> bool:
        mine = (dict(self.env), self.unset, self.cwd, self.processes)
        return mine == (dict(snapshot.env), snapshot.env_unset, snapshot.cwd, snapshot.processes)


def tier_of(others: int) -> ProcessTier:
    return ProcessTier.DROPPED if others else ProcessTier.NONE
