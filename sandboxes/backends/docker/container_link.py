"""The connection to an agent that is a container's first process.

The host listens on a socket in the world's own folder, and the agent connects to it from inside (`launch`). So
messages go from process to process and never through the engine. When the host ends, its socket closes, so the agent
ends, and with this first process the container.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from ramify.sandboxes.agent.container import SOCKET
from ramify.sandboxes.backends.docker.engine import End, Engine, Plan
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.agent_link import AgentLink, MessageStream
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.linux import cgroups

PATIENCE_S = 120.0  # for a container that runs: on a loaded machine its agent takes tens of seconds to connect
LOOK_S = 0.25  # how often we check meanwhile that it still runs
END_S = 5.0  # how long a world may take to end after a hang-up


class ContainerLink(AgentLink):
    """A link to an agent that is a container's first process."""

    def __init__(self, engine: Engine, container: str, stream: MessageStream) -> None:
        self._engine, self.container, self._stream = engine, container, stream
        self.pid = 0
        self._ending: asyncio.Future[End] | None = None

    async def out_of_memory(self) -> int:
        return cgroups.kills_for_memory(self.pid)

    async def close(self) -> None:
        """Hang up, which ends the container, and remove it. What is left in an engine that is gone, the next session
        removes."""
        await self._stream.close()
        with suppress(WorldStartFailed):
            await self._end()

    async def _end(self) -> End:
        if self._ending is None:
            self._ending = asyncio.ensure_future(asyncio.to_thread(self._engine.end, self.container, END_S))
        return await asyncio.shield(self._ending)

    async def _exit_reason(self) -> str:
        try:
            why = _told(await self._end())
        except WorldStartFailed as error:
            why = f"the container's first process ended, and why is not known ({error})"
        return f"{why}; start again from its last snapshot"


async def launch(engine: Engine, plan: Plan, private: Path) -> ContainerLink:
    """Start the container and accept its agent's connection, on which `Start` can be sent. Raises
    `WorldStartFailed`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        _listen(listening, private)
        try:
            await finish_before_cancelling(asyncio.to_thread(engine.start, plan))
            sock = await _accept(listening, engine, plan.name)
        except BaseException:
            await finish_before_cancelling(asyncio.to_thread(engine.remove, plan.name))
            raise
        (private / Path(SOCKET).name).unlink()
    try:
        link = ContainerLink(engine, plan.name, await MessageStream.over(sock))
        link.pid = await asyncio.to_thread(engine.pid, plan.name)
    except BaseException:
        sock.close()
        await finish_before_cancelling(asyncio.to_thread(engine.remove, plan.name))
        raise
    return link


def _listen(listening: socket.socket, private: Path) -> None:
    """Listen by way of /proc: a socket's address has about a hundred bytes, too few for a deep folder's path."""
    folder = os.open(private, os.O_PATH | os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{folder}/{Path(SOCKET).name}")
    finally:
        os.close(folder)
    listening.listen(1)
    listening.setblocking(False)


async def _accept(listening: socket.socket, engine: Engine, container: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    call = asyncio.ensure_future(loop.sock_accept(listening))
    deadline = loop.time() + PATIENCE_S
    try:
        while True:
            done, _ = await asyncio.wait({call}, timeout=LOOK_S)
            if done:
                return call.result()[0]
            if not await asyncio.to_thread(engine.pid, container):
                end = await asyncio.to_thread(engine.end, container, 0.1)
                raise WorldStartFailed(f"a container was started, but its agent did not connect: {_told(end)}")
            if loop.time() > deadline:
                raise WorldStartFailed(
                    f"a container was started and runs, but its agent did not connect within {PATIENCE_S:g} s: is "
                    "the machine overloaded? start fewer worlds at once"
                )
    finally:
        call.cancel()
        await asyncio.wait({call})


def _told(end: End) -> str:
    code = end.exit_code - 128 if end.exit_code > 128 else 0
    how = f"by {signal.Signals(code).name}" if code in set(signal.Signals) else f"with exit code {end.exit_code}"
    why = " (it was out of memory)" if end.out_of_memory else ""
    return f"the container's first process ended {how}{why}" + (f": {end.last_words}" if end.last_words else "")
