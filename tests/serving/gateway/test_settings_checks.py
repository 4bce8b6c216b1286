"""Settings that nothing reads, or that contradict each other, are refused where they are built."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.errors import BadPool, BadSettings, EngineFailed, ScalingUnsupported
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings, Placement, check_exposure
from ramify.serving.gateway.settings_checks import _READERS
from ramify.serving.protocol.agent_hints import HintDialect

LOCAL, VLLM = EngineSpec(EngineKind.LOCAL), EngineSpec(EngineKind.VLLM)
A, B = EngineSpec.parse("http://127.0.0.1:9"), EngineSpec.parse("http://127.0.0.1:10/v1")
OF_KIND = {EngineKind.LOCAL: LOCAL, EngineKind.VLLM: VLLM, EngineKind.URL: A}
GIVEN: dict[str, Any] = {
    "upstream_key": "k",
    "forward_xargs": True,
    "engine_hints": HintDialect.DYNAMO,
    "allow_fields": ("vllm_xargs.x",),
    "prompt_cache": True,
    "can_resume": True,
    "vllm_args": ("--enforce-eager",),
    "trace": Path("t"),
    "model": "m",
    "engine_log": Path("l"),
    "restart_s": 9.0,
}


def settings(*engines: EngineSpec, **more: Any) -> GatewaySettings:
    return GatewaySettings(home=Path(), engines=engines or (LOCAL,), **more)


def test_the_table_of_readers_is_of_settings() -> None:
    assert {one.name for one in fields(GatewaySettings)} >= _READERS.keys() == GIVEN.keys()


@pytest.mark.parametrize("kind", list(EngineKind))
@pytest.mark.parametrize("name", sorted(_READERS))
def test_a_setting_is_refused_if_no_engine_reads_it(name: str, kind: EngineKind) -> None:
    def made(*engines: EngineSpec) -> GatewaySettings:
        return settings(*engines, **{name: GIVEN[name]})

    if kind in _READERS[name]:
        assert getattr(made(OF_KIND[kind]), name) == GIVEN[name]
    else:
        with pytest.raises(BadSettings, match=f"`{name}` is for .*, and there is none"):
            made(OF_KIND[kind])


@pytest.mark.parametrize(
    ("engines", "given", "said"),
    [
        ((LOCAL,), {"hang_s": 9.0, "whole_s": 8.9}, "`whole_s` is 8.9 and `hang_s` is 9"),
        ((LOCAL,), {"whole_s": 1.0}, "`whole_s` is 1 and `hang_s` is 120"),
        ((LOCAL,), {"slots": 0}, "`slots` is 0"),
        ((LOCAL,), {"keepalive_s": 0.0}, "`keepalive_s` is 0"),
        ((LOCAL,), {"hang_s": float("nan")}, "`hang_s` is nan"),
        ((LOCAL,), {"drain_s": -1.0}, "`drain_s` is -1"),
        ((LOCAL,), {"port": 65536}, "`port` is 65536"),
        ((LOCAL,), {"model": ""}, "`model` is empty"),
        ((A,), {"upstream_key": " "}, "`upstream_key` is empty"),
        ((LOCAL,), {"api_keys": ("a", "b c")}, "`api_keys`"),
        ((LOCAL,), {"allow_hosts": ("http://x/",)}, "is not a host name"),
        ((LOCAL,), {"allow_origins": ("x",)}, "is not an origin"),
        ((LOCAL,), {"api_keys": ("a",), "insecure_no_keys": True}, "`insecure_no_keys` has no effect"),
        ((LOCAL,), {"api_keys": ("a", "b"), "prompt_cache": True}, "prompts of others"),
        ((LOCAL,), {"policy_options": {"client_share": 0.5}}, "for several clients"),
        ((LOCAL,), {"policy_options": {"client_share": 0.5}, "api_keys": ("a", "a")}, "for several clients"),
        ((A,), {"allow_fields": ("prioritty",)}, "'prioritty' is no field"),
        ((A,), {"allow_fields": ("nvext.agent_hints.priority",)}, "`engine_hints` dynamo"),
        ((VLLM,), {"allow_fields": ("priority",)}, "vLLM as it is started here ignores it"),
        ((VLLM,), {"allow_fields": ("id_slot",)}, "vLLM as it is started here ignores it"),
        ((LOCAL, A), {"allow_fields": ("priority",)}, "`allow_fields` has no effect beside local"),
        ((A, B), {"placement_k": 2}, "`placement_k` needs `placement` power-of-k"),
        ((A,), {"placement": Placement.POWER_OF_K}, "for several engines"),
        ((A, B), {"placement": Placement.POWER_OF_K, "placement_k": 3}, "at most 2"),
        ((A, A), {}, "the same URL"),
        ((A, EngineSpec.parse("http://127.0.0.1:9/v1/")), {}, "the same URL"),
        ((LOCAL,), {"can_resume": True, "policy": "edf"}, "preempts nothing"),
        ((LOCAL, VLLM), {"can_resume": True}, "beside vllm"),
        ((VLLM,), {"vllm_args": ("--port=9000",)}, "`vllm_args` --port"),
        ((VLLM,), {"vllm_args": ("--served_model_name", "x")}, "give `model`"),
        ((VLLM,), {"vllm_args": ("--max-num-active-seqs=4",)}, "give `slots`"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    engines: tuple[EngineSpec, ...], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadSettings, match=said):
        settings(*engines, **given)


@pytest.mark.parametrize(
    ("engines", "given"),
    [
        ((LOCAL,), {"hang_s": 700.0}),
        ((LOCAL,), {"hang_s": 9.0, "whole_s": 9.0}),
        ((LOCAL, VLLM), {"can_resume": True, "placement": Placement.POWER_OF_K}),
        ((LOCAL,), {"policy": "calm-thesis"}),
        ((A,), {"allow_fields": ("nvext.agent_hints.priority",), "engine_hints": HintDialect.DYNAMO}),
        ((VLLM,), {"allow_fields": ("kv_transfer_params",)}),
        ((A,), {"api_keys": ("a", "b"), "policy_options": {"client_share": 0.0}}),
    ],
)
def test_settings_that_go_together_are_taken(engines: tuple[EngineSpec, ...], given: dict[str, Any]) -> None:
    made = settings(*engines, **given)
    assert all(getattr(made, name) == value for name, value in given.items())


def test_a_gateway_needs_an_engine() -> None:
    with pytest.raises(BadSettings, match="needs an engine"):
        GatewaySettings(home=Path(), engines=())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_letting_everybody_in_changes_nothing_where_nobody_comes(host: str) -> None:
    check_exposure(settings(host=host, insecure_no_keys=True))
    check_exposure(settings(host=host))
    check_exposure(settings(host="0.0.0.0", insecure_no_keys=True))
    check_exposure(settings(host="0.0.0.0", api_keys=("a",)))


def test_a_host_that_does_not_resolve() -> None:
    with pytest.raises(EngineFailed, match=r"cannot listen on nowhere\.invalid"):
        check_exposure(settings(host="nowhere.invalid"))


@pytest.mark.parametrize(
    ("engines", "replicas", "error", "advice"),
    [
        ((A,), (1, 2), ScalingUnsupported, "not ours to start"),
        ((VLLM,), (1, 2), ScalingUnsupported, "`devices`"),
        ((LOCAL, LOCAL), (1, 2), ScalingUnsupported, "for one engine"),
        ((LOCAL,), (0, 2), BadPool, "at all times"),
        ((LOCAL,), (3, 2), BadPool, "between"),
    ],
)
def test_what_cannot_be_scaled_is_refused(
    engines: tuple[EngineSpec, ...], replicas: tuple[int, int], error: type[Exception], advice: str
) -> None:
    with pytest.raises(error, match=advice):
        settings(*engines, replicas=replicas)


@pytest.mark.parametrize(
    ("engines", "replicas", "devices", "advice"),
    [
        ((LOCAL,), None, ("0",), "for vllm"),
        ((VLLM,), (1, 3), ("0", "1"), "there may be 3"),
        ((VLLM, LOCAL, VLLM), None, ("0",), "there may be 2"),
        ((VLLM, VLLM), None, ("0,1", "1"), "'1' is named twice"),
        ((VLLM, VLLM), None, ("0", ""), "a GPU or cores"),
    ],
)
def test_each_vllm_has_a_device_of_its_own(
    engines: tuple[EngineSpec, ...], replicas: tuple[int, int] | None, devices: tuple[str, ...], advice: str
) -> None:
    with pytest.raises(ScalingUnsupported, match=advice):
        settings(*engines, replicas=replicas, devices=devices)


def test_vllm_replicas_with_a_device_each_are_served() -> None:
    assert settings(VLLM, replicas=(1, 2), devices=("0,1", "2,3")).replicas == (1, 2)


def test_a_queue_for_each_replica_cannot_change_their_number() -> None:
    with pytest.raises(ScalingUnsupported, match="one-queue"):
        settings(replicas=(1, 2), placement=Placement.POWER_OF_K)


def test_a_gateway_is_made_of_settings_or_of_their_parts() -> None:
    with pytest.raises(TypeError, match="not both"):
        LocalGateway(settings(), model="m")
    with pytest.raises(BadSettings, match="`model` is for local or vllm"):
        LocalGateway(home=Path(), upstream=A.url, model="m")
