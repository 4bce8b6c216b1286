"""A world as an environment: an action is a bash command."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import RunResult
from ramify.tree_search.types import StepResult
from ramify.worlds.world import World


class CommandWorld(Protocol):
    """`ramify.World`, or `FleetWorld` on the nodes of a cluster."""

    async def exec(self, command: str, /, *, timeout: float | None = None) -> RunResult: ...

    async def fork(self, n: int, /) -> Sequence[Self]: ...

    async def snapshot(self) -> Snapshot: ...

    async def close(self) -> None: ...


if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault  # of Python 3.13

    W = WithDefault("W", bound=CommandWorld, default=World)
else:
    W = TypeVar("W", bound=CommandWorld)


class CommandTurns(Generic[W]):
    """Runs commands in a world. A result's observation is the command's `RunResult`. Score states with `score=` of
    the search, for instance by running tests in `environment.world`."""

    def __init__(self, world: W, *, timeout: float | None = 600) -> None:
        """timeout: seconds a command may take."""
        self.world = world
        self._timeout = timeout

    async def step(self, action: str) -> StepResult:
        return StepResult(await self.world.exec(action, timeout=self._timeout))

    async def fork(self, n: int) -> list[CommandTurns[W]]:
        return [CommandTurns(world, timeout=self._timeout) for world in await self.world.fork(n)]

    async def close(self) -> None:
        await self.world.close()

    async def state_key(self) -> Hashable | None:
        """The content of the world's files: equal for worlds that reached it by different ways."""
        return (await self.world.snapshot()).content_key or None
