"""A running gateway: `LocalGateway` beside a workflow on a loopback port, `serve` on its own until a signal."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.settings import GatewaySettings, check_exposure

if TYPE_CHECKING:
    from ramify.serving.gateway.gateway import Gateway


class LocalGateway:
    """A gateway in this event loop. An async context manager; `base_url` is for any OpenAI client.

    It stands in front of `upstream` (a base URL), or of the engines of `settings`, or, if neither is given, of the
    embedded engine with the weights of `model` from `home`.

    Raises what `GatewaySettings` raises. Entering raises ModelMissing or EngineFailed if an engine of ours cannot
    start, EngineFailed if the port is taken, and Exposed if it would listen beyond this machine without keys.
    """

    def __init__(
        self,
        settings: GatewaySettings | None = None,
        *,
        home: Path | None = None,
        upstream: str | None = None,
        upstream_key: str | None = None,
        model: str | None = None,
        slots: int | None = None,
        prompt_cache: bool = False,
        port: int = 0,
    ) -> None:
        if settings is not None and any((home, upstream, upstream_key, model, slots, prompt_cache, port)):
            raise TypeError("LocalGateway takes settings, or what they are made of: not both")
        if settings is None:
            if home is None:
                raise TypeError("LocalGateway needs settings, or a home")
            engine = EngineSpec(EngineKind.LOCAL) if upstream is None else EngineSpec.parse(upstream)
            settings = GatewaySettings(
                home=home,
                engines=(engine,),
                upstream_key=upstream_key,
                model=model,
                slots=slots,
                prompt_cache=prompt_cache,
                port=port,
            )
        self.settings = settings
        self.base_url = ""
        self.gateway: Gateway | None = None  # while it runs
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            from ramify.serving.gateway import startup
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("ramify"):
                raise
            raise EngineFailed(f"the gateway needs {error.name}: run pip install 'ramify[serve]'") from error

        policy = self.settings.policies()
        check_exposure(self.settings)
        async with AsyncExitStack() as stack:
            engines, sockets = await startup.start_engines(stack, self.settings)
            listener = stack.enter_context(_listening(self.settings.host, self.settings.port))
            self.gateway = await startup.start_server(stack, listener, self.settings, policy, engines, sockets)
            host, port = listener.getsockname()[:2]
            self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self.gateway = None


async def serve(
    settings: GatewaySettings,
    *,
    log: TextIO | None = None,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Run a gateway until SIGINT or SIGTERM, then let calls in progress run for `settings.drain_s` seconds.

    A second signal breaks them off. `ready` gets the base URL once the gateway is up, `log` a JSON line for each
    call. Raises the errors of LocalGateway.
    """
    _many_connections()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        if stop.is_set() and gateway.gateway is not None:
            gateway.gateway.abort()
        stop.set()
        if not gateway.base_url:  # it is still starting
            running.cancel()

    gateway = LocalGateway(settings)
    running = asyncio.create_task(_run(gateway, ready, stop))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked)
    try:
        with _logging(log):
            await running
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _run(gateway: LocalGateway, ready: Callable[[str], None], stop: asyncio.Event) -> None:
    async with gateway:
        ready(gateway.base_url)
        await stop.wait()


def _many_connections() -> None:
    """Raise the limit of open files: a stream takes two descriptors, and 1,024 would suffice for 500 streams only."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def _logging(stream: TextIO | None) -> Iterator[None]:
    if stream is None:
        yield
        return
    from ramify.serving.gateway.records import logs

    handler = logs.to_stream(stream)
    try:
        yield
    finally:
        logs.stop(handler)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    from ramify.serving.gateway.http.connections import Listener

    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()
        bound = socket.create_server((host, port), family=family, backlog=4096, dualstack_ipv6=both)
    except OSError as error:
        raise EngineFailed(f"cannot listen on {host}:{port}: {error.strerror}. Choose another port") from error
    with Listener(bound) as listener:
        yield listener
