"""Start the parts of a gateway in order (engines, analyzer, server), and stop them in the opposite order."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn

from ramify import paths
from ramify.serving.engine import models
from ramify.serving.engine.contract import Engine, EngineKind, EngineSpec
from ramify.serving.engine.gguf_files import longest_token
from ramify.serving.engine.llama_cpp import CONTEXT, LocalEngine
from ramify.serving.engine.vllm import VllmEngine
from ramify.serving.errors import EngineFailed
from ramify.serving.gateway.elastic_replicas import ElasticReplicas
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.engines.release_route import ReleaseRoute
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.supervisor import LOOKS, RESTART_S, SupervisedEngine, following
from ramify.serving.gateway.engines.upstream import WHOLE_S, Upstream
from ramify.serving.gateway.gateway import Gateway
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.http.connections import ConnectionRoom, SlowClientProtocol
from ramify.serving.gateway.http.gateway_guard import GatewayGuard
from ramify.serving.gateway.settings import PLACEMENT_K, UPSTREAM_SLOTS, GatewaySettings, access
from ramify.serving.policy.types import Policy

_QUEUE_INSIDE = 1024  # calls that may wait inside an engine that runs our policy, so that the policy can order them
_CLOSE_S = 5  # seconds for connections to close once every call has ended

Behind = Replica | SupervisedEngine | ElasticReplicas


async def start_engines(stack: AsyncExitStack, settings: GatewaySettings) -> tuple[list[Behind], dict[int, Path]]:
    """Make one replica for each engine, and start the engines that are ours.

    Returns them, and the sockets of those that take new length sketches. Raises ModelMissing and EngineFailed.
    """
    behind: list[Behind] = []
    sockets: dict[int, Path] = {}
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="ramify-serve-")))
    devices = iter(settings.devices)
    if settings.replicas is not None:
        pool, sockets = _elastic(settings, *settings.replicas, folder)
        return [await stack.enter_async_context(pool)], sockets
    for index, spec in enumerate(settings.engines):
        if spec.kind is EngineKind.URL:
            upstream = Upstream(
                spec.url,
                key=settings.upstream_key,
                hang_s=settings.hang_s,
                whole_s=settings.whole_s or WHOLE_S,
            )
            stack.push_async_callback(upstream.aclose)  # the gateway closes it, if it starts
            # A Ramify gateway at that URL orders the calls of all runs, so it gets their tags.
            upstream.queues = settings.forward_xargs or await upstream.is_gateway()
            traits = EngineTraits(upstream.queues, settings.can_resume, settings.engine_hints)
            behind.append(Replica(index, settings.slots or UPSTREAM_SLOTS, upstream, traits))
            if upstream.queues:
                await stack.enter_async_context(following(upstream, settings.hang_s / LOOKS))
        else:
            if spec.kind is EngineKind.VLLM:
                sockets[index] = _socket(folder, index)
            key = secrets.token_urlsafe(24)  # only the gateway may use it
            device = next(devices, None) if spec.kind is EngineKind.VLLM else None
            make, traits = _maker(spec, settings, sockets.get(index), key, device)
            one = SupervisedEngine(
                index,
                make,
                traits,
                queue=_QUEUE_INSIDE if spec.kind is EngineKind.VLLM else 0,
                hang_s=settings.hang_s,
                whole_s=settings.whole_s or WHOLE_S,
                restart_s=settings.restart_s or RESTART_S,
                key=key,
            )
            behind.append(await stack.enter_async_context(one))
    return behind, sockets


async def start_server(
    stack: AsyncExitStack,
    listener: socket.socket,
    settings: GatewaySettings,
    policy: Policy | Sequence[Policy],
    behind: Sequence[Behind],
    sockets: Mapping[int, Path],
) -> Gateway:
    """Serve at `listener` until the stack is left, which lets calls in progress end first."""

    class Server(uvicorn.Server):
        """Leaves signals to whoever runs this event loop."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            up.set()

    up = asyncio.Event()
    engines = [each for one in behind for each in (one.engines if isinstance(one, ElasticReplicas) else (one,))]
    replicas = [one.replica if isinstance(one, SupervisedEngine) else one for one in engines]
    app = create_gateway(
        replicas,
        policy=policy,
        k=settings.placement_k or PLACEMENT_K,
        api_keys=settings.api_keys,
        keepalive_s=settings.keepalive_s,
        pace=settings.pace,
        allow_fields=settings.allow_fields,
    )
    gateway: Gateway = app.state.gateway
    gateway.engines = EngineMessages(sockets, _routes(replicas, sockets))
    stack.push_async_callback(gateway.engines.aclose)
    gateway.metrics.follow({index: _report(path) for index, path in sockets.items()})
    if settings.analyzer:
        await _start_analyzer(stack, settings, listener.getsockname()[1], gateway)
    for engine in engines:
        if isinstance(engine, SupervisedEngine):
            engine.changed, engine.restarted = gateway.admission.decide, gateway.metrics.restarted
    for one in behind:
        if isinstance(one, ElasticReplicas):
            await stack.enter_async_context(one.following(gateway))

    class Protocol(SlowClientProtocol):
        room = ConnectionRoom.of_process(sum(one.slots + one.queue for one in replicas))

    server = Server(
        uvicorn.Config(
            GatewayGuard(app, access(settings, listener), app.routes),
            http=Protocol,
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_CLOSE_S,
        )
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))

    async def stop() -> None:
        await gateway.drain(settings.drain_s)
        server.should_exit = True
        await running

    stack.push_async_callback(stop)
    started = asyncio.create_task(up.wait())
    await asyncio.wait({started, running}, return_when=asyncio.FIRST_COMPLETED)
    started.cancel()
    if not up.is_set():
        await running  # raises the reason
    return gateway


def _routes(replicas: Sequence[Replica], sockets: Mapping[int, Path]) -> list[ReleaseRoute]:
    """The routes of the engines at URLs that get the tags of calls: only they know workflows."""
    urls = [one for one in replicas if one.traits.reads_tags and one.index not in sockets]
    return [ReleaseRoute(one.upstream) for one in urls if one.upstream is not None]


async def _start_analyzer(stack: AsyncExitStack, settings: GatewaySettings, port: int, gateway: Gateway) -> None:
    """Start the analyzer's process of this home, or join the one of another gateway. Gateways with keys have other
    analyzers: one shows the names of its apps to all who may call the gateways that share it (`analyzer_name`).
    Earlier versions kept a state for each port.

    Raises AnalyzerDown, and EngineFailed if nothing can be kept.
    """
    try:
        from ramify.serving.gateway.records.length_forecasts import LengthForecasts
        from ramify.serving.lengths.client import AnalyzerClient
        from ramify.serving.lengths.supervisor import AnalyzerSupervisor
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ramify"):
            raise
        raise EngineFailed(f"the analyzer needs {error.name}: run pip install 'ramify[serve]'") from error

    home = settings.home / "analyzer"
    folder = home / settings.analyzer_name
    try:
        paths.make_private(folder)
    except OSError as error:
        raise EngineFailed(
            f"the analyzer cannot keep what it learns in {folder}: {error.strerror}. Choose another --home, or serve "
            "without it (--no-analyzer)"
        ) from error
    supervisor = AnalyzerSupervisor(
        folder, earlier=home / str(port) / "analyzer.state", restarted=gateway.metrics.analyzer_restarted
    )
    analyzer = await stack.enter_async_context(supervisor)
    client = AnalyzerClient(lambda: analyzer.socket)
    gateway.analysis = LengthForecasts(client, gateway.admission.decide, engines=gateway.engines)


def _elastic(
    settings: GatewaySettings, least: int, most: int, folder: Path
) -> tuple[ElasticReplicas, dict[int, Path]]:
    """The replicas of the only engine, and the sockets of those that take new length sketches. Raises ModelMissing.

    A vLLM replica takes at most as many calls to wait inside as it works on: its policy has a choice, and the other
    calls wait for whichever replica is free first, or is still to come.
    """
    spec = settings.engines[0]
    is_vllm = spec.kind is EngineKind.VLLM
    weights = models.named(settings.home, settings.model or models.DEFAULT, hub=is_vllm)
    sockets: dict[int, Path] = {index: _socket(folder, index) for index in range(most)} if is_vllm else {}
    engines = []
    for index in range(most):
        key = secrets.token_urlsafe(24)
        device = settings.devices[index] if is_vllm else None
        make, traits = _maker(spec, settings, sockets.get(index), key, device)
        engines.append(
            SupervisedEngine(
                index,
                make,
                traits,
                queue=None if is_vllm else 0,
                hang_s=settings.hang_s,
                whole_s=settings.whole_s or WHOLE_S,
                restart_s=settings.restart_s or RESTART_S,
                key=key,
            )
        )
    size = weights.stat().st_size if isinstance(weights, Path) and weights.is_file() else 0  # else it is not known
    return ElasticReplicas(engines, least, replica_bytes=2 * size), sockets


def _socket(folder: Path, index: int) -> Path:
    return folder / f"engine-{index}.sock"


def _report(new_sketches: Path) -> Path:
    """The file beside an engine's socket in which it keeps its statistics."""
    return new_sketches.with_suffix(".json")


def _maker(
    spec: EngineSpec,
    settings: GatewaySettings,
    new_sketches: Path | None,
    key: str | None = None,
    device: str | None = None,
) -> tuple[Callable[[], Engine], EngineTraits]:
    """How to start an engine of ours, and its traits. Raises ModelMissing."""
    name = settings.model or models.DEFAULT
    weights = models.named(settings.home, name, hub=spec.kind is EngineKind.VLLM)

    def local() -> Engine:
        assert isinstance(weights, Path)
        return LocalEngine(
            weights,
            alias=name,
            slots=settings.slots or 1,
            prompt_cache=settings.prompt_cache,
            log=settings.engine_log,
            key=key,
        )

    def vllm() -> Engine:
        assert new_sketches is not None
        options: dict[str, object] = {
            "policy": settings.policy,
            "policy_options": settings.policy_options,
            "socket": str(new_sketches),
            "report": str(_report(new_sketches)),
        }
        if settings.trace is not None:
            options["trace"] = str(settings.trace.absolute())
        return VllmEngine(
            weights,
            alias=name,
            slots=settings.slots,
            scheduler_options=options,
            extra=settings.vllm_args,
            log=settings.engine_log,
            key=key,
            device=device,
        )

    if spec.kind is EngineKind.VLLM:  # it preempts and resumes by itself, and knows better when
        return vllm, EngineTraits(
            reads_tags=True, keeps_prefixes="--no-enable-prefix-caching" not in settings.vllm_args
        )
    assert isinstance(weights, Path)
    longest = longest_token(weights)
    return local, EngineTraits(
        can_resume=settings.can_resume,
        keeps_prefixes=settings.prompt_cache,
        most_characters=None if longest is None else CONTEXT * longest,
        llama_cpp=True,
    )
