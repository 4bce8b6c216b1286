"""Checks of a gateway's settings before anything is started: something reads each, and none contradicts another.

Messages name a setting by its field of `GatewaySettings` in backticks. A command line puts its own option there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ramify.serving.engine.contract import EngineKind
from ramify.serving.errors import BadPool, BadSettings, ScalingUnsupported
from ramify.serving.gateway.engines.engine_fields import check_allowed, hints_of_dynamo, read_by_our_vllm
from ramify.serving.http_guard import as_address, authority, web_origin
from ramify.serving.protocol.agent_hints import HintDialect
from ramify.serving.scaling.pools import PoolLimits

if TYPE_CHECKING:
    from ramify.serving.gateway.settings import GatewaySettings

_READERS: Mapping[str, tuple[EngineKind, ...]] = {  # the engines that read a setting; all read the others
    "upstream_key": (EngineKind.URL,),
    "forward_xargs": (EngineKind.URL,),
    "engine_hints": (EngineKind.URL,),
    "allow_fields": (EngineKind.URL, EngineKind.VLLM),
    "prompt_cache": (EngineKind.LOCAL,),
    "can_resume": (EngineKind.URL, EngineKind.LOCAL),
    "vllm_args": (EngineKind.VLLM,),
    "trace": (EngineKind.VLLM,),
    "model": (EngineKind.LOCAL, EngineKind.VLLM),
    "engine_log": (EngineKind.LOCAL, EngineKind.VLLM),
    "restart_s": (EngineKind.LOCAL, EngineKind.VLLM),
}
_PER_CLIENT = "client_share"  # an option of a policy
_NEVER_PREEMPT = frozenset({"edf"})  # policies
_CALLED_BY_US = "only the gateway calls it"
_OURS: Mapping[str, str] = {  # vLLM's arguments that Ramify gives it, and what to do instead
    "--model": "give `model`",
    "--served-model-name": "give `model`",
    "--max-num-active-seqs": "give `slots`",
    "--scheduler-cls": "give `policy`",
    "--scheduling-policy": "give `policy`",
    "--additional-config": "give `policy` and `policy_options`",
    **dict.fromkeys(("--host", "--port", "--uds", "--api-key", "--ssl-keyfile", "--ssl-certfile"), _CALLED_BY_US),
}


def check_settings(settings: GatewaySettings) -> None:
    """Raises BadSettings, and for a number of replicas ScalingUnsupported and BadPool."""
    if not settings.engines:
        raise BadSettings("`engines` is empty: a gateway needs an engine")
    _check_numbers(settings)
    _check_texts(settings)
    _check_readers(settings)
    _check_engines(settings)
    _check_clients(settings)
    _check_allowed_fields(settings)
    _check_placement(settings)
    _check_resume(settings)
    _check_vllm_args(settings)
    _check_replicas(settings)
    _check_devices(settings)


def host_name(text: str) -> str:
    """A host name by which clients may reach the server, as the guard compares it, without its port. Raises
    ValueError."""
    address = as_address(text)
    return str(address) if address is not None else authority(text)[0]


def _check_numbers(settings: GatewaySettings) -> None:
    for name in ("slots", "placement_k"):
        value = getattr(settings, name)
        if value is not None and not value >= 1:
            raise BadSettings(f"`{name}` is {value}: it must be at least 1")
    for name in ("hang_s", "whole_s", "restart_s", "keepalive_s"):
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise BadSettings(f"`{name}` is {value:g}: it must be above 0")
    if not settings.drain_s >= 0:
        raise BadSettings(f"`drain_s` is {settings.drain_s:g}: it must not be below 0")
    if not 0 <= settings.port <= 65535:
        raise BadSettings(f"`port` is {settings.port}: it must be from 0 to 65535")
    if settings.whole_s is not None and settings.whole_s < settings.hang_s:
        raise BadSettings(
            f"`whole_s` is {settings.whole_s:g} and `hang_s` is {settings.hang_s:g}: an answer that is not streamed "
            f"is silent until its end, so give it at least as long"
        )


def _check_texts(settings: GatewaySettings) -> None:
    for name in ("model", "upstream_key"):
        if (value := getattr(settings, name)) is not None and not value.strip():
            raise BadSettings(f"`{name}` is empty: leave it out")
    if not all(key.isascii() and key.isprintable() and key and " " not in key for key in settings.api_keys):
        raise BadSettings(
            "a key (`api_keys`) is empty, or has blanks or characters that no client can send in a header"
        )
    try:
        for name in settings.allow_hosts:
            host_name(name)
        for origin in settings.allow_origins:
            web_origin(origin)
        check_allowed(settings.allow_fields)
    except ValueError as error:
        raise BadSettings(str(error)) from error


def _check_readers(settings: GatewaySettings) -> None:
    """Refuse a setting that none of these engines reads."""
    kinds = {spec.kind for spec in settings.engines}
    for name, readers in _READERS.items():
        value = getattr(settings, name)
        if not (value is None or value is False or value == ()) and not kinds & set(readers):
            named = " or ".join("engines at URLs" if kind is EngineKind.URL else kind for kind in readers)
            raise BadSettings(f"`{name}` is for {named}, and there is none: leave it out, or add one (`engines`)")


def _check_engines(settings: GatewaySettings) -> None:
    urls = [spec.url for spec in settings.engines if spec.kind is EngineKind.URL]
    if len(set(urls)) < len(urls):
        raise BadSettings("`engines`: two are at the same URL, and one engine does no more under two names")


def _check_clients(settings: GatewaySettings) -> None:
    if settings.insecure_no_keys and settings.api_keys:
        raise BadSettings("`insecure_no_keys` has no effect beside a key (`api_keys`): leave one of them out")
    if settings.prompt_cache and settings.tells_clients_apart:
        raise BadSettings(
            "`prompt_cache` would tell one client the prompts of others: give a single key (`api_keys`)"
        )
    if _PER_CLIENT in settings.policy_options and not settings.tells_clients_apart:
        raise BadSettings(f"`policy_options` {_PER_CLIENT} is for several clients: give each a key (`api_keys`)")


def _check_allowed_fields(settings: GatewaySettings) -> None:
    kinds = {spec.kind for spec in settings.engines}
    if settings.allow_fields and EngineKind.LOCAL in kinds:
        raise BadSettings(
            "`allow_fields` has no effect beside local, which reads none of them: any engine may get any call"
        )
    for name in settings.allow_fields:
        if hints_of_dynamo(name) and settings.engine_hints is not HintDialect.DYNAMO:
            raise BadSettings(f"`allow_fields` {name} is a hint for Dynamo: give `engine_hints` dynamo, too")
        if EngineKind.URL not in kinds and not read_by_our_vllm(name):
            raise BadSettings(f"`allow_fields` {name} is for engines at URLs: vLLM as it is started here ignores it")


def _check_placement(settings: GatewaySettings) -> None:
    engines = len(settings.engines)
    if settings.placement_k is not None and not settings.a_queue_each:
        raise BadSettings("`placement_k` needs `placement` power-of-k")
    if settings.placement is not None and settings.a_queue_each and engines == 1 and settings.replicas is None:
        raise BadSettings("`placement` power-of-k is for several engines, and there is one: leave it out")
    if settings.placement_k is not None and settings.placement_k > engines:
        raise BadSettings(f"`placement_k` is {settings.placement_k}, more than there are engines: at most {engines}")


def _check_resume(settings: GatewaySettings) -> None:
    if not settings.can_resume:
        return
    if settings.policy in _NEVER_PREEMPT:
        raise BadSettings(f"`can_resume` has no effect with `policy` {settings.policy}, which preempts nothing")
    if not settings.a_queue_each and any(spec.kind is EngineKind.VLLM for spec in settings.engines):
        raise BadSettings(
            "`can_resume` has no effect beside vllm, which preempts by itself: in one queue, a call is "
            "preempted only if all engines can resume it"
        )


def _check_vllm_args(settings: GatewaySettings) -> None:
    """Refuse arguments that would replace those of Ramify: vLLM would not be found, or would not use the policy."""
    for argument in settings.vllm_args:
        name = argument.partition("=")[0].replace("_", "-")
        if name in _OURS:
            raise BadSettings(f"`vllm_args` {name}: Ramify sets this itself: {_OURS[name]}")


def _check_replicas(settings: GatewaySettings) -> None:
    if settings.replicas is None:
        return
    least, most = settings.replicas
    if least < 1:
        raise BadPool(f"a gateway needs a replica at all times, got {least}:{most}: give 1:{most}")
    PoolLimits(least, most)
    kinds = [spec.kind for spec in settings.engines]
    if EngineKind.URL in kinds:
        raise ScalingUnsupported(
            "an engine at a URL is not ours to start: name each replica as an engine (`engines`)"
        )
    if EngineKind.VLLM in kinds and not settings.devices:
        raise ScalingUnsupported(
            "a vLLM engine batches all calls that its processor can work on, so more of them there make nothing "
            f"faster: name a device for each of {most} (`devices`), or give one engine more `slots`"
        )
    if len(kinds) > 1:
        raise ScalingUnsupported(f"`replicas` can change for one engine, and there are {len(kinds)} (`engines`)")
    if settings.a_queue_each:
        raise ScalingUnsupported(
            "`replicas` can change with `placement` one-queue only: a queue each would wait alone"
        )


def _check_devices(settings: GatewaySettings) -> None:
    """Each vLLM engine has a device of its own, if any has."""
    if not settings.devices:
        return
    kinds = [spec.kind for spec in settings.engines]
    engines = kinds.count(EngineKind.VLLM)
    if not engines:
        raise ScalingUnsupported("a device (`devices`) is for vllm, and there is none: leave it out")
    engines = engines if settings.replicas is None else settings.replicas[1]
    if len(settings.devices) != engines:
        raise ScalingUnsupported(
            f"each vLLM engine needs one device: there may be {engines} of them, and "
            f"{len(settings.devices)} are named (`devices`)"
        )
    parts = [part.strip() for device in settings.devices for part in device.split(",")]
    if not all(parts):
        raise ScalingUnsupported("a device (`devices`) is a GPU or cores, such as 0, or 0,1, or 0-7")
    if len(set(parts)) < len(parts):
        raise ScalingUnsupported(
            f"two engines on one device take each other's memory, and {_twice(parts)} is named twice: name others"
        )


def _twice(parts: list[str]) -> str:
    return next(repr(part) for part in parts if parts.count(part) > 1)
