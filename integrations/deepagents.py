"""A world as a sandbox of deepagents (`deepagents.backends.sandbox.BaseSandbox`).

    async with World.create(".") as world:
        agent = create_deep_agent(model, backend=WorldBackend(world))

deepagents calls a backend from threads and from its event loop. `WorldBackend` takes a `SyncWorld`, or a `World`,
whose loop must then be running in another thread than the caller's; deepagents' asynchronous methods call the
synchronous ones in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from ramify.integrations.world_access import FileAccessFailed, merged_text, read_file, with_merged_output, write_file
from ramify.runtime.user_code.worker_threads import running_loop
from ramify.sandboxes.errors import CommandRefused
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.world import World

try:
    from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
    from deepagents.backends.sandbox import BaseSandbox
except ImportError as error:
    raise ImportError("ramify.integrations.deepagents needs deepagents: pip install 'ramify[deepagents]'") from error

T = TypeVar("T")

_ERRORS = {
    "missing": "file_not_found",
    "permission": "permission_denied",
    "folder": "is_directory",
    "no_path": "invalid_path",
}
_NOT_STARTED = 126


class WorldBackend(BaseSandbox):
    """deepagents' file tools and `execute`, on one world. Whoever made the world closes it; `close` closes a fork."""

    def __init__(self, world: World | SyncWorld, *, timeout: int = 600) -> None:
        """timeout: seconds that a command may take if deepagents names no other."""
        self._timeout = timeout
        self._blocking = world if isinstance(world, SyncWorld) else None
        self.world = world.world if isinstance(world, SyncWorld) else world
        self._loop = None if isinstance(world, SyncWorld) else asyncio.get_running_loop()

    @property
    def id(self) -> str:
        return self.world.name or self.world.state.id[:12]

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        return self._call(partial(self._execute, command, timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """As `execute`. Over a `World`, a command whose caller is cancelled is ended."""
        if running_loop() is self._loop:
            return await self._execute(command, timeout)
        return await asyncio.to_thread(self.execute, command, timeout=timeout)

    async def _execute(self, command: str, timeout: int | None) -> ExecuteResponse:
        limit = self._timeout if timeout is None else timeout or None
        try:
            result = await self.world.exec(with_merged_output(command), timeout=limit)
        except (CommandRefused, ValueError) as error:  # the model reads it
            return ExecuteResponse(output=str(error), exit_code=_NOT_STARTED)
        output = merged_text(result)
        if result.timed_out:
            output += f"\nThe command was stopped after {limit} seconds."
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        for path, data in files:
            try:
                self._call(partial(write_file, self.world, path, data))
                answers.append(FileUploadResponse(path=path))
            except FileAccessFailed as error:
                answers.append(FileUploadResponse(path=path, error=_ERRORS.get(error.reason, str(error))))
        return answers

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers = []
        for path in paths:
            try:
                data = self._call(partial(read_file, self.world, path))
                answers.append(FileDownloadResponse(path=path, content=data))
            except FileAccessFailed as error:
                answers.append(FileDownloadResponse(path=path, error=_ERRORS.get(error.reason, str(error))))
        return answers

    # Beyond deepagents' interface

    def snapshot(self, tag: str | None = None) -> str:
        """Keep the world as it is now. Returns the snapshot's id."""
        return self._call(lambda: self.world.snapshot(tag)).id

    def fork(self, n: int = 1) -> list[WorldBackend]:
        """Make `n` backends over forks of the world. `close` each before this one."""
        if self._blocking is not None:
            return [WorldBackend(world, timeout=self._timeout) for world in self._blocking.fork(n)]
        return [self._beside(world) for world in self._call(lambda: self.world.fork(n))]

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: its id or its tag."""
        self._call(lambda: self.world.restore(snapshot))

    def close(self) -> None:
        """End the world of this backend. May be called twice."""
        if self._blocking is not None:
            self._blocking.close()
        else:
            self._call(self.world.close)

    def _beside(self, world: World) -> WorldBackend:
        made = type(self).__new__(type(self))
        made._timeout, made._blocking, made._loop, made.world = self._timeout, None, self._loop, world
        return made

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._blocking is not None:
            return self._blocking.call(call)
        assert self._loop is not None
        if running_loop() is self._loop:
            raise RuntimeError(
                "this call would wait for itself: it comes from the event loop of the world. Use the asynchronous "
                "methods (`ainvoke`, `aexecute`), or make the backend over a `SyncWorld`"
            )
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()
