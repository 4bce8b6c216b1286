"""A vLLM that was started by hand hears from a gateway when a branch is released."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import httpx
import pytest

from ramify.serving.engine.contract import EngineSpec
from ramify.serving.engine.vllm import PYTHON_VARIABLE, VllmEngine
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.protocol import wire

_ROUTE = "ramify.serving.vllm_plugin.release_endpoint.ReleaseEndpoint"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_its_kv_is_free_before_the_next_call_ends(weights: Path, tmp_path: Path) -> None:
    if os.environ.get(PYTHON_VARIABLE) is None and importlib.util.find_spec("vllm") is None:
        pytest.skip(f"vLLM is not installed here, and {PYTHON_VARIABLE} names no interpreter that has it")
    trace = tmp_path / "moves.jsonl"
    engine = VllmEngine(
        weights,
        alias="default",
        scheduler_options={"socket": str(tmp_path / "engine.sock"), "trace": str(trace)},
        extra=("--middleware", _ROUTE),
        log=tmp_path / "engine.log",
    )
    async with engine:
        settings = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),), forward_xargs=True)
        async with (
            LocalGateway(settings) as gateway,
            httpx.AsyncClient(base_url=gateway.base_url, timeout=120) as client,
        ):
            for branch in ("a", "b"):
                tags = {"compound_id": "run", "compound_stage": 0, "compound_branch": branch}
                asked = {"model": "default", "prompt": f"{branch} tree " * 300, "max_tokens": 2, "vllm_xargs": tags}
                (await client.post("/completions", json=asked)).raise_for_status()
            said = await client.post(wire.RELEASE_PATH, json={"compound_id": "run", "branches": ["a"]})
            assert said.json() == {"engines": 1}
            other = {"model": "default", "prompt": "short", "max_tokens": 2}
            (await client.post("/completions", json=other)).raise_for_status()
    lines = [json.loads(text) for text in trace.read_text().splitlines()]
    *_, held, last = [one["kv_free"] for one in lines if "end" in one]
    (released,) = [one for one in lines if "release" in one]
    assert (released["release"], released["branches"]) == ("run", ["a"])
    assert released["kv_free"] >= held + 400, "the context of one branch, in whole blocks"
    assert last >= released["kv_free"] - 200
