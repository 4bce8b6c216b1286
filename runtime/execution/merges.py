"""Merge a branch into the branch that forked it: the three-way merge behind `adopt`, recorded and recomputable."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ramify.compiler.plan import OpKind, PlanOp
from ramify.fork_engine.types import MergeStrategy, Resolver, Snapshot, SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.errors import BranchReleased, EffectUndone
from ramify.runtime.execution.run import RunScope, new_row
from ramify.runtime.journal.cancelled_calls import cancelled_as_before
from ramify.runtime.records import EffectStatus, OpRecord
from ramify.runtime.worlds.pinned_seal import sealed as sealed_world
from ramify.runtime.worlds.world_pool import Branch, StateOrigin


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge. `scope`: the branch that forked (ours). `base`: its state at the fork. `theirs`: the merged
    branch."""

    scope: RunScope
    base: Branch
    theirs: Branch
    strategy: MergeStrategy | Resolver

    async def perform(self, op: PlanOp) -> None:
        """Merge, or take the merge from the journal. Raises `MergeConflict`, `BranchReleased` and `EffectUndone`."""
        run, parent = self.scope.run, self.scope.branch
        key = run.journal.key(parent.path, op.id, self.theirs.path, self._strategy_name())
        what, began = f"the merge of {self.theirs.path}", run.clock()
        cancelled = cancelled_as_before(
            run.journal, key, what, lambda: new_row(self.scope, OpKind.MERGE, op.id, key, started_at=began)
        )
        async with cancelled, run.busy(), parent.lock, self.theirs.lock:
            if self.theirs.released or parent.released:
                raise BranchReleased(f"branch {self.theirs.path} was released: adopt it inside its fork's block")
            row = run.journal.served(key, at=parent.snapshot)
            if row is not None and row.snapshot_out is not None and row.attrs["theirs_at"] == self.theirs.snapshot.id:
                merged = await run.recovery.get(row.snapshot_out, row.result_digest)
                self._adopted(merged)
                parent.checkpoint = run.journal.checkpoint_of(row)
            else:
                self._refuse_what_was_undone()
                await self._merge(op, key)

    def _adopted(self, merged: Snapshot) -> None:
        """Note that the parent has the branch's changes."""
        parent = self.scope.branch
        parent.stands(self._made(merged))
        parent.adopted |= {self.theirs.path, *self.theirs.adopted}

    def _refuse_what_was_undone(self) -> None:
        """Raise `EffectUndone` if effects of this branch were undone, because an error left the fork. A resumed run
        would otherwise adopt their recorded results."""
        run, mine = self.scope.run, {self.theirs.path, *self.theirs.adopted}
        undone = [
            effect
            for effect in run.journal.effects_under(self.theirs.path)
            if effect.status is EffectStatus.COMPENSATED and effect.branch in mine and run.journal.knows(effect.key)
        ]
        if undone:
            raise EffectUndone(
                f"branch {self.theirs.path} cannot be adopted: the effect of step {undone[0].step!r} was undone when "
                "an error left the fork, but its recorded result says that it is done. `ramify log "
                f"{run.record.id}` shows the checkpoints: `ramify resume {run.record.id} --from` one before the fork "
                "runs the branch again"
            )

    async def _merge(self, op: PlanOp, key: str) -> None:
        run, parent = self.scope.run, self.scope.branch
        begun, before, theirs_at = run.clock(), parent.snapshot.id, self.theirs.snapshot.id
        for line in (parent, self.theirs):  # a plan may leave a side unsealed, but a merge needs snapshots of both
            if line.unsealed and line.world is not None:
                sealed = StateOrigin(
                    await sealed_world(line.world, run.reuse.pins),
                    "what the merge sealed",
                    refused="the plan seals nothing there",
                )
                line.stands(sealed)
                line.unsealed = False
        three = await self._three(await run.worlds.state(parent))
        async with run.reuse.pins.held():
            merged = await asyncio.to_thread(run.snapshots.merge, *three, strategy=self.strategy, flush=False)
            row = self._row(op, key, merged, begun, before, theirs_at)
            try:
                await run.journal.record(row, checkpoint=(parent, merged, f"merge {self.theirs.path}"))
            finally:
                if run.journal.knows(key):  # even if it was cancelled while it was committed
                    self._adopted(merged)

    def _row(
        self,
        op: PlanOp,
        key: str,
        merged: Snapshot,
        begun: float,
        before: SnapshotId,
        theirs_at: SnapshotId,
    ) -> OpRecord:
        return new_row(
            self.scope,
            OpKind.MERGE,
            op.id,
            key,
            args_digest=codec.digest([self.theirs.path, self._strategy_name()]),
            result_digest=merged.content_key,
            snapshot_in=before,
            snapshot_out=merged.id,
            started_at=begun,
            summary=f"merged {self.theirs.path}",
            attrs={
                "base": self.base.snapshot.id,
                "theirs_at": theirs_at,
                "theirs": self.theirs.snapshot.id,
                "theirs_branch": self.theirs.path,
                "theirs_checkpoint": self.theirs.checkpoint,
                **self.scope.run.worlds.made(op, self.scope.branch.path, merged),
            },
        )

    async def _three(self, ours: Snapshot) -> tuple[Snapshot, Snapshot, Snapshot]:
        """Return base, ours and theirs for the merge; lost snapshots are recomputed."""
        worlds = self.scope.run.worlds
        return await worlds.state(self.base), ours, await worlds.state(self.theirs)

    def _made(self, merged: Snapshot) -> StateOrigin:
        run = self.scope.run

        async def again(ours: Snapshot) -> Snapshot:
            three = await self._three(ours)
            return await run.recovery.sealed(
                lambda: asyncio.to_thread(run.snapshots.merge, *three, strategy=self.strategy)
            )

        return StateOrigin(merged, f"the merge of {self.theirs.path}", again)

    def _strategy_name(self) -> str:
        """Return the strategy's name for journal keys: equal in a resumed run."""
        if isinstance(strategy := self.strategy, MergeStrategy):
            return strategy.value
        name = getattr(strategy, "__qualname__", type(strategy).__qualname__)
        return f"by {getattr(strategy, '__module__', '')}.{name}"
