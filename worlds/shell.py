"""A persistent shell of a live world, by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ramify.sandboxes import contract
from ramify.sandboxes.contract import RunResult
from ramify.sandboxes.host.named_shell import as_text
from ramify.worlds.commands import checked, starter_of


class WorldShell:
    """A bash whose `cd`, variables, functions and options last. Made by `World.shell`; it starts with its first
    command."""

    def __init__(self, name: str, alive: Callable[[], contract.World]) -> None:
        self.name = name
        self._alive = alive

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> RunResult:
        """Run a command in this shell; one runs at a time in it. `env` and `cwd` hold for this command only.

        A timeout (seconds) ends all that the shell has started, and the next command has a new bash with the state
        after the last complete command. check: raise `CommandFailed`. Raises `WorldDied`, `Unsupported`."""
        text = as_text(command)
        data = stdin.encode() if isinstance(stdin, str) else stdin or b""
        shell = await starter_of(self._alive()).shell(self.name)
        result = await shell.run(text, stdin=data, env=env, cwd=cwd, timeout=timeout)
        return checked(result, check)

    async def close(self) -> None:
        """End it and everything that it started, and forget its state."""
        await (await starter_of(self._alive()).shell(self.name)).close()
