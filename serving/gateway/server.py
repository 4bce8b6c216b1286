"""A running gateway: `LocalGateway` beside a workflow on a loopback port, `serve` on its own until a signal."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.errors import EngineFailed, Exposed
from ramify.serving.http_guard import AccessPolicy, Keys, as_address, authority, stays_here
from ramify.serving.policy.registry import DEFAULT, OptionValue, make_live_policy

if TYPE_CHECKING:
    from ramify.serving.gateway.gateway import Gateway
    from ramify.serving.policy.types import Policy

UPSTREAM_SLOTS = 32  # calls at once for an engine whose own limit is unknown
DRAIN_S = 30.0  # seconds for calls in progress, when `ramify serve` is told to stop
_THESIS = "calm-thesis"  # the policy that comes with the thesis's placement


class Placement(StrEnum):
    """Where calls wait for one of several replicas."""

    ONE_QUEUE = "one-queue"  # in one queue in front of all replicas
    POWER_OF_K = "power-of-k"  # in the queues of K replicas, as in the thesis


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """The settings of a gateway."""

    home: Path  # where weights are looked for, and the analyzer's state is kept
    engines: tuple[EngineSpec, ...] = (EngineSpec(EngineKind.LOCAL),)
    upstream_key: str | None = None  # for engines at URLs
    model: str | None = None  # for engines of ours, as `models.named` takes it; default: SmolLM2-135M
    slots: int | None = None  # calls at once for each engine
    prompt_cache: bool = False  # see LocalEngine
    host: str = "127.0.0.1"
    port: int = 0
    api_keys: tuple[str, ...] = ()  # clients must show one of them; without any, all are let in
    allow_hosts: tuple[str, ...] = ()  # more host names that clients may use
    insecure_no_keys: bool = False  # listen beyond this machine without keys
    forward_xargs: bool = False  # engines at URLs read our tags
    can_resume: bool = False  # the engines can continue an answer whose beginning they are given
    policy: str = DEFAULT
    policy_options: dict[str, OptionValue] = field(default_factory=dict)
    placement: Placement | None = None  # None: the thesis's for its policy, else one queue
    placement_k: int = 2  # queues that a call stands in, with POWER_OF_K
    hang_s: float = 120.0  # seconds of silence after which an engine is considered hung
    whole_s: float = 600.0  # the same for an answer that does not stream
    restart_s: float = 60.0  # seconds without a sign of life after which an engine of ours is restarted
    drain_s: float = 0.0  # seconds that calls in progress get when the gateway stops
    engine_log: Path | None = None
    analyzer: bool = False  # run the request analyzer
    vllm_args: tuple[str, ...] = ()  # more arguments for vLLM's command line
    trace: Path | None = None  # a file for the decisions of the policy inside vLLM, one JSON line each

    @property
    def placed(self) -> Placement:
        """The placement that applies."""
        thesis = Placement.POWER_OF_K if self.policy == _THESIS else Placement.ONE_QUEUE
        return self.placement or thesis

    def policies(self) -> Policy | list[Policy]:
        """A new policy, or one for each engine if each has its queue. Raises UnknownPolicy."""
        if self.placed is Placement.ONE_QUEUE:
            return make_live_policy(self.policy, **self.policy_options)
        return [make_live_policy(self.policy, **self.policy_options) for _ in self.engines]


class LocalGateway:
    """A gateway in this event loop. An async context manager; `base_url` is for any OpenAI client.

    It stands in front of `upstream` (a base URL), or of the engines of `settings`, or, if neither is given, of the
    embedded engine with the weights of `model` from `home`.

    Entering raises ModelMissing or EngineFailed if an engine of ours cannot start, EngineFailed if the port is taken,
    and Exposed if it would listen beyond this machine without keys.
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
            from ramify.serving.gateway import running
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("ramify"):
                raise
            raise EngineFailed(f"the gateway needs {error.name}: run pip install 'ramify[serve]'") from error

        policy = self.settings.policies()
        check_exposure(self.settings)
        async with AsyncExitStack() as stack:
            engines, sockets = await running.start_engines(stack, self.settings)
            listener = stack.enter_context(_listening(self.settings.host, self.settings.port))
            self.gateway = await running.start_server(stack, listener, self.settings, policy, engines, sockets)
            host, port = listener.getsockname()[:2]
            self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def check_exposure(settings: GatewaySettings) -> None:
    """Check the settings before anything is started.

    Raises Exposed if anybody in the network could use the engines, EngineFailed for an unknown host, and ValueError
    for a host name that no client could send.
    """
    for name in settings.allow_hosts:
        host_name(name)
    try:
        if settings.api_keys or settings.insecure_no_keys or stays_here(settings.host):
            return
    except OSError as error:
        raise EngineFailed(f"cannot listen on {settings.host}: {error.strerror}. Choose another host") from error
    raise Exposed(
        f"{settings.host or 'every address'} can be reached from other machines, and no keys are set, so anybody "
        "there could use the engine. Set a key that clients must show (--client-key KEY, or RAMIFY_CLIENT_KEYS), or "
        "listen on 127.0.0.1, or let everybody in with --insecure-no-keys"
    )


def access(settings: GatewaySettings, listener: socket.socket) -> AccessPolicy:
    """Which requests the server at that socket answers."""
    bound, port = listener.getsockname()[:2]
    address = as_address(bound)
    names = {host_name(name) for name in settings.allow_hosts}
    with suppress(ValueError):
        names.add(host_name(settings.host))
    return AccessPolicy(
        names=frozenset(names),
        any_address=address is None or not address.is_loopback,
        keys=Keys(settings.api_keys),
        advice=f"use http://localhost:{port}, or start the server with --allow-host NAME",
    )


def host_name(text: str) -> str:
    """A host name by which clients may reach the server, as the guard compares it, without its port. Raises
    ValueError."""
    address = as_address(text)
    return str(address) if address is not None else authority(text)[0]


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
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise EngineFailed(f"cannot listen on {host}:{port}: {error.strerror}. Choose another port") from error
    with listener:
        yield listener
