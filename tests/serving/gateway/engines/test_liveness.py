"""An engine whose loop gets stuck on a call: the next process does all other calls, but not that one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import httpx
import pytest

from ramify.serving.gateway.engines.liveness import ConstrainedCalls
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.supervisor import SupervisedEngine, until_hung
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.http.app import create_gateway
from ramify.serving.gateway.records.calls import Call
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.testing import ScriptedModel
from tests.serving.gateway.engines.test_constraint_checks_budget import CONSTANTS, bomb, formatted
from tests.serving.gateway.engines.test_supervisor_restarts import Lives

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
AMBIGUOUS = {
    "grammar": "root ::= (" + " | ".join(["[a-z]"] * 200) + ")+"
}  # in the budget, and 200^n ways of n letters
SHAPED = formatted({"enum": ["a", "b"]})


class Loop(ScriptedModel):
    """Works on all calls in one loop, as llama.cpp does: over a call with a certain grammar it stands still for ever,
    whether that one's client is there or not. Its server says that it is well all the time."""

    def __init__(self) -> None:
        super().__init__(lambda _: "done")
        self.stuck = False

    async def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        if path == "/health":
            return await super().respond("GET", "/v1/models", headers, b"")
        self.stuck = self.stuck or b'"grammar"' in body
        if self.stuck:
            await asyncio.Event().wait()
        return await super().respond(method, path, headers, body)


@asynccontextmanager
async def looping(slots: int = 1) -> AsyncIterator[tuple[httpx.AsyncClient, SupervisedEngine, list[Loop]]]:
    made: list[Loop] = []

    def models() -> Any:
        while True:
            made.append(Loop())
            yield made[-1]

    lives = Lives(models())
    async with SupervisedEngine(
        0, lives.make, EngineTraits(llama_cpp=True), queue=slots - 1, restart_s=1.2
    ) as engine:
        app = create_gateway([engine.replica])
        engine.changed = app.state.gateway.admission.decide
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway/v1", timeout=None) as client:
            yield client, engine, made


async def ask(client: httpx.AsyncClient, **more: object) -> httpx.Response:
    async with asyncio.timeout(100):
        return await client.post("/chat/completions", json={**ASK, **more})


async def until_stuck(models: list[Loop], life: int = 0) -> None:
    async with asyncio.timeout(100):
        while len(models) <= life or not models[life].stuck:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_blocking_call_gets_an_error_and_all_others_an_answer() -> None:
    async with looping() as (client, engine, models):
        bad = asyncio.create_task(ask(client, **AMBIGUOUS))
        await until_stuck(models)
        good = [asyncio.create_task(ask(client, **more)) for more in ({}, SHAPED)]
        error = (await bad).json()["error"]
        assert ((await bad).status_code, error["code"], error["param"]) == (400, "shape_too_costly", "grammar")
        assert [(await one).status_code for one in good] == [200, 200]
        assert engine.replica.restarts == 1


async def test_client_that_leaves_a_stuck_engine_delays_nobody() -> None:
    """The slot is free at once, and the loop is not."""
    async with looping() as (client, engine, models):
        bad = asyncio.create_task(ask(client, **AMBIGUOUS))
        await until_stuck(models)
        bad.cancel()
        await asyncio.gather(bad, return_exceptions=True)
        for more in ({}, SHAPED):
            assert (await ask(client, **more)).status_code == 200, "it was in an engine that stood still, and not why"
        assert engine.replica.restarts == 1


async def test_stuck_engine_is_restarted_even_if_nobody_waits() -> None:
    async with looping() as (client, engine, models):
        bad = asyncio.create_task(ask(client, **AMBIGUOUS))
        await until_stuck(models)
        bad.cancel()
        await asyncio.gather(bad, return_exceptions=True)
        async with asyncio.timeout(100):
            while engine.replica.restarts == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await ask(client)).status_code == 200


async def test_with_two_constrained_calls_neither_is_blamed_before_the_second_hang() -> None:
    async with looping(slots=2) as (client, engine, models):
        good = asyncio.create_task(ask(client, **SHAPED))
        assert (await good).status_code == 200
        bad = asyncio.create_task(ask(client, **AMBIGUOUS))
        await until_stuck(models)
        other = asyncio.create_task(ask(client, **SHAPED))
        assert (await bad).json()["error"]["code"] == "shape_too_costly"
        assert (await other).status_code in (200, 400)
        assert (await ask(client)).status_code == 200
        assert 1 <= engine.replica.restarts <= 2


@pytest.mark.parametrize("llama_cpp", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_constrained_call_gets_the_time_of_a_whole_answer(llama_cpp: bool, stream: bool) -> None:
    """A token now and then keeps a stream alive, and each may cost everybody seconds."""
    few, cut = "one two three four five six", "word " * 600  # the clock does not count the time of a busy machine
    texts = iter([cut if llama_cpp and stream else few, few])
    model = ScriptedModel(lambda _: next(texts), token_s=0.1, delay_s=0.0 if stream else 60.0 if llama_cpp else 0.5)
    slow = Upstream("http://engine", transport=model, hang_s=0.3 if stream else 3.0, whole_s=0.3, loops=llama_cpp)
    if not stream:
        slow.whole_s = 0.3
    app = create_gateway([Replica(0, 1, slow, EngineTraits(llama_cpp=llama_cpp))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway/v1") as client:
        said = await ask(client, stream=stream, **SHAPED)
        assert ("shape_too_costly" in said.text) is llama_cpp
        if stream:
            assert ("[DONE]" in said.text) is not llama_cpp
            assert "[DONE]" in (await ask(client, stream=True)).text, "it has no shape"


def a_call(at: int) -> Call:
    return Call(at, "/chat/completions", SLOTags(), 0.0, 0.0, None, None)


def test_which_call_is_blamed() -> None:
    shaped, one, two = ConstrainedCalls(), a_call(1), a_call(2)
    with shaped.inside(one):
        pass
    shaped.turned(shaped.asking())
    with shaped.inside(two):
        pass
    assert shaped.blame(two, AMBIGUOUS) is not None, "it was alone since the loop turned"
    assert shaped.blame(one, AMBIGUOUS) is None, "it had left before"
    with shaped.inside(one):
        shaped.turned(shaped.asking())
        with shaped.inside(two):
            pass
    assert shaped.blame(one, AMBIGUOUS) is None
    error = shaped.blame(one, AMBIGUOUS)
    assert error is not None and (error.status, error.param) == (400, "grammar"), "twice is enough"


def test_call_that_left_during_the_check_may_still_block_the_loop() -> None:
    shaped, one = ConstrainedCalls(), a_call(1)
    with shaped.inside(one):
        gone = shaped.asking()
    shaped.turned(gone)
    assert shaped.suspected
    shaped.turned(shaped.asking())
    assert not shaped.suspected


@pytest.mark.parametrize(("loops", "shape"), [(False, True), (True, False), (True, True)])
async def test_metrics_and_not_health_show_whether_the_loop_turns(loops: bool, shape: bool) -> None:
    """They are asked where a call with a shape may hold it up, also after it has left."""
    asked: list[str] = []

    async def engine(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/metrics":
            await asyncio.Event().wait()
        return httpx.Response(200)

    upstream = Upstream("http://engine", transport=httpx.MockTransport(engine), loops=loops)
    with upstream.constrained.inside(a_call(1)) if shape else nullcontext():
        pass
    watch = asyncio.create_task(until_hung(upstream, "m", 0.3, 1))
    if loops and shape:
        assert "did not say that it is well" in await asyncio.wait_for(watch, 60)
    else:
        while len(asked) < 8:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not watch.done()
        watch.cancel()
    assert set(asked) == {"/metrics" if loops and shape else "/health"}


@pytest.mark.parametrize(("silent_s", "armed"), [(4.0, False), (6.0, True)])
@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_leaves_a_silent_engine_makes_it_suspect(
    silent_s: float, armed: bool, stream: bool
) -> None:
    """Of the engine of one queue that vLLM is: nobody else may wait for it, and its server says that it is well."""
    came = asyncio.Event()

    async def engine(_: httpx.Request) -> httpx.Response:
        came.set()
        await asyncio.Event().wait()
        return httpx.Response(200)

    upstream = Upstream("http://engine", transport=httpx.MockTransport(engine))

    async def call() -> None:
        if stream:
            async for _ in upstream.stream("/chat/completions", b"{}"):
                pass
        else:
            await upstream.post("/chat/completions", b"{}")

    task = asyncio.create_task(call())
    await came.wait()
    start = upstream.awake.time
    upstream.awake.time = lambda: start() + silent_s  # type: ignore[method-assign]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert upstream.suspect is armed


@asynccontextmanager
async def served(*words: str) -> AsyncIterator[str]:
    """`ramify serve` with the embedded engine: its address."""
    line = [sys.executable, "-m", "ramify.cli.main", "serve", "--port", "0", "--no-analyzer", *words]
    process = await asyncio.create_subprocess_exec(*line, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        url = ""
        while not url.startswith("http://"):
            url = (await asyncio.wait_for(process.stderr.readline(), 100)).decode().split()[-1]
        yield url
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.model
@pytest.mark.usefixtures("weights")
async def test_embedded_engine_answers_others_whatever_one_call_asks() -> None:
    """One request of 325 kB, whose client left, stopped it for everybody and for ever."""
    async with served() as url, httpx.AsyncClient(base_url=url, timeout=100, trust_env=False) as client:
        patterns = ("^(a{1000}){1000}$", "^(a?){1000}$", "^((a?){40}){40}$", "^" + "a{0,1999}" * 500 + "$")
        bad: list[object] = [{"anyOf": CONSTANTS}, bomb(40, {"type": "integer"}), bomb(900, {"type": "integer"})]
        bad += [{"type": "string", "pattern": text} for text in patterns]
        for schema in bad:
            leaver = asyncio.create_task(ask(client, **formatted(schema)))
            await asyncio.wait({leaver}, timeout=3)
            leaver.cancel()
            await asyncio.gather(leaver, return_exceptions=True)
        assert (await ask(client, dry_multiplier=1, dry_sequence_breakers=[str(at) for at in range(5000)])).is_error
        assert (await ask(client)).status_code == 200
        assert (await ask(client, **formatted({"enum": ["yes", "no"]}))).status_code == 200
        assert (await ask(client, **formatted({"enum": [f"v{at}" for at in range(1000)]}))).status_code == 200


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("weights")
@pytest.mark.parametrize("stays", [False, True])
async def test_costs_that_no_budget_foresees_end_in_a_restart(stays: bool) -> None:
    words = ("--hang-restart", "10")
    async with served(*words) as url, httpx.AsyncClient(base_url=url, timeout=200, trust_env=False) as client:
        bad = asyncio.create_task(ask(client, max_tokens=200, **AMBIGUOUS))
        await asyncio.wait({bad}, timeout=3)
        if not stays:
            bad.cancel()
        assert (await ask(client)).status_code == 200
        if stays:
            assert (await bad).json()["error"]["code"] == "shape_too_costly"
