"""What the sandbox backend is told of a run's plan: which states are forked next, and which nothing names any more.

A backend keeps agents and shells ready where forks are made next, and ends what waits at a state that no later
operation can go back to. The plan says both; memory may allow less, which the backend decides and says. What was
decided is in the row of the state (`WARM`), for `ramify explain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ramify.compiler.plan import OpKind, Plan, PlanOp
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.records import WARM, BranchPath
from ramify.sandboxes.contract import Foreseeing, WorldSpec

NOTHING = "nothing: no fork of it follows, so its world goes on"
_GUESS = 4  # branches of a fork whose number is not known


class WarmStates:
    """The states of one run, as its backend should know them. `spec`: of the run's worlds.

    A state that is released too early only costs the time to prepare it again.
    """

    def __init__(self, plan: Plan, spec: WorldSpec) -> None:
        self._plan, self._spec = plan, spec
        self._made: dict[SnapshotId, tuple[BranchPath, frozenset[str]]] = {}  # where each state dies
        self._bases: Counter[SnapshotId] = Counter()  # of forks that are not released
        self._dead: set[SnapshotId] = set()  # such bases that only their forks still need
        self._widths: Counter[str] = Counter()  # of the forks so far, the largest of each operation

    def made(self, backend: object, op: PlanOp, branch: BranchPath, state: Snapshot) -> Mapping[str, str]:
        """A state was made by this operation. Returns what is kept ready, as attributes of its row.

        backend: the open one; None if no world was needed yet.
        """
        if not isinstance(backend, Foreseeing):
            return {}
        gone = [id for id, (of, ends) in self._made.items() if of == branch and op.id in ends and id != state.id]
        self._release(backend, gone)
        self._made[state.id] = branch, frozenset(op.attrs.get("dies", ()))
        fork = self._fork_after(op)
        if fork is None:
            return {WARM: NOTHING}
        width = self._width(fork)
        kept = backend.foresee(state, self._spec, width)
        said = f"{kept.places} for the {width} worlds of {fork.id}, which follows"
        return {WARM: f"{said}; {kept.why_no_more}" if kept.why_no_more else said}

    def forked(self, op: PlanOp, base: SnapshotId, width: int) -> None:
        """A fork begins: each of its branches may go back to its base."""
        self._widths[op.id] = max(self._widths[op.id], width)
        self._bases[base] += 1

    def released(self, backend: object, base: SnapshotId, branches: Sequence[BranchPath]) -> None:
        """The branches of a fork have ended: nothing goes back to their states."""
        self._bases[base] -= 1
        below = tuple(f"{branch}/" for branch in branches)
        if isinstance(backend, Foreseeing):
            gone = [id for id, (of, _) in self._made.items() if below and f"{of}/".startswith(below)]
            self._release(backend, [*gone, *self._dead.intersection({base})])

    def _release(self, backend: Foreseeing, gone: list[SnapshotId]) -> None:
        self._dead.update(id for id in gone if self._bases[id] > 0)
        gone = [id for id in dict.fromkeys(gone) if self._bases[id] <= 0]
        self._dead.difference_update(gone)
        for id in gone:
            self._made.pop(id, None)
        if gone:
            backend.forget(gone)

    def _fork_after(self, op: PlanOp) -> PlanOp | None:
        """The fork that is made of the state, if one is."""
        if (ahead := self._plan.after(op, OpKind.PREFORK)) is not None:
            return next((one for one in self._plan.ops if one.id in ahead.attrs.get("forks", ())), None)
        return self._plan.after(op, OpKind.FORK)

    def _width(self, fork: PlanOp) -> int:
        if self._widths[fork.id]:
            return self._widths[fork.id]
        planned = [op.attrs["width"] for op in self._plan.ops if fork.id in op.attrs.get("forks", ())]
        return int(planned[0]) if planned else _GUESS
