"""The settings of a gateway: engines, policy, limits, and who may reach it."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.errors import BadPool, EngineFailed, Exposed, ScalingUnsupported
from ramify.serving.http_guard import AccessPolicy, Keys, as_address, authority, stays_here, web_origin
from ramify.serving.policy.registry import DEFAULT, OptionValue, make_live_policy
from ramify.serving.protocol.agent_hints import HintDialect
from ramify.serving.scaling.pools import PoolLimits

if TYPE_CHECKING:
    from ramify.serving.policy.types import Policy

UPSTREAM_SLOTS = 32  # calls at once for an engine whose own limit is unknown
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
    replicas: tuple[int, int] | None = None  # of an engine of ours, the least and the most; None: one
    devices: tuple[str, ...] = ()  # of the vLLM engines, in their order: GPUs or cores, as `VllmEngine` takes them
    prompt_cache: bool = False  # see LocalEngine
    host: str = "127.0.0.1"
    port: int = 0
    api_keys: tuple[str, ...] = ()  # clients must show one of them; without any, all are let in
    allow_hosts: tuple[str, ...] = ()  # more host names that clients may use
    allow_origins: tuple[str, ...] = ()  # other sites whose pages may call, as `http_guard.web_origin` has them
    allow_fields: tuple[str, ...] = ()  # of requests, that reach beyond their own call (see `engine_fields`)
    insecure_no_keys: bool = False  # listen beyond this machine without keys
    forward_xargs: bool = False  # engines at URLs read our tags
    engine_hints: HintDialect | None = None  # engines at URLs read such hints about agents
    can_resume: bool = False  # the engines can continue an answer whose beginning they are given
    policy: str = DEFAULT
    policy_options: dict[str, OptionValue] = field(default_factory=dict)
    placement: Placement | None = None  # None: the thesis's for its policy, else one queue
    placement_k: int = 2  # queues that a call stands in, with POWER_OF_K
    hang_s: float = 120.0  # seconds of silence after which an engine is considered hung
    whole_s: float = 600.0  # the same for an answer that does not stream
    restart_s: float = 60.0  # seconds without a sign of life after which an engine of ours is restarted
    keepalive_s: float | None = None  # seconds without a byte after which a stream gets a comment; None: never
    pace: bool = False  # give streams out at their readers' pace
    drain_s: float = 0.0  # seconds that calls in progress get when the gateway stops
    engine_log: Path | None = None
    analyzer: bool = False  # run the request analyzer
    vllm_args: tuple[str, ...] = ()  # more arguments for vLLM's command line
    trace: Path | None = None  # a file for the decisions of the policy inside vLLM, one JSON line each

    @property
    def keeps_prompts(self) -> bool:
        """Does the embedded engine keep its prompt cache? Not for several clients: it would tell one the others'
        prompts."""
        return self.prompt_cache and not self.tells_clients_apart

    @property
    def tells_clients_apart(self) -> bool:
        """Does each of several clients have a key of its own?"""
        return len(set(self.api_keys)) > 1

    @property
    def analyzer_name(self) -> str:
        """Which of a home's analyzers this gateway uses; empty for the one of gateways without keys.

        An analyzer tells the names of all its apps to a client that has no name of its own (`Keys.owner`). So a
        single key has an analyzer for itself, and only clients that are told apart share one.
        """
        if not self.api_keys:
            return ""
        return "keys" if self.tells_clients_apart else f"key-{Keys.name(self.api_keys[0])}"

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


def check_replicas(settings: GatewaySettings) -> None:
    """Check that a changing number of replicas can be served. Raises ScalingUnsupported, and BadPool."""
    if settings.replicas is None:
        return
    least, most = settings.replicas
    if least < 1:
        raise BadPool(f"a gateway needs a replica at all times, got {least}:{most}: give 1:{most}")
    PoolLimits(least, most)
    kinds = [spec.kind for spec in settings.engines]
    if EngineKind.URL in kinds:
        raise ScalingUnsupported(
            "an engine at a URL is not ours to start: name each replica with an --engine of its own"
        )
    if EngineKind.VLLM in kinds and not settings.devices:
        raise ScalingUnsupported(
            "a vLLM engine batches all calls that its processor can work on, so more of them there make nothing "
            f"faster: name a device for each of {most} (--device 0 --device 1), or give one engine more --slots"
        )
    if len(kinds) > 1:
        raise ScalingUnsupported(f"replicas can change for one --engine, and there are {len(kinds)}")
    if settings.placed is not Placement.ONE_QUEUE:
        raise ScalingUnsupported("replicas can change with --placement one-queue only: a queue each would wait alone")


def check_devices(settings: GatewaySettings) -> None:
    """Check that each vLLM engine has a device of its own, if any has. Raises ScalingUnsupported."""
    if not settings.devices:
        return
    kinds = [spec.kind for spec in settings.engines]
    engines = kinds.count(EngineKind.VLLM)
    if not engines:
        raise ScalingUnsupported("a device is for --engine vllm, and there is none: leave --device out")
    engines = engines if settings.replicas is None else settings.replicas[1]
    if len(settings.devices) != engines:
        raise ScalingUnsupported(
            f"each vLLM engine needs one device: there may be {engines} of them, and --device names "
            f"{len(settings.devices)}"
        )
    parts = [part.strip() for device in settings.devices for part in device.split(",")]
    if not all(parts):
        raise ScalingUnsupported("a device is a GPU or cores, as in --device 0, --device 0,1 or --device 0-7")
    if len(set(parts)) < len(parts):
        raise ScalingUnsupported(
            f"two engines on one device take each other's memory, and {_twice(parts)} is named twice: name others"
        )


def _twice(parts: list[str]) -> str:
    return next(repr(part) for part in parts if parts.count(part) > 1)


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
        origins=frozenset(map(web_origin, settings.allow_origins)),
        advice=f"use http://localhost:{port}, or start the server with --allow-host NAME",
    )


def host_name(text: str) -> str:
    """A host name by which clients may reach the server, as the guard compares it, without its port. Raises
    ValueError."""
    address = as_address(text)
    return str(address) if address is not None else authority(text)[0]
