"""What a world on a node can be told to do, as values that travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramify.sandboxes.contract import RunResult
from ramify.worlds.world import World


@dataclass(frozen=True, slots=True)
class Command:
    """`World.exec`, or `World.run` if it is for the world's shell, which has no user."""

    command: str | tuple[str, ...]
    in_shell: bool = False
    stdin: str | bytes | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | int | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """`World.write`."""

    path: str
    data: bytes
    mode: int


@dataclass(frozen=True, slots=True)
class Read:
    """`World.read`, which changes nothing."""

    path: str
    most: int


@dataclass(frozen=True, slots=True)
class Seal:
    """Nothing: only the state of now is sealed, as after each operation that may change something."""


Operation = Command | Write | Read | Seal


async def performed(world: World, operation: Operation) -> RunResult | bytes | None:
    """Raises what `World` raises."""
    match operation:
        case Command(command, in_shell=True):
            return await world.run(
                command,
                stdin=operation.stdin,
                env=operation.env,
                cwd=operation.cwd,
                timeout=operation.timeout,
            )
        case Command(command):
            return await world.exec(
                command,
                stdin=operation.stdin,
                env=operation.env,
                cwd=operation.cwd,
                user=operation.user,
                timeout=operation.timeout,
            )
        case Write(path, data, mode):
            await world.write(path, data, mode=mode)
        case Read(path, most):
            return await world.read(path, most=most)
        case Seal():
            pass
    return None


def as_words(command: str | Sequence[str]) -> str | tuple[str, ...]:
    return command if isinstance(command, str) else tuple(command)
