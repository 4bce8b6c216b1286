"""The calls of one workflow: their stages, the last stage, and when a pattern is learnt from them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from ramify.serving.errors import AnalyzerDown
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.records.calls import Outcome
from ramify.serving.gateway.records.slo_tracker import MOST_STAGES, Compound, is_last
from ramify.serving.lengths.pattern_graph import Kind, Node
from ramify.serving.lengths.types import Ask, Basis, Ended, Estimates, Forecast
from ramify.serving.policy.types import StageEstimate
from ramify.serving.protocol.length_sketch import LengthSketch
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.testing import Fault, ScriptedModel
from ramify.serving.types import ChatRequest

pytest.importorskip("sklearn", reason="needs the extra ramify[serve]")


def test_call_without_a_stage_joins_the_open_stage_or_the_next() -> None:
    run = Compound("run", 0.0)
    plain = SLOTags(compound_id="run")
    assert [run.join(plain).compound_stage for _ in range(3)] == [0, 0, 0], "at once"
    run.left(1.0, whole=True)
    assert run.join(plain).compound_stage == 0, "two of them are still open"
    for _ in range(3):
        run.left(2.0, whole=True)
    assert run.join(plain).compound_stage == 1
    assert run.join(SLOTags(compound_id="run", compound_stage=7)).compound_stage == 7, "as it says"
    for _ in range(2):
        run.left(3.0, whole=True)
    assert run.join(plain).compound_stage == 8
    run.left(4.0, whole=True)
    assert run.join(SLOTags(compound_id="run", compound_stages=3)).compound_stage == 3, "never beyond the last"


def test_failed_call_is_repeated_in_its_stage_unless_that_has_an_answer() -> None:
    run, plain = Compound("run", 0.0), SLOTags(compound_id="run")
    run.join(plain)
    run.left(1.0, whole=False)
    assert [run.join(plain).compound_stage for _ in range(2)] == [0, 0]
    run.left(2.0, whole=True)
    run.left(3.0, whole=False)
    assert run.join(plain).compound_stage == 1, "one of two that did the same"
    run.left(4.0, whole=False)
    assert run.join(plain).compound_stage == 1


@pytest.mark.parametrize(
    ("tags", "last"),
    [
        (SLOTags(), False),
        (SLOTags(compound_last=1), True),
        (SLOTags(compound_stage=2, compound_stages=3), True),
        (SLOTags(compound_stage=1, compound_stages=3), False),
        (SLOTags(compound_stage=2, compound_stages=3, compound_last=0), False),
    ],
)
def test_last_stage_is_declared_or_counted(tags: SLOTags, last: bool) -> None:
    assert is_last(tags) is last
    run = Compound("run", 0.0)
    assert run.view(tags).last is last
    assert (run.completed(tags, 0.0).compound_last == 1) is last, "and the engine is told"


def test_last_stage_is_seen_once_all_its_calls_came() -> None:
    run = Compound("run", 0.0, deadline=10.0)
    two = SLOTags(compound_id="run", compound_last=1, compound_width=2)
    run.join(two)
    run.left(1.0, whole=True)
    assert (run.last_seen, run.met()) == (False, None)
    run.join(two)
    run.left(2.0, whole=True)
    assert (run.last_seen, run.met()) == (True, True)


class Learns:
    """An analyzer that keeps what it is told of workflows."""

    def __init__(self) -> None:
        self.history: Estimates | None = None
        self.away = False
        self.patterns: dict[str, list[list[tuple[Kind, str]]]] = {}

    async def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        return [Forecast(LengthSketch.cold(ask.limit), Basis.COLD) for ask in asks]

    async def match(self, *_: object) -> Estimates | None:
        return self.history

    async def expected(self, _: str) -> Estimates | None:
        if self.away:
            raise AnalyzerDown("it is being started")
        return self.history

    def observe(self, ended: Ended) -> None: ...

    def record(self, compound: str, app: str, stages: Sequence[Sequence[Node]]) -> None:
        assert compound not in self.patterns, "once"
        self.patterns[compound] = [[(n.kind, n.name) for n in stage if n.kind is Kind.LLM] for stage in stages]

    async def aclose(self) -> None: ...


class Script:
    """Answers, or holds a call for as long as it is not called off."""

    def __init__(self) -> None:
        self.hold = False
        self.held = asyncio.Event()

    async def __call__(self, _: ChatRequest) -> str:
        if self.hold:
            self.held.set()
            await asyncio.Event().wait()
        return "a b"


class Workflows:
    """Calls through a gateway whose clock we turn."""

    def __init__(self, **model: Any) -> None:
        from ramify.serving.gateway.records.length_forecasts import LengthForecasts

        self.now = 100.0
        self.learns = Learns()
        self._script = Script()
        self.engine = ScriptedModel(self._script, **model)
        app = create_gateway("http://engine", transport=self.engine, clock=lambda: self.now, forward_xargs=True)
        known: Any = self.learns
        self._gateway = app.state.gateway
        self._gateway.analysis = LengthForecasts(known, lambda: None, engines=EngineMessages({}))
        self._app = app
        self._transport = httpx.ASGITransport(app)
        self.book = self._gateway.records

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._gateway.aclose()

    async def call(self, compound: str, **tags: object) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with httpx.AsyncClient(transport=self._transport, base_url="http://gateway") as client:
            await client.post("/v1/chat/completions", json={**body, "vllm_xargs": {"compound_id": compound, **tags}})
        self.now += 1

    async def left(self, compound: str, **tags: object) -> Callable[[], Awaitable[None]]:
        """A call that does not end. Returns what has its client hang up."""
        asked = {"messages": [{"role": "user", "content": "hi"}], "vllm_xargs": {"compound_id": compound, **tags}}
        received = asyncio.Queue[dict[str, object]]()
        received.put_nowait({"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False})
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b""}

        async def send(_: object) -> None: ...

        self._script.hold = True
        self._script.held.clear()
        call = asyncio.create_task(self._app(scope, received.get, send))  # type: ignore[arg-type]
        await self._script.held.wait()
        self._script.hold = False

        async def hang_up() -> None:
            received.put_nowait({"type": "http.disconnect"})
            await call
            self.now += 1

        return hang_up

    async def hold(self, compound: str, **tags: object) -> Callable[[], Awaitable[None]]:
        """A call that does not end. Returns what calls it off."""
        self._script.hold = True
        call = asyncio.create_task(self.call(compound, **tags))
        await self._script.held.wait()
        self._script.hold = False

        async def off() -> None:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://gateway") as client:
                await client.post("/v1/ramify/cancel", json={"compound_id": compound})
            await call

        return off


async def test_silent_workflow_is_over() -> None:
    async with Workflows() as all_:
        for _ in range(3):
            await all_.call("run")
        await all_.call("other")
        assert all_.learns.patterns == {}
        all_.now += 597
        await all_.call("other")
        assert all_.learns.patterns == {}, "not for quite so long"
        all_.now += 10
        await all_.call("other")
        assert all_.learns.patterns == {"run": [[(Kind.LLM, "m")]] * 3}
        await all_.call("run")
        all_.now += 1000
        await all_.call("more")
        assert all_.learns.patterns.keys() == {"run", "other"}, "what came after its end is no part of it"


async def test_without_app_id_no_history_before_the_first_stage_ends() -> None:
    async with Workflows() as all_:
        all_.learns.history = Estimates(0, (1.0, 1.0, 1.0), (StageEstimate(1, 10, 20),) * 3)
        await all_.call("one")
        await all_.call("one")
        await all_.call("two", app_id="known")
        told: list[Any] = [call.body["vllm_xargs"] for call in all_.engine.calls]
        assert ["plan_rest" in tags for tags in told] == [False, True, True]


async def test_broken_off_workflow_teaches_nothing() -> None:
    async with Workflows(faults=[None, Fault.ERROR_500]) as all_:
        await all_.call("run")
        await all_.call("run")
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {}


async def test_stage_count_and_width_tell_when_a_workflow_is_over() -> None:
    async with Workflows() as all_:
        await all_.call("run", compound_stage=0, compound_stages=2)
        await all_.call("run", compound_stage=1, compound_stages=2, compound_width=2)
        assert all_.learns.patterns == {}
        await all_.call("run", compound_stage=1, compound_stages=2, compound_width=2)
        assert all_.learns.patterns == {"run": [[(Kind.LLM, "m")], [(Kind.LLM, "m")] * 2]}
        await all_.call("run", compound_stage=1, compound_stages=2, compound_width=2)


async def test_run_that_lacks_stages_is_no_pattern() -> None:
    """As one that was resumed: its first stages are not asked again."""
    async with Workflows() as all_:
        await all_.call("run", compound_stage=1, compound_stages=2)
        assert all_.learns.patterns == {}
        await all_.call("run", compound_stage=0, compound_stages=2)
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {}


async def test_fork_is_over_even_if_losers_are_cancelled_last() -> None:
    async with Workflows() as all_:
        tags = {"compound_last": 1, "compound_width": 2, "fork_group": "g"}
        loser = await all_.hold("run", **tags)
        await all_.call("run", **tags)
        assert all_.learns.patterns == {}
        await loser()
        assert all_.learns.patterns == {"run": [[(Kind.LLM, "m")]]}


@pytest.mark.parametrize("need", [2, None])
async def test_fork_whose_client_dies_teaches_nothing(need: int | None) -> None:
    """Its connections close, as those of losers do; but it has no more than one of the answers that it wanted."""
    tags = {"compound_stage": 0, "compound_last": 1, "compound_width": 3, "fork_group": "g", "fork_size": 3}
    if need is not None:
        tags["fork_need"] = need
    async with Workflows() as all_:
        await all_.call("run", **tags)
        dies = [await all_.left("run", **tags) for _ in range(2)]
        for die in dies:
            await die()
        assert all_.learns.patterns == {}, "it is not over"
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {}


async def test_fork_with_enough_answers_is_over_when_its_client_leaves() -> None:
    tags = {"compound_last": 1, "compound_width": 2, "fork_group": "g", "fork_size": 2, "fork_need": 1}
    async with Workflows() as all_:
        loser = await all_.left("run", **tags)
        await all_.call("run", **tags)
        await loser()
        assert all_.learns.patterns == {"run": [[(Kind.LLM, "m")]]}


async def test_losers_left_before_the_announced_end_teach_nothing() -> None:
    tags = {"fork_group": "g", "fork_size": 2, "fork_need": 1}
    async with Workflows() as all_:
        for run in ("dies", "goes on"):
            loser = await all_.left(run, **tags)
            await all_.call(run, **tags)
            await loser()
        await all_.call("goes on")
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {"goes on": [[(Kind.LLM, "m")]] * 2}


async def test_workflow_silent_before_its_announced_end_teaches_nothing() -> None:
    async with Workflows() as all_:
        await all_.call("stages", compound_stage=0, compound_stages=3)
        await all_.call("width", compound_stage=0, compound_width=2)
        off = await all_.hold("called off")
        await off()
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {}


async def test_cancelled_workflow_teaches_nothing() -> None:
    async with Workflows() as all_:
        await all_.call("run", compound_stage=0, compound_stages=2)
        off = await all_.hold("run", compound_stage=1, compound_stages=2)
        await off()
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {}


async def test_failed_last_call_may_be_repeated() -> None:
    async with Workflows(faults=[None, Fault.ERROR_500]) as all_:
        await all_.call("run", compound_stage=0, compound_stages=2)
        await all_.call("run", compound_stage=1, compound_stages=2)
        assert all_.learns.patterns == {}
        await all_.call("run", compound_stage=1, compound_stages=2)
        assert all_.learns.patterns == {"run": [[(Kind.LLM, "m")]] * 2}


async def test_repeated_call_belongs_to_its_stage() -> None:
    """As OpenAI's client asks again by itself; these calls say no stage."""
    async with Workflows(faults=[None, Fault.ERROR_500]) as all_:
        for _ in range(4):
            await all_.call("run")
        all_.now += 1000
        await all_.call("other")
        assert all_.learns.patterns == {"run": [[(Kind.LLM, "m")]] * 3}


async def test_endless_workflow_has_bounded_memory() -> None:
    async with Workflows() as all_:
        book = all_.book
        for stage in range(600):
            book.close(
                book.open("/", SLOTags(compound_id="run", compound_stage=stage, compound_due_s=9.0)), Outcome.DONE
            )
        assert len(book._compounds.get("", "run").dues) == MOST_STAGES
        for stage in range(MOST_STAGES + 3):
            await all_.call("far", compound_stage=stage, compound_stages=MOST_STAGES + 3)
        assert [len(stages) for stages in all_.learns.patterns.values()] == [MOST_STAGES], "as far as plans go"


async def test_history_of_a_workflow_can_be_requested() -> None:
    async with (
        Workflows() as all_,
        httpx.AsyncClient(transport=all_._transport, base_url="http://gateway") as client,
    ):
        unknown = await client.get("/v1/ramify/history?app_id=w")
        nobody = await client.get("/v1/ramify/history")
        rest = (StageEstimate(1, 10, 20), StageEstimate(2, 30, 40, 0.5))
        all_.learns.history = Estimates(0, (1.0, 3.0), rest)
        known = await client.get("/v1/ramify/history?app_id=w")
        all_.learns.away = True
        away = await client.get("/v1/ramify/history?app_id=w")
    assert (unknown.status_code, unknown.json()) == (200, {"app_id": "w", "stages": []})
    assert (nobody.status_code, nobody.json()["error"]["param"]) == (400, "app_id")
    assert (away.status_code, away.json()["error"]["code"]) == (503, "analyzer_unavailable"), "not: nothing is known"
    assert known.json()["stages"] == [
        {"calls": 1, "prefill": 10, "output": 20, "tools_s": 0.0, "seconds": 1.0, "share": 0.25},
        {"calls": 2, "prefill": 30, "output": 40, "tools_s": 0.5, "seconds": 2.5, "share": 1.0},
    ]


async def test_reused_compound_id_is_explained_in_the_refusal() -> None:
    """The deadline counts from the id's first call; what a later call says of it does not move it."""
    now = [100.0]
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "a"), clock=lambda: now[0])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        said = []
        for id_, seconds in (("run", 30), ("run", 300), ("other", 0)):
            tags = {"compound_id": id_, "compound_deadline_s": seconds}
            body = {"messages": [{"role": "user", "content": "hi"}], "vllm_xargs": tags}
            said.append(await client.post("/v1/chat/completions", json=body))
            now[0] += 40
    assert [response.status_code for response in said] == [200, 422, 422]
    again, own = (response.json()["error"]["message"] for response in said[1:])
    assert "compound_id 'run' began 40 s ago: give each run an id of its own" in again and "began" not in own
