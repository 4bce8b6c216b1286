"""The settings of a gateway: engines, policy, limits, and who may reach it."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.errors import EngineFailed, Exposed
from ramify.serving.gateway.settings_checks import check_settings, host_name
from ramify.serving.http_guard import AccessPolicy, Keys, as_address, stays_here, web_origin
from ramify.serving.policy.registry import DEFAULT, OptionValue, make_live_policy
from ramify.serving.protocol.agent_hints import HintDialect

if TYPE_CHECKING:
    from ramify.serving.policy.types import Policy

UPSTREAM_SLOTS = 32  # calls at once for an engine whose own limit is unknown
PLACEMENT_K = 2
_THESIS = "calm-thesis"  # the policy that comes with the thesis's placement


class Placement(StrEnum):
    """Where calls wait for one of several replicas."""

    ONE_QUEUE = "one-queue"  # in one queue in front of all replicas
    POWER_OF_K = "power-of-k"  # in the queues of K replicas, as in the thesis


@dataclass(frozen=True, kw_only=True)
class GatewaySettings:
    """The settings of a gateway. Raises BadSettings, ScalingUnsupported or BadPool if nothing would read one of them,
    or if they contradict each other (`settings_checks`)."""

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
    placement_k: int | None = None  # queues that a call stands in, with POWER_OF_K; None: 2
    hang_s: float = 120.0  # seconds of silence after which an engine is considered hung
    whole_s: float | None = None  # the same for an answer that does not stream; None: 600, and at least `hang_s`
    restart_s: float | None = None  # silence after which an engine of ours is restarted; None: 60
    keepalive_s: float | None = None  # seconds without a byte after which a stream gets a comment; None: never
    pace: bool = False  # give streams out at their readers' pace
    drain_s: float = 0.0  # seconds that calls in progress get when the gateway stops
    engine_log: Path | None = None
    analyzer: bool = False  # run the request analyzer
    vllm_args: tuple[str, ...] = ()  # more arguments for vLLM's command line
    trace: Path | None = None  # a file for the decisions of the policy inside vLLM, one JSON line each

    def __post_init__(self) -> None:
        check_settings(self)

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

    @property
    def a_queue_each(self) -> bool:
        """Do calls wait in the queues of several replicas at once?"""
        return self.placed is Placement.POWER_OF_K

    def policies(self) -> Policy | list[Policy]:
        """A new policy, or one for each engine if each has its queue. Raises UnknownPolicy."""
        if self.placed is Placement.ONE_QUEUE:
            return make_live_policy(self.policy, **self.policy_options)
        return [make_live_policy(self.policy, **self.policy_options) for _ in self.engines]


def check_exposure(settings: GatewaySettings) -> None:
    """Check who could reach the gateway, before anything is started.

    Raises Exposed if anybody in the network could use the engines, and EngineFailed for an unknown host.
    """
    try:
        here = stays_here(settings.host)
    except OSError as error:
        raise EngineFailed(f"cannot listen on {settings.host}: {error.strerror}. Choose another host") from error
    if here or settings.api_keys or settings.insecure_no_keys:
        return
    raise Exposed(
        f"{settings.host or 'every address'} can be reached from other machines, and no keys are set, so anybody "
        "there could use the engine. Set a key that clients must show (`api_keys`, or RAMIFY_CLIENT_KEYS), or listen "
        "on 127.0.0.1, or let everybody in with `insecure_no_keys`"
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
