"""Serve the page of `ramify browse --web` on a loopback port, until a signal."""

from __future__ import annotations

import asyncio
import html
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ramify.browse.web.responses import CannotListen, PartsMissing

if TYPE_CHECKING:
    from ramify.fork_engine.store import SnapshotStore
    from ramify.runtime.records import RunId, RunRecord
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader as DatabaseReader


def has_screen() -> bool:
    """Whether a browser with a window can be started; one in the terminal would take the terminal away."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def opened(address: str) -> Iterator[None]:
    """Open the address in the user's browser, if there is a screen.

    Any user can read the arguments of any process, and the address holds the token. So the browser gets the name of a
    file that only this user can read, which redirects to the page. The file exists as long as this context.
    """
    if not has_screen():
        yield
        return
    with TemporaryDirectory(prefix="ramify-browse-") as folder:  # mode 0700
        file = Path(folder) / "page.html"
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(address)}">\n')
        webbrowser.open(file.as_uri())
        yield


LOOPBACK = "127.0.0.1"  # never anything else: the token is sent in plain text
_CLOSE_S = 2  # for answers in progress when the server stops


async def browse(
    store: AbstractAsyncContextManager[RunStore | DatabaseReader],
    snapshots: SnapshotStore,
    status: Callable[[RunRecord], str],
    *,
    port: int = 0,
    first: RunId | None = None,
    fragment: str = "",
    opens: bool = False,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    `first` is read while the web browser starts. `ready` gets the address, with its token, once the server answers;
    `fragment` is the view that it names. `opens`: start the user's web browser if there is a screen. Raises
    `CannotListen`, `PartsMissing`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with store as runs, serving(runs, snapshots, status, port=port, first=first) as address:
            ready(address + fragment)
            with opened(address + fragment) if opens else nullcontext():
                await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def serving(
    store: RunStore | DatabaseReader,
    snapshots: SnapshotStore,
    status: Callable[[RunRecord], str],
    *,
    port: int = 0,
    token: str | None = None,
    first: RunId | None = None,
) -> AsyncIterator[str]:
    """Serve the page in this event loop, at the yielded address. `port` 0: any free one. Raises as `browse`."""
    try:
        import uvicorn

        from ramify.browse.web.app import create_app
        from ramify.browse.web.guard import Guard, hosts, new_token
        from ramify.browse.web.run_cache import RunCache
        from ramify.serving.gateway.http.connections import ConnectionRoom, Listener, SlowClientProtocol
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ramify"):
            raise
        raise PartsMissing(f"the page needs {error.name}: run pip install 'ramify[web]'") from error

    class Server(uvicorn.Server):
        """Leaves signals to the owner of the event loop."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            up.set()

    class Protocol(SlowClientProtocol):
        room = ConnectionRoom.of_process()

    up = asyncio.Event()
    with _listening(port) as bound, Listener(bound) as listener:
        port = listener.getsockname()[1]
        token = token or new_token()
        reader = RunCache(store, snapshots, status)
        app = Guard(create_app(reader), token, hosts(port))
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # not a line for each request of others that is no HTTP
            access_log=False,  # every request's path holds the token
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        server = Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        waiting = asyncio.create_task(up.wait())
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not up.is_set():
            await running  # raises the error
        ahead = None if first is None else asyncio.create_task(reader.history(first))
        try:
            yield f"http://{LOOPBACK}:{port}/{token}/"
        finally:
            server.should_exit = True
            await running
            if ahead is not None:  # the page was told of an error when it asked for the same
                await asyncio.gather(ahead, return_exceptions=True)


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    try:
        listener = socket.create_server((LOOPBACK, port), backlog=128)
    except OSError as error:
        raise CannotListen(f"cannot listen on {LOOPBACK}:{port}: {error.strerror}. Choose another --port") from error
    with listener:
        yield listener
