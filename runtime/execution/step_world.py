"""The world of one attempt at a step. It is made when the step begins, or on first use if the plan marks the step as
worldless."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from ramify.compiler.plan import WORLDLESS
from ramify.fork_engine.types import Snapshot
from ramify.runtime.execution.step_call import StepCall, reusable_commands
from ramify.runtime.execution.step_commits import seal_world
from ramify.runtime.execution.step_outcomes import restore_attrs
from ramify.runtime.user_code.sandbox import Sandbox
from ramify.sandboxes.contract import World


class StepWorld:
    """The world of an attempt. held: gets the pins that protect its states until the step is committed.

    restored: gets row attributes about how its branch got it back. world: None as long as it was not needed.
    fork_s: what the fork took. reuses: whether its commands may be reused, which needs the run's journal.
    """

    def __init__(
        self,
        call: StepCall,
        attempt: int,
        held: AsyncExitStack,
        restored: dict[str, str],
        *,
        reuses: bool = True,
    ) -> None:
        self._reuses = reuses
        self._call, self._attempt, self._held, self._restored = call, attempt, held, restored
        self.fork_s: float | None = None
        self.world: World | None = None
        self._making: asyncio.Task[World] | None = None

    async def face(self) -> Sandbox:
        """Return what the step's code gets. Raises as `WorldPool.acquire`."""
        call = self._call
        world_pins = call.scope.run.reuse.pins.of_world()
        self._held.callback(world_pins.close)
        commands = reusable_commands(call, self._attempt, world_pins) if self._reuses else None
        if self._waits():
            call.scope.run.worlds.refuse_ended(call.scope.branch)
            return Sandbox(None, commands, self._made_late)
        return Sandbox(await self._made(), commands)

    def _waits(self) -> bool:
        """Whether the world is made when it is used. A world that is there may have processes that write to it."""
        call, branch = self._call, self._call.scope.branch
        known = WORLDLESS in call.op.attrs and call.step.sandbox_parameter is None and not call.scope.run.was_changed
        return known and branch.world is None and not branch.unsealed

    async def _made_late(self) -> World:
        making = self._making
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = self._making = asyncio.create_task(self._made())
        return await asyncio.shield(making)  # a task of the step that is cancelled leaves it to the others

    async def ended(self) -> None:
        """Return when no world is being made. A task that the step left behind may have asked for one."""
        if self._making is not None:
            await asyncio.wait({self._making})

    async def _made(self) -> World:
        run, branch = self._call.scope.run, self._call.scope.branch
        self.world, self.fork_s = await run.worlds.acquire(branch)
        self._restored |= restore_attrs(self._call, self.world, self.fork_s)
        return self.world

    async def sealed(self) -> tuple[Snapshot | None, dict[str, str]]:
        """Seal the world as the plan says (`seal_world`). One that was not needed is as it was."""
        if self.world is None:
            return self._call.scope.branch.snapshot, {}
        return await seal_world(self._call, self.world, self.fork_s, self._held)
