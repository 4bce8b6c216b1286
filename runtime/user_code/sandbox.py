"""The sandbox objects that steps get: `Sandbox` for async steps, `SyncSandbox` for synchronous ones."""

from __future__ import annotations

import asyncio
import inspect
import os
import typing
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ramify.compiler.plan import site_file
from ramify.fork_engine.close_on_fork import refuse_in_child
from ramify.runtime.errors import CommandFailed, NotInARun, UsedAfterFork
from ramify.runtime.user_code.worker_threads import submit
from ramify.sandboxes.contract import RunResult, World

T = TypeVar("T")


class Commands(Protocol):
    """Runs reusable commands: returns the recorded result if an equal command ran in an equal world."""

    async def run(self, world: World, command: Command) -> RunResult: ...


@dataclass(frozen=True, slots=True)
class Command:
    """A command and its options."""

    text: str | Sequence[str]
    stdin: str | bytes | None = None
    timeout: float | None = None
    env: Mapping[str, str] | None = None
    cwd: str | None = None

    async def run(self, world: World) -> RunResult:
        return await world.run(self.text, stdin=self.stdin, timeout=self.timeout, env=self.env, cwd=self.cwd)


class Sandbox:
    """A step's world. Valid while the step runs. Its changes become the branch's next snapshot.

    `commands`: runs the commands with `reuse=True`. Without it, such commands are simply run. `make`: makes the world
    of a step that hardly needs one, when it is used.
    """

    __ramify_world__ = True  # the compiler recognises sandboxes by it

    def __init__(
        self,
        world: World | None,
        commands: Commands | None = None,
        make: Callable[[], Coroutine[Any, Any, World]] | None = None,
    ) -> None:
        self._world = world
        self._make, self._making = make, asyncio.Lock()
        self._commands = commands
        self._owner = os.getpid()
        self.last: RunResult | None = None

    @property
    def path(self) -> Path:
        """The folder of the world's files, as this process sees it. Writes change the world, not the workspace."""
        return self._live().path

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
        reuse: bool = False,
    ) -> RunResult:
        """Run a command in the world's persistent shell and return its result.

        command: a shell command, or a sequence of arguments.
        timeout: seconds.
        check: raise `CommandFailed` if the command fails.
        reuse: the command is deterministic. If the same command was run in a world of equal content, in any branch or
            run, its recorded result and changes are used.
        """
        await self.made()
        world, asked = self._live(), Command(command, stdin, timeout, env, cwd)
        again = self._commands if reuse else None
        self.last = await (asked.run(world) if again is None else again.run(world, asked))
        if check and not self.last.ok:
            raise CommandFailed(self.last)
        return self.last

    async def made(self) -> None:
        """Make the world, if it is not made yet."""
        async with self._making:
            if self._world is None and self._make is not None:
                world = await self._make()
                self._world = world if self._make is not None else None  # the step may have ended meanwhile

    def end(self) -> None:
        """End the sandbox with its step: tasks and threads that still hold it cannot use the world any more."""
        self._world = self._make = None

    def _live(self) -> World:
        if self._world is None and self._make is not None:
            raise NotInARun(
                "the step uses the files of its world, which its code does not show, so no world was made: take the "
                "world as a parameter annotated `Sandbox`"
            )
        if self._world is None:
            raise NotInARun("a sandbox was used after the end of its step: do all its work inside the step")
        # A forked child would wait for ever for an answer that only the parent's loop receives.
        refuse_in_child(self._owner, "the sandbox", UsedAfterFork)
        return self._world


class SyncSandbox:
    """The sandbox of a synchronous step, which runs in a thread beside the run's event loop."""

    __ramify_world__ = True

    def __init__(self, face: Sandbox, loop: asyncio.AbstractEventLoop) -> None:
        self._face = face
        self._loop = loop
        self._owner = os.getpid()

    @property
    def path(self) -> Path:
        self._wait(self._face.made())
        return self._face.path

    @property
    def last(self) -> RunResult | None:
        return self._face.last

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        check: bool = False,
        reuse: bool = False,
    ) -> RunResult:
        """Like `Sandbox.run`, but blocking."""
        call = self._face.run(command, stdin=stdin, timeout=timeout, env=env, cwd=cwd, check=check, reuse=reuse)
        return self._wait(call)

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            refuse_in_child(self._owner, "the sandbox", UsedAfterFork)
        except UsedAfterFork:
            call.close()
            raise
        return submit(call, self._loop).result()


def sandbox_parameter(function: Callable[..., Any]) -> str | None:
    """Return the name of the parameter that takes the sandbox, by its annotation; None if there is none.

    Raises `TypeError`, which names the place, if there are several, or if the annotation does not fit the function.
    """
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # a name that exists only for type checkers
        hints = {n: p.annotation for n, p in inspect.signature(function).parameters.items()}
    what = f"{_place(function)}step {function.__qualname__!r}"
    for hint in (hint for name, hint in hints.items() if name != "return"):
        if any(part in (Sandbox, SyncSandbox) for part in typing.get_args(hint)):
            raise TypeError(f"{what}: {hint} cannot annotate a sandbox, which is always given: write Sandbox")
    found = [name for name, hint in hints.items() if name != "return" and _is_sandbox_annotation(hint)]
    if len(found) > 1:
        raise TypeError(f"{what} takes {len(found)} sandboxes; a step acts on one")
    if found and inspect.iscoroutinefunction(function) and hints[found[0]] in (SyncSandbox, "SyncSandbox"):
        raise TypeError(f"{what} is async but takes a SyncSandbox: annotate Sandbox")
    return found[0] if found else None


def node_sandbox_parameter(function: Callable[..., Any]) -> str | None:
    """Like `sandbox_parameter`, for LangGraph nodes, which get their state first and the sandbox by name."""
    name = sandbox_parameter(function)
    for index, each in enumerate(inspect.signature(function).parameters.values()):
        by_name = each.kind is each.KEYWORD_ONLY or (index > 0 and each.kind is each.POSITIONAL_OR_KEYWORD)
        if each.name == name and not by_name:
            raise TypeError(
                f"{_place(function)}node {function.__qualname__!r} cannot get its sandbox: the first parameter of "
                f"a node is the state; write `def {function.__name__}(state, sandbox: Sandbox)`"
            )
    return name


def _place(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{site_file(code.co_filename)}:{code.co_firstlineno}: "


def _is_sandbox_annotation(hint: object) -> bool:
    if isinstance(hint, str):
        return hint.rpartition(".")[2].strip() in ("Sandbox", "SyncSandbox")
    return hint in (Sandbox, SyncSandbox)
