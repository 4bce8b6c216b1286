"""Prefix hints are sent once, while the first steps of a run execute, and never delay anything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import hint_app
import httpx
import pytest

from ramify import Runtime
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.runtime.errors import RunFailed
from ramify.runtime.events import Event, PrefixHinted
from ramify.serving.client import LLMClient
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest


class Site:
    """A gateway before a model, and what both have received."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self.prepared = asyncio.Event()  # lets the step continue; set by the hint in tests that wait for it
        self.model = ScriptedModel(self.script)
        upstream = Upstream("http://engine", transport=self.model)
        app = create_gateway([Replica(0, 1, upstream, EngineTraits(keeps_prefixes=True))])
        self.client = LLMClient("http://gateway", transport=httpx.ASGITransport(app))
        self.answer = "said"

    def script(self, request: ChatRequest) -> str:
        return "x" if request.max_tokens == 1 else self.answer

    def hear(self, event: Event) -> None:
        self.heard.append(event)
        if isinstance(event, PrefixHinted):
            self.prepared.set()

    @property
    def told(self) -> list[str]:
        return [event.why for event in self.heard if isinstance(event, PrefixHinted)]

    @property
    def limits(self) -> list[int]:
        return [call.request.max_tokens for call in self.model.calls]


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    hint_app.WAITS[:] = [site.prepared]
    yield site
    hint_app.WAITS.clear()


def runtime_of(home: Path, site: Site) -> Runtime:
    return Runtime(home=home, sandbox="copy", llm=site.client, observer=site.hear)


@pytest.mark.parametrize("name", ["named", "literal", "in_a_step"])
async def test_the_prefix_is_read_while_the_step_before_the_call_works(home: Path, site: Site, name: str) -> None:
    """The step waits until the hint has ended."""
    async with asyncio.timeout(60), site.client, runtime_of(home, site) as runtime:
        assert await runtime.run(getattr(hint_app, name)) == "said"
        calls, rows = await runtime.llm_calls(), await runtime.journal()
    assert site.limits == [1, 256] and site.told == [""]
    hint, call = (made.request for made in site.model.calls)
    assert hint.messages[0] == call.messages[0]
    assert len(calls) == 1 and not [row for row in rows if row.attrs.get("prefix")]


async def test_without_lookahead_there_is_none(home: Path, site: Site) -> None:
    site.prepared.set()
    passes = [name for name in OPTIONAL if name != "lookahead"]
    plan = compile_workflow(hint_app.named, ref=hint_app.named.__ramify_workflow__.ref, passes=passes).plan
    async with site.client, runtime_of(home, site) as runtime:
        assert await runtime.run(hint_app.named, plan=plan) == "said"
    assert site.limits == [256] and site.told == []


async def test_a_resumed_run_that_has_the_answer_sends_no_hint(home: Path, site: Site) -> None:
    async with site.client, runtime_of(home, site) as runtime:
        with pytest.raises(RunFailed, match="said"):
            await runtime.run(hint_app.fails)
        assert site.limits == [1, 256]
        with pytest.raises(RunFailed, match="said"):
            await runtime.resume(str(runtime.last_run_id))
    assert site.limits == [1, 256] and site.told == [""]


async def test_a_hint_ends_with_its_run(home: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def never(*_: Any, **__: Any) -> str:
        begun.set()
        try:
            return await asyncio.Event().wait() and ""
        finally:
            ended.set()

    hint_app.WAITS[:] = [begun]
    monkeypatch.setattr(site.client, "hint", never)
    async with site.client, runtime_of(home, site) as runtime:
        assert await runtime.run(hint_app.named) == "said"
        assert ended.is_set() and site.told == []


async def test_errors_of_a_hint_are_reported(home: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mock.call` says of everything that it has it, so also that it wraps another call."""
    monkeypatch.setattr(hint_app, "call", mock.call, raising=False)
    async with asyncio.timeout(60), site.client, runtime_of(home, site) as runtime:
        assert await runtime.run(hint_app.literal) == "said"
    assert site.limits == [256]
    assert [why.partition(":")[0] for why in site.told] == ["ValueError"]


async def test_a_changed_text_is_reported_and_not_sent(
    home: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compile_workflow(hint_app.named, ref=hint_app.named.__ramify_workflow__.ref).plan
    monkeypatch.setattr(hint_app, "SYSTEM", "be long")
    async with site.client, runtime_of(home, site) as runtime:
        assert await runtime.run(hint_app.named, plan=plan) == "said"
    assert site.limits == [256]
    assert site.told == ["SYSTEM of hint_app is not the text from which the plan was made"]
