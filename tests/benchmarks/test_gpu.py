"""The loads that `benchmarks/gpu.py` puts on live engines, on a scripted model."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.gpu import LLAMA_8B, Session, random_model
from benchmarks.serving_costs import live_policies as loads
from benchmarks.serving_costs.live_policies import CPU, KINDS, Client, Worked, tool_call_rows
from ramify.serving.testing import ScriptedModel, ScriptedServer

SMALL = replace(
    CPU, prompts=(4, 8), answers=(2, 3), agents=2, turns=3, start=(70, 90), grows=(3, 5), tool_s=(0.0, 0.01), answer=2
)


@asynccontextmanager
async def asked(*, tagged: bool) -> AsyncIterator[tuple[Client, ScriptedModel]]:
    model = ScriptedModel(lambda _: "one two")
    async with ScriptedServer(model) as server:
        engine = cast(Any, SimpleNamespace(base_url=server.base_url, _scheduler="ours" if tagged else None))
        async with Client(engine) as client:
            yield client, model


async def test_agents_repeat_their_context_and_what_is_computed_again_is_counted() -> None:
    async with asked(tagged=True) as (client, model):
        found = await loads.work(client, SMALL, 0)
    assert len(model.calls) == SMALL.agents * SMALL.turns
    prompts = [
        cast(Any, call.body)["prompt"] for call in model.calls if call.body["vllm_xargs"]["compound_id"] == "0.1"
    ]  # type: ignore[index, call-overload]
    assert [prompts[1][: len(prompts[0])], prompts[2][: len(prompts[1])]] == prompts[:2]
    # The model caches nothing: each agent's second and third call compute its two first blocks again.
    assert found.again == SMALL.agents * 2 * 2 * SMALL.block
    assert found.mean_s > 0


async def test_stock_vllm_gets_no_tags_and_readers_are_judged() -> None:
    async with asked(tagged=False) as (client, model):
        got = await loads.read(client, SMALL, 200.0, 0.05, 0, deadline_s=60.0)
        assert await loads.saturate(client, SMALL, 4, 0) > 0
    assert all("vllm_xargs" not in call.body for call in model.calls)
    assert got.met == 1.0 and got.qoe > 0.5


def test_each_kind_is_first_in_turn() -> None:
    assert [loads.rotated(KINDS, number)[0] for number in range(4)] == [*KINDS, KINDS[0]]


def test_a_row_is_met_at_three_tenths_of_what_vllm_computes_again() -> None:
    found = {"vLLM": [Worked(10.0, 100, 100)], "concord": [Worked(5.0, 30, 100)]}
    done, again = tool_call_rows(found, SMALL)
    assert (done["ratio"], again["met"]) == (2.0, True)
    found["concord"] = [Worked(5.0, 31, 100)]
    assert tool_call_rows(found, SMALL)[1]["met"] is False


def test_a_model_without_weights_has_the_shape_and_a_tokenizer(tmp_path: Path) -> None:
    tokenizer = tmp_path / "small"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tokenizer / name).write_text(name)
    (tokenizer / "config.json").write_text(json.dumps({"vocab_size": 49_152, "hidden_size": 576}))
    made = random_model(tmp_path, tokenizer)
    assert json.loads((made / "config.json").read_text()) == {"vocab_size": 49_152, **LLAMA_8B}
    assert not list(made.glob("*.safetensors"))


def session(folder: Path, seconds: float) -> Session:
    return Session(SMALL, folder, True, time.monotonic() + seconds, {}, {})


async def test_a_part_ends_when_the_time_is_over_and_the_next_does_not_begin(tmp_path: Path) -> None:
    at = session(tmp_path, 0.05)
    begun = []

    async def endless(_: Session) -> None:
        begun.append(1)
        await asyncio.Event().wait()

    await at.within_time("long", endless)
    await at.within_time("late", endless)
    assert begun == [1]
    assert [(one["name"], one["ours"]) for one in at.rows] == [("long, the rest", None), ("late", None)]


async def test_a_part_that_fails_in_time_is_not_out_of_time(tmp_path: Path) -> None:
    async def fails(_: Session) -> None:
        raise TimeoutError("an engine's own")

    with pytest.raises(TimeoutError, match="own"):
        await session(tmp_path, 60.0).within_time("part", fails)
