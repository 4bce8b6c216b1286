"""Model calls of a run are tagged, journalled and served again; failed calls are not recorded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
