"""Model calls of a run are tagged, journalled and served again; failed calls are not recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import search_app
import slo_app

from ramify import Runtime
from ramify.runtime.codec import codec
from ramify.runtime.errors import RunFailed
from ramify.runtime.records import RunStatus
from ramify.serving.client import LLMClient
from ramify.serving.errors import LLMError, LLMRejected
from ramify.serving.testing import Fault, ScriptedModel
from ramify.serving.types import ChatRequest

NAMES = ["ann", "bob", "cyd"]


def script(request: ChatRequest) -> str:
    return "B" if request.max_tokens == 1 else f"w{request.seed}"


def client_of(model: ScriptedModel) -> LLMClient:
    async def at_once(_: float) -> None: ...

    return LLMClient("http://model.test/v1", transport=model, sleep=at_once)


async def test_every_call_carries_the_workflows_deadline(home: Path, workspace: Path) -> None:
    model = ScriptedModel(script)
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        await runtime.run(search_app.search, NAMES, workspace=workspace, deadline="10m")
        rows = await runtime.llm_calls()
    tags = [codec.decode(row.tags_json) for row in rows]
    assert {t["compound_id"] for t in tags} == {runtime.last_run_id}
    assert sorted((t["compound_stage"], t["compound_width"]) for t in tags) == [(0, 1), (1, 2), (1, 2)]
    assert all(0 < t["slo_deadline_s"] <= 600 for t in tags)
    ends = [t["compound_deadline_at"] for t in tags]
    assert max(ends) - min(ends) < 0.01
    assert all("x-ramify-tags" in {k.lower() for k in call.headers} for call in model.calls)


@pytest.mark.parametrize(
    ("faults", "kind"),
    [([Fault.ERROR_500] * 99, LLMError), ([Fault.CUT] * 99, LLMError), ([Fault.REFUSE] * 99, LLMError)],
)
async def test_a_failed_call_is_not_recorded_and_the_run_can_be_resumed(
    home: Path, workspace: Path, faults: Iterable[Fault], kind: type[Exception]
) -> None:
    model = ScriptedModel(script, faults=faults)
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        with pytest.raises(RunFailed) as caught:
            await runtime.run(search_app.search, NAMES, workspace=workspace, deadline="10m")
        run_id = str(runtime.last_run_id)
        assert isinstance(caught.value.__cause__, kind)
        assert await runtime.llm_calls() == []
    healthy = ScriptedModel(script)
    async with client_of(healthy) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.resume(run_id)
        assert (await runtime.record()).status is RunStatus.DONE
        assert len(healthy.calls) == len(await runtime.llm_calls()) == 3


async def test_a_transient_error_is_retried(home: Path, workspace: Path) -> None:
    model = ScriptedModel(script, faults=[Fault.ERROR_500, Fault.CUT])
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.run(search_app.search, NAMES, workspace=workspace, deadline="10m")
        assert len(await runtime.llm_calls()) == 3


async def test_a_refusal_is_not_retried(home: Path, workspace: Path) -> None:
    model = ScriptedModel(script, faults=[Fault.GARBAGE] * 99)
    async with client_of(model) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        with pytest.raises(RunFailed) as caught:
            await runtime.run(search_app.search, NAMES, workspace=workspace, deadline="10m")
        assert isinstance(caught.value.__cause__, LLMError)
        assert not isinstance(caught.value.__cause__, LLMRejected)


@pytest.mark.parametrize("way", [slo_app.answers, slo_app.answers_in_a_thread])
async def test_a_workflow_says_which_calls_a_person_reads(home: Path, workspace: Path, way: Any) -> None:
    async with client_of(ScriptedModel(script)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        await runtime.run(way, "what?", workspace=workspace, deadline="10m")
        rows = await runtime.llm_calls()
    drafts, answer = (codec.decode(row.tags_json) for row in (rows[0], rows[-1]))
    assert (drafts["slo_class"], drafts["goodput_weight"], drafts["slo_think_s"]) == ("compound", 3.0, 20.0)
    assert "slo_ttft_s" not in drafts
    assert (answer["slo_class"], answer["compound_last"]) == ("stream", 1)
    assert (answer["slo_ttft_s"], answer["slo_tbt_s"]) == (1.0, 0.2)
    assert answer["compound_id"] == drafts["compound_id"]
    assert "goodput_weight" not in answer


@pytest.mark.parametrize("seed", range(4))
async def test_the_first_answers_suffice_and_a_resume_takes_the_same(
    home: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of four samples two answer, two never do; which two differs, and they come in any order."""
    chance, begun = Random(seed), asyncio.Event()
    answering = {way: chance.sample(range(4), 2) for way in ("up", "down")}
    asked: list[ChatRequest] = []

    async def some(request: ChatRequest) -> str:
        asked.append(request)
        if len(asked) == 8:
            begun.set()
        await begun.wait()
        way = request.messages[-1].content.split()[-1]
        if request.seed not in answering[way]:
            await asyncio.Event().wait()
        for _ in range(chance.randrange(5)):
            await asyncio.sleep(0)
        return f"{way}{request.seed}"

    wanted = [[f"{way}{i}" for i in sorted(answering[way])] for way in ("up", "down")]
    monkeypatch.setattr(slo_app, "STOPS", True)
    async with client_of(ScriptedModel(some)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        with pytest.raises(RunFailed, match="ends here"):
            await runtime.run(slo_app.first_two, "what?", workspace=workspace)
        rows, run_id = await runtime.llm_calls(), str(runtime.last_run_id)
    tags = [codec.decode(row.tags_json) for row in rows]
    assert [(tag["fork_size"], tag["fork_need"]) for tag in tags] == [(4, 2)] * 4
    monkeypatch.setattr(slo_app, "STOPS", False)
    unused = ScriptedModel(lambda request: f"another {request.seed}")
    async with client_of(unused) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.resume(run_id) == wanted
    assert not unused.calls


class Refusing(httpx.AsyncBaseTransport):
    """A server that refuses these samples."""

    def __init__(self, samples: set[int]) -> None:
        self._samples, self._model = samples, ScriptedModel(script)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if json.loads(await request.aread())["seed"] in self._samples:
            return httpx.Response(400, json={"error": {"message": "not this one"}})
        return await self._model.handle_async_request(request)


async def test_samples_may_fail_as_long_as_enough_are_left(home: Path, workspace: Path) -> None:
    client = LLMClient("http://model.test/v1", transport=Refusing({0, 2}))
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        assert await runtime.run(slo_app.half, "what?", workspace=workspace) == ["w1", "w3"]
    client = LLMClient("http://model.test/v1", transport=Refusing({0, 1, 2}))
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        with pytest.raises(RunFailed, match="not this one"):
            await runtime.run(slo_app.half, "what?", workspace=workspace)


async def test_no_stage_needs_more_answers_than_it_has(home: Path, workspace: Path) -> None:
    async with client_of(ScriptedModel(script)) as client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        with pytest.raises(RunFailed, match="need is from 1 to n"):
            await runtime.run(slo_app.first_of_more_than_there_are, "what?", workspace=workspace)
