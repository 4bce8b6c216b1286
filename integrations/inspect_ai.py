"""A world as a sandbox of Inspect (`inspect_ai`): `sandbox="ramify"`.

A sample's sandbox is a world over the folder that the sandbox's configuration names, or an empty one:

    Task(dataset, solver, scorer, sandbox="ramify")
    Task(dataset, solver, scorer, sandbox=("ramify", "./repository"))
    Task(dataset, solver, scorer, sandbox=SandboxEnvironmentSpec("ramify", WorldConfig(folder="./repository")))

Inspect finds the sandbox by the entry point that the package installs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Literal, overload

from ramify.integrations.world_access import FileAccessFailed, as_os_error, read_file, write_file
from ramify.sandboxes.errors import CommandRefused, ForbiddenUser, UnknownUser, WorldDied
from ramify.worlds.errors import WorldClosed
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        sandboxenv,
    )
    from inspect_ai.util._sandbox.environment import SandboxUnavailableError, SandboxUserUnsupportedError
    from pydantic import BaseModel
except ImportError as error:
    raise ImportError("ramify.integrations.inspect_ai needs inspect-ai: pip install 'ramify[inspect-ai]'") from error

_NOT_STARTED = 126


class WorldConfig(BaseModel, frozen=True):
    """Where a sample's world comes from. `folder`, `snapshot`, `image`, `sandbox`, `home`: as
    `ramify.World.create`."""

    folder: str | None = None
    snapshot: str | None = None
    image: str | None = None
    env: dict[str, str] = {}
    sandbox: str | None = None
    home: str | None = None


@sandboxenv(name="ramify")
class WorldSandboxEnvironment(SandboxEnvironment):
    """One world for each sample. Samples that start from the same folder share its import and its disk.

    `exec` repeats no command and runs any number at once: `timeout_retry` and `concurrency` change nothing.
    """

    def __init__(self, world: World, held: AsyncExitStack | None = None) -> None:
        """world: an open world, which this sandbox owns. held: what is closed after it."""
        super().__init__()
        self.world = world
        self._held = held or AsyncExitStack()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        if config is None or isinstance(config, str):
            config = WorldConfig(folder=config)
        if not isinstance(config, WorldConfig):
            raise TypeError(
                f"the sandbox 'ramify' takes a folder's path or a WorldConfig, not {type(config).__name__}"
            )
        async with AsyncExitStack() as stack:
            home = await stack.enter_async_context(WorldHome(config.home, config.sandbox))
            world = await World.create(
                config.folder, snapshot=config.snapshot, image=config.image, env=config.env, home=home
            )
            return {"default": cls(world, stack.pop_all())}
        raise AssertionError

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).close()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return WorldConfig(**config)

    async def close(self) -> None:
        """End the world. May be called twice."""
        try:
            await self.world.close()
        finally:
            await self._held.aclose()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        try:
            with _errors():
                result = await self.world.exec(cmd, stdin=input, cwd=cwd, env=env, timeout=timeout, user=user)
        except ValueError as error:  # a model's command that no process can be given: it reads why
            return ExecResult(False, _NOT_STARTED, "", str(error))
        if result.timed_out:
            raise TimeoutError(f"the command was stopped after {timeout} seconds")
        if result.exit_code == 126 and "Permission denied" in result.stderr:
            raise PermissionError(result.stderr)
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        for stream in (result.stdout_bytes, result.stderr_bytes):
            if len(stream) > limit or (result.truncated and len(stream) >= limit):
                shown = stream[:limit].decode("utf-8", "replace")
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, shown)
        return ExecResult(result.ok, result.exit_code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        with _errors():
            await write_file(self.world, file, data)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        with _errors():
            data = await read_file(self.world, file, most=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        return data.decode() if text else data

    # Beyond Inspect's interface

    async def snapshot(self, tag: str | None = None) -> str:
        """Keep the world as it is now. Returns the snapshot's id, for `restore` and for `WorldConfig(snapshot=…)`.
        A tag keeps it beyond this sample."""
        return (await self.world.snapshot(tag)).id

    async def fork(self, n: int = 1) -> list[WorldSandboxEnvironment]:
        """Make `n` sandboxes at the state of now. Close each before this one."""
        return [type(self)(world) for world in await self.world.fork(n)]

    async def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        await self.world.restore(snapshot)


@contextmanager
def _errors() -> Iterator[None]:
    """Translate into what Inspect tells a model, or takes for the end of a sandbox."""
    try:
        yield
    except FileAccessFailed as error:
        if error.reason == "too_large":
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        raise as_os_error(error) from error
    except (UnknownUser, ForbiddenUser) as error:
        raise SandboxUserUnsupportedError(str(error)) from error
    except CommandRefused as error:  # its folder is missing
        raise FileNotFoundError(str(error)) from error
    except (WorldClosed, WorldDied) as error:
        raise SandboxUnavailableError(str(error)) from error
