"""Which recorded states of a run are dead: the plan says where each snapshot dies, the journal what was done."""

from __future__ import annotations

from collections.abc import Sequence

from ramify.compiler.plan import OpId, OpKind, Plan
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.records import OpRecord, OpStatus

_MAKES_NONE = (OpKind.FORK, OpKind.RELEASE, OpKind.PREFORK, OpKind.COMMAND)  # a command's state is its step's
Dies = dict[OpId, frozenset[str]]


def dead_states(plan: Plan, ops: Sequence[OpRecord]) -> set[SnapshotId]:
    """The states that nothing which the run may still do needs; none where the plan was made without liveness.

    A state that several rows made is dead when it is so for each of them; one that a fork stands on, when that is
    released.
    """
    dies: Dies = {op.id: frozenset(op.attrs.get("dies", ())) for op in plan.ops}
    done = [row for row in ops if row.status is OpStatus.DONE]
    keys = {row.key for row in done}
    needed, dead = set[SnapshotId](), set[SnapshotId]()
    for row in done:
        if row.kind is OpKind.FORK and f"{row.key}|RELEASE" not in keys:
            needed.update(id for id in (row.snapshot_in, row.snapshot_out) if id is not None)
        if row.snapshot_out in (None, row.snapshot_in) or row.kind in _MAKES_NONE:
            continue
        ends = dies.get(row.op_id, frozenset()) if row.kind is not OpKind.RUN else _of_its_seal(row, done, dies)
        if any(later.seq > row.seq and later.op_id in ends and _ends(later, row) for later in done):
            dead.add(row.snapshot_out)
        else:
            needed.add(row.snapshot_out)
    return dead - needed


def _of_its_seal(row: OpRecord, done: Sequence[OpRecord], dies: Dies) -> frozenset[str]:
    """A step's row names the state that its seal made."""
    seal = next((one for one in done if one.key == f"{row.key}|SEAL"), None)
    return frozenset() if seal is None else dies.get(seal.op_id, frozenset())


def _ends(later: OpRecord, row: OpRecord) -> bool:
    """Recorded anew on its own branch, or released with the fork that the branch is of."""
    if later.branch == row.branch:
        return later.snapshot_out is not None or later.kind is OpKind.RELEASE
    return later.kind is OpKind.RELEASE and row.branch.startswith(f"{later.branch}/")
