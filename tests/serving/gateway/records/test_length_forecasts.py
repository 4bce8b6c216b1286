"""The real analyzer's process behind the gateway: it learns of every call, and no call depends on it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramify.serving.engine.contract import EngineSpec
from ramify.serving.errors import AnalyzerDown
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.records import logs
from ramify.serving.gateway.records.length_forecasts import LengthForecasts
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.lengths import frames
from ramify.serving.lengths.client import AnalyzerClient
from ramify.serving.lengths.pattern_graph import Kind, Node
from ramify.serving.lengths.types import Ask, Basis, Ended, Forecast
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.testing import ScriptedModel, ScriptedServer
from ramify.serving.types import ChatResult

pytest.importorskip("sklearn", reason="needs the extra ramify[serve]")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the analyzer answers later than a call waits for it."""
    monkeypatch.setitem(AnalyzerClient.__init__.__kwdefaults__, "patience_s", 60.0)


async def ask(client: httpx.AsyncClient, **tags: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 99}
    return await client.post("/chat/completions", json={**body, "vllm_xargs": tags})


async def test_calls_continue_with_and_without_the_analyzer(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: "word " * 120)
    async with ScriptedServer(model) as engine:
        engines = (EngineSpec.parse(engine.base_url),)
        settings = GatewaySettings(home=tmp_path, engines=engines, analyzer=True, forward_xargs=True)
        async with LocalGateway(settings) as gateway, httpx.AsyncClient(base_url=gateway.base_url) as client:
            for stage in range(3):
                last = int(stage == 2)
                answer = await ask(client, app_id="a", compound_id="run", compound_stage=stage, compound_last=last)
                assert answer.status_code == 200
            assert gateway.gateway is not None and gateway.gateway.analysis is not None
            stats = await gateway.gateway.analysis.stats()
            assert (stats.observations, stats.patterns) == (3, 1)
            await ask(client, compound_id="stranger", compound_stage=0, compound_deadline_s=60)
            unknown = model.calls[-1].body["vllm_xargs"]
            assert isinstance(unknown, dict) and "plan_rest" not in unknown, "it may be anybody's"
            await ask(client, app_id="a", compound_id="again", compound_stage=0, compound_deadline_s=60)
            told = model.calls[-1].body["vllm_xargs"]
            assert isinstance(told, dict) and len(told["plan_rest"]) == 8, "what no plan says, history does"
            assert 0 < told["compound_due_s"] < 60
            assert "hi" not in (tmp_path / "analyzer" / "analyzer.log").read_text()
            said = StringIO()
            handler = logs.to_stream(said)
            pid = next(int(p) for p in children(os.getpid()) if b"lengths.process" in command(int(p)))
            os.kill(pid, signal.SIGKILL)
            answers = await asyncio.gather(*[ask(client) for _ in range(5)])
            assert [a.status_code for a in answers] == [200] * 5
            root = httpx.URL(gateway.base_url).join("/")
            async with asyncio.timeout(30):
                while "analyzer_restarted" not in said.getvalue():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert "ramify_analyzer_restarts_total 1.0" in (await client.get(f"{root}metrics")).text
            logs.stop(handler)
            lines = [json.loads(line) for line in said.getvalue().splitlines()]
            deaths = [line for line in lines if line["event"].startswith("analyzer")]
            assert [(one["event"], one.get("status"), one.get("restarts")) for one in deaths] == [
                ("analyzer_died", -signal.SIGKILL, None),
                ("analyzer_restarted", None, 1),
            ]


@asynccontextmanager
async def killed_gateway(home: Path, engine: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """`ramify serve`: its base URL and its process, which is killed at the end at the latest."""
    line = [sys.executable, "-m", "ramify", "--home", str(home), "serve", "--port", "0", "--no-log"]
    process = await asyncio.create_subprocess_exec(*line, "--engine", engine, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while not (found := re.search(r"at (http://\S+)", (await process.stderr.readline()).decode())):
            assert not process.stderr.at_eof()
        yield found[1], process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_gateway_without_keys_hears_nothing_of_the_clients_of_another(tmp_path: Path) -> None:
    async with ScriptedServer(ScriptedModel(lambda _: "word " * 9)) as engine:
        settings = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),), analyzer=True)
        async with (
            LocalGateway(replace(settings, api_keys=("a", "b"))) as kept,
            LocalGateway(settings) as open_to_all,
            httpx.AsyncClient(base_url=kept.base_url, headers={"authorization": "Bearer a"}) as client,
            httpx.AsyncClient(base_url=open_to_all.base_url) as anybody,
        ):
            assert (await ask(client, app_id="mine")).status_code == 200
            (app,) = (await client.get("/ramify/apps")).json()["apps"]
            assert app["app_id"] == "mine" and app["lengths"]["answers"] == 1
            assert (await anybody.get("/ramify/apps")).json() == {"apps": []}


async def test_two_gateways_share_what_they_learn(tmp_path: Path) -> None:
    """One knows the stages of an application that only the other has served, also after the other was killed."""
    async with (
        ScriptedServer(ScriptedModel(lambda _: "word " * 9)) as engine,
        killed_gateway(tmp_path, engine.base_url) as (elsewhere, first),
        LocalGateway(
            GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),), analyzer=True)
        ) as second,
        httpx.AsyncClient(base_url=second.base_url) as client,
    ):
        async with httpx.AsyncClient(base_url=elsewhere) as other:
            for stage in range(3):
                last = int(stage == 2)
                await ask(other, app_id="a", compound_id="run", compound_stage=stage, compound_last=last)
        before = await history(client, "a")
        assert len(before["stages"]) == 3
        first.kill()
        await first.wait()
        assert await history(client, "a") == before, "restored from what the analyzer saved at its end"
        assert (await ask(client, app_id="a")).status_code == 200
        async with asyncio.timeout(60):
            while await answers_learnt(second) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        (app,) = await apps(client)
        assert (app["app_id"], app["calls"], app["open"]) == ("a", 1, 0), "the calls of this gateway"
        assert (app["lengths"]["answers"], app["lengths"]["workflows"]) == (4, 1), "what both learnt"


async def history(client: httpx.AsyncClient, app: str) -> Any:
    """What the gateway knows of an application, once it knows something."""
    async with asyncio.timeout(60):
        while True:
            said = await client.get("/ramify/history", params={"app_id": app})
            if said.status_code == 200 and said.json()["stages"]:
                return said.json()
            await asyncio.sleep(0.02)


async def apps(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """The applications, once the analyzer has said what it knows of them."""
    async with asyncio.timeout(60):
        while True:
            found: list[dict[str, Any]] = (await client.get("/ramify/apps")).json()["apps"]
            if all(one["lengths"] for one in found):
                return found
            await asyncio.sleep(0.02)


async def answers_learnt(gateway: LocalGateway) -> int | None:
    assert gateway.gateway is not None and gateway.gateway.analysis is not None
    try:
        return (await gateway.gateway.analysis.stats()).observations
    except AnalyzerDown:
        return None


class Heard:
    """What an analysis is told."""

    def __init__(self) -> None:
        self.names: set[str | None] = set()

    async def begin(self, *_: object) -> None: ...

    def progressed(self, call: object, text: str, answer_id: str | None) -> None:
        self.names.add(answer_id)

    def ended(self, *_: object, **__: object) -> None: ...

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(
    ("path", "field"), [("/chat/completions", "messages"), ("/completions", "prompt"), ("/responses", "input")]
)
async def test_new_sketches_carry_the_engines_answer_id(tmp_path: Path, path: str, field: str) -> None:
    """By that name a scheduler inside the engine is told of a new length."""
    prompt = [{"role": "user", "content": "hi"}] if field == "messages" else "hi"
    async with ScriptedServer(ScriptedModel(lambda _: "a b c")) as engine:
        settings = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),))
        async with LocalGateway(settings) as gateway, httpx.AsyncClient(base_url=gateway.base_url) as client:
            assert gateway.gateway is not None
            heard: Any = Heard()
            gateway.gateway.analysis = heard
            answer = await client.post(path, json={"model": "m", field: prompt, "stream": True})
            events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    said = [e["response"]["id"] if "response" in e else e.get("id") for e in events]
    assert heard.names == {name for name in said if name} and len(heard.names) == 1


class Teaches:
    """An analyzer that knows nothing yet, and is told how calls ended."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.ended: list[Ended] = []

    async def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        self.asked += asks
        return [Forecast(LengthSketch.cold(ask.limit), Basis.COLD) for ask in asks]

    def observe(self, ended: Ended) -> None:
        self.ended.append(ended)

    async def aclose(self) -> None: ...


async def taught(tmp_path: Path, path: str, body: dict[str, object], reason: str = "stop") -> Teaches:
    said = ChatResult("word " * 60, reason, "m", prompt_tokens=3, completion_tokens=60)
    async with ScriptedServer(ScriptedModel(lambda _: said)) as engine:
        settings = GatewaySettings(home=tmp_path, engines=(EngineSpec.parse(engine.base_url),))
        async with LocalGateway(settings) as gateway, httpx.AsyncClient(base_url=gateway.base_url) as client:
            assert gateway.gateway is not None
            analyzer: Any = Teaches()
            gateway.gateway.analysis = LengthForecasts(analyzer, lambda: None, engines=EngineMessages({}))
            asked = {"model": "m", **body, "stream_options": {"include_usage": True}}
            assert (await client.post(path, json=asked)).status_code == 200
    known: Teaches = analyzer
    return known


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("reason", "cut"), [("stop", False), ("length", True)])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_analyzer_learns_whether_the_limit_ended_an_answer(
    tmp_path: Path, path: str, stream: bool, reason: str, cut: bool
) -> None:
    prompt: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    analyzer = await taught(tmp_path, path, {**prompt, "stream": stream, "max_tokens": 60}, reason)
    assert [(one.length, one.cut) for one in analyzer.ended] == [(60, cut)]


@pytest.mark.parametrize(
    ("path", "body", "alone"),
    [
        ("/chat/completions", {"n": 1}, True),
        ("/chat/completions", {"n": 4}, False),
        ("/completions", {"prompt": ["one"]}, True),
        ("/completions", {"prompt": [1, 2, 3]}, True),
        ("/completions", {"prompt": ["one", "two"]}, False),
        ("/completions", {"prompt": [[1, 2], [3]]}, False),
        ("/completions", {"prompt": "one", "best_of": 2}, False),
    ],
)
async def test_no_length_is_learnt_from_several_answers(
    tmp_path: Path, path: str, body: dict[str, object], alone: bool
) -> None:
    """Their tokens are counted together. How long one will be is still asked, before the first token."""
    messages = [{"role": "user", "content": "hi"}]
    analyzer = await taught(tmp_path, path, {"messages": messages, "stream": True, **body})
    assert [ask.generated > 0 for ask in analyzer.asked] == ([False, True] if alone else [False])
    assert [one.length for one in analyzer.ended] == [60] * alone


@pytest.mark.parametrize("most", [10**10, 10**400])
async def test_huge_token_limit_is_capped_for_the_analyzer(tmp_path: Path, most: int) -> None:
    """It hung up on a number beyond its own bounds, on everybody; one beyond a float's failed the call."""
    messages = [{"role": "user", "content": "hi"}]
    analyzer = await taught(tmp_path, "/chat/completions", {"messages": messages, "max_tokens": most})
    for ask in analyzer.asked:
        assert frames.ask_from_json(frames.ask_to_json(ask)) == ask
    assert len(analyzer.ended) == 1


class Knows(Teaches):
    """An analyzer that has learnt."""

    async def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        return [Forecast(LengthSketch.cold(77), Basis.LEARNT) for _ in asks]


async def test_prediction_is_passed_to_an_engine_that_reads_tags() -> None:
    model = ScriptedModel(lambda _: "ok")
    app = create_gateway("http://engine", transport=model, forward_xargs=True)
    analyzer: Any = Knows()
    app.state.gateway.analysis = LengthForecasts(analyzer, lambda: None, engines=EngineMessages({}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        await ask(client, app_id="a")
        own = [float(i) for i in range(len(LEVELS))]
        await ask(client, length_quantiles=own)
    await app.state.gateway.aclose()
    told: list[Any] = [call.body["vllm_xargs"] for call in model.calls]
    assert [tags["length_quantiles"] for tags in told] == [list(LengthSketch.cold(77).to_wire()), own]


class Ponders(Teaches):
    """An analyzer that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.pondering = asyncio.Event()

    async def predict(self, asks: Sequence[Ask]) -> list[Forecast]:
        self.pondering.set()
        await asyncio.Event().wait()
        return []


async def test_call_cancelled_during_prediction_gets_the_reason() -> None:
    """And not that the gateway stops, which invites a retry."""
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "never"))
    analyzer: Any = Ponders()
    app.state.gateway.analysis = LengthForecasts(analyzer, lambda: None, engines=EngineMessages({}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        call = asyncio.create_task(ask(client, fork_group="g"))
        await analyzer.pondering.wait()
        assert (await client.post("/ramify/cancel", json={"fork_group": "g"})).json() == {"cancelled": 1}
        said = await call
    await app.state.gateway.aclose()
    assert (said.status_code, said.json()["error"]["code"]) == (499, "aborted")


class Records(Teaches):
    """An analyzer that is told what workflows did."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[list[list[tuple[Kind, str]]]] = []

    async def match(self, compound: str, app: str, stages: Sequence[Sequence[Node]]) -> None:
        return None

    def record(self, compound: str, app: str, stages: Sequence[Sequence[Node]]) -> None:
        self.recorded.append([[(node.kind, node.name) for node in stage] for stage in stages])


def tool_call(id: str, name: str) -> dict[str, object]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}


async def test_a_pattern_names_the_tools_whose_results_came_in() -> None:
    app = create_gateway("http://engine", transport=ScriptedModel(lambda _: "ok"))
    analyzer: Any = Records()
    app.state.gateway.analysis = LengthForecasts(analyzer, lambda: None, engines=EngineMessages({}))
    said: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    more: list[list[dict[str, object]]] = [
        [],
        [
            {"role": "assistant", "content": "", "tool_calls": [tool_call("1", "read_file"), tool_call("2", "run")]},
            {"role": "tool", "tool_call_id": "1", "content": "text"},
            {"role": "tool", "tool_call_id": "2", "content": "done"},
        ],
        [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "go on"}],
    ]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        for stage, messages in enumerate(more):
            said += messages
            tags = {"compound_id": "run", "compound_stage": stage, "compound_last": int(stage == 2)}
            body = {"model": "m", "messages": said, "vllm_xargs": tags}
            answer = await client.post("/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
    await app.state.gateway.aclose()
    model = (Kind.LLM, "m")
    assert analyzer.recorded == [
        [[model], [(Kind.TOOL, "read_file"), (Kind.TOOL, "run"), model], [(Kind.TOOL, "tools"), model]]
    ]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def command(pid: int) -> bytes:
    with suppress(OSError):  # it has ended since
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
