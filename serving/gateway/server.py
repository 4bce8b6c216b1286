"""The gateway as something that runs: beside a workflow on a loopback port, or on its own until a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from ramify.serving import models
from ramify.serving.engine.local import LocalEngine
from ramify.serving.errors import EngineFailed

UPSTREAM_SLOTS = 32  # calls at once for an engine whose own limit we do not know
_DRAIN_S = 30.0
_CLOSE_S = 5  # for connections to close once every call has ended


class LocalGateway:
    """A gateway in this event loop. An async context manager; `base_url` is for any OpenAI client.

    In front of `upstream` (a base URL), or, where none is given, of the embedded engine with the weights of `model`
    (default: SmolLM2-135M) from `home`; `slots` and `prompt_cache` are then what LocalEngine explains. Raises
    ModelMissing or EngineFailed where that one cannot start, and EngineFailed where the port cannot be had. Leaving
    waits at most `drain_s` for calls that still run.
    """

    def __init__(
        self,
        *,
        home: Path,
        upstream: str | None = None,
        upstream_key: str | None = None,
        model: str | None = None,
        slots: int | None = None,
        prompt_cache: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        forward_xargs: bool = False,
        drain_s: float = 0.0,
    ) -> None:
        self.base_url = ""
        self.abort: Callable[[], None] = lambda: None  # break off every call that is in progress
        self._home = home
        self._upstream = upstream
        self._upstream_key = upstream_key
        self._model = model
        self._slots = slots
        self._prompt_cache = prompt_cache
        self._address = (host, port)
        self._api_key = api_key
        self._forward_xargs = forward_xargs
        self._drain_s = drain_s
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            upstream, slots = self._upstream, self._slots or UPSTREAM_SLOTS
            if upstream is None:
                engine = await stack.enter_async_context(self._engine())
                upstream, slots = engine.base_url, engine.slots
            listener = stack.enter_context(_listening(*self._address))
            await self._serve(stack, listener, upstream, slots)
            host, port = listener.getsockname()[:2]
            self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _engine(self) -> LocalEngine:
        name = self._model or models.DEFAULT
        weights = models.locate(self._home, name)
        return LocalEngine(weights, alias=name, slots=self._slots or 1, prompt_cache=self._prompt_cache)

    async def _serve(self, stack: AsyncExitStack, listener: socket.socket, upstream: str, slots: int) -> None:
        try:
            import uvicorn

            from ramify.serving.gateway.app import create_gateway
        except ImportError as error:
            raise EngineFailed(f"the gateway needs {error.name}: run pip install 'ramify[serve]'") from error

        class Server(uvicorn.Server):
            """Signals are the business of whoever runs this loop."""

            @contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                up.set()

        up = asyncio.Event()
        app = create_gateway(
            upstream,
            slots=slots,
            api_key=self._api_key,
            upstream_key=self._upstream_key,
            forward_xargs=self._forward_xargs,
        )
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, timeout_graceful_shutdown=_CLOSE_S
        )
        server = Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        self.abort = app.state.gateway.abort

        async def stop() -> None:
            await app.state.gateway.drain(self._drain_s)
            server.should_exit = True
            await running

        stack.push_async_callback(stop)
        started = asyncio.create_task(up.wait())
        await asyncio.wait({started, running}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if not up.is_set():
            await running  # raises why


async def serve(
    *,
    home: Path,
    host: str = "127.0.0.1",
    port: int = 8080,
    upstream: str | None = None,
    upstream_key: str | None = None,
    model: str | None = None,
    slots: int | None = None,
    api_key: str | None = None,
    forward_xargs: bool = False,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a gateway until SIGINT or SIGTERM, then let calls in progress end for up to 30 s; a second signal
    breaks them off. `ready` gets the base URL when it is up. Errors as in LocalGateway."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set():
            gateway.abort()
        stop.set()

    gateway = LocalGateway(
        home=home,
        upstream=upstream,
        upstream_key=upstream_key,
        model=model,
        slots=slots,
        host=host,
        port=port,
        api_key=api_key,
        forward_xargs=forward_xargs,
        drain_s=_DRAIN_S,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        async with gateway:
            ready(gateway.base_url)
            await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise EngineFailed(f"cannot listen on {host}:{port}: {error.strerror}. Choose another port") from error
    with listener:
        yield listener
