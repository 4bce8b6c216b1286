"""The gateway on a real port in front of a scripted engine: order, failures, shutdown."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ramify.serving.client import LLMClient
from ramify.serving.engine.contract import EngineKind, EngineSpec
from ramify.serving.engine.vllm import VllmEngine
from ramify.serving.errors import DeadlineInfeasible, EngineFailed, LLMUnavailable, ModelMissing
from ramify.serving.gateway import startup
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.gateway.settings import GatewaySettings
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.testing import Fault, ScriptedModel, ScriptedServer
from ramify.serving.types import ChatRequest, user
from ramify.serving.vllm_plugin.options import PluginOptions


class Turnstile:
    """An engine that answers nobody until it is opened, and then one after another, first come, first served."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.turn = asyncio.Lock()
        self.inside = asyncio.Semaphore(0)  # released once for each call that has come in

    async def __call__(self, request: ChatRequest) -> str:
        self.inside.release()
        await self.open.wait()
        async with self.turn:
            return request.messages[-1].content


@asynccontextmanager
async def gateway_over(
    model: ScriptedModel, home: Path, *, slots: int = 2
) -> AsyncIterator[tuple[LocalGateway, LLMClient]]:
    async with (
        ScriptedServer(model) as engine,
        LocalGateway(home=home, upstream=engine.base_url, slots=slots) as gateway,
        LLMClient(gateway.base_url) as client,
    ):
        yield gateway, client


async def until_waiting(gateway: LocalGateway, n: int) -> None:
    async with httpx.AsyncClient() as http, asyncio.timeout(20):
        while (await http.get(f"{gateway.base_url[:-3]}/health")).json()["waiting"] != n:
            pass


def ask(text: str) -> ChatRequest:
    return ChatRequest(user(text))


@pytest.mark.parametrize("compound", [False, True], ids=["own deadlines", "compound deadlines"])
@pytest.mark.parametrize("reverse", [False, True])
async def test_completion_order_follows_the_deadlines(tmp_path: Path, reverse: bool, compound: bool) -> None:
    engine = Turnstile()
    model = ScriptedModel(engine)
    async with gateway_over(model, tmp_path) as (gateway, client), asyncio.TaskGroup() as tasks:
        for i in range(2):
            tasks.create_task(client.chat(ask(f"first {i}")))
        for _ in range(2):
            await engine.inside.acquire()
        for i in range(20):
            left = 1000.0 + 10 * (20 - i if reverse else i)
            tags = SLOTags(compound_id=f"run-{i}", compound_deadline_s=left) if compound else SLOTags(left)
            tasks.create_task(client.chat(ask(f"{i}"), tags=tags))
        await until_waiting(gateway, 20)
        engine.open.set()
    finished = [r.messages[-1].content for r in model.finished]
    assert sorted(finished[:2]) == ["first 0", "first 1"]
    expected = [f"{i}" for i in range(20)]
    assert finished[2:] == (expected[::-1] if reverse else expected)
    assert model.peak == 2


async def test_a_gateway_of_a_run_tells_a_shared_gateway_the_deadlines(tmp_path: Path) -> None:
    async with (
        gateway_over(ScriptedModel(lambda _: "one two"), tmp_path / "shared") as (shared, _),
        LocalGateway(home=tmp_path / "run", upstream=shared.base_url) as own,
        LLMClient(own.base_url) as client,
        httpx.AsyncClient() as http,
    ):
        tags = SLOTags(slo_deadline_s=3000.0, compound_id="run", compound_deadline_s=6000.0)
        assert (await client.chat(ask("hi"), tags=tags)).text == "one two"
        seen = (await http.get(f"{shared.base_url}/ramify/requests", params={"compound_id": "run"})).json()
    [request] = seen["requests"]
    assert request["met"] is True
    assert request["deadline_s"] == pytest.approx(3000.0, abs=100.0)


async def test_answer_carries_its_ledger_and_the_gateway_records_it(tmp_path: Path) -> None:
    async with gateway_over(ScriptedModel(lambda _: "one two"), tmp_path) as (gateway, client):
        tags = SLOTags(slo_deadline_s=3000.0, compound_id="run", compound_deadline_s=6000.0, compound_last=1)
        result = await client.chat(ask("hi"), tags=tags)
        ledger = result.ledger
        assert ledger is not None
        assert 0 <= ledger.queue_s <= ledger.first_token_s <= ledger.total_s
        assert ledger.met is True
        assert ledger.deadline_s == pytest.approx(3000.0, abs=100.0)
        async with httpx.AsyncClient() as http:
            seen = (await http.get(f"{gateway.base_url}/ramify/requests", params={"compound_id": "run"})).json()
    assert [(r["outcome"], r["met"]) for r in seen["requests"]] == [("done", True)]
    assert [(c["calls"], c["done"], c["met"]) for c in seen["compounds"]] == [(1, 1, True)]


async def test_passed_deadline_is_refused_at_once(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _: "too late")
    async with gateway_over(model, tmp_path) as (_, client):
        with pytest.raises(DeadlineInfeasible, match="its deadline passed"):
            await client.chat(ask("hi"), tags=SLOTags(slo_deadline_s=0.0), deadline_s=30.0)
    assert not model.calls


@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.ERROR_500, Fault.CUT, Fault.GARBAGE])
async def test_failing_engine_is_retried_through_the_gateway(tmp_path: Path, fault: Fault) -> None:
    model = ScriptedModel(lambda _: "up again", faults=[fault, fault])
    async with gateway_over(model, tmp_path) as (_, client):
        assert (await client.chat(ask("hi"))).text == "up again"
    assert len(model.calls) == 3


async def test_dead_engine_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = ScriptedServer(lambda _: "fine")
        async with engine:
            gateway = await stack.enter_async_context(LocalGateway(home=tmp_path, upstream=engine.base_url))
            client = await stack.enter_async_context(LLMClient(gateway.base_url, retries=1))
            assert (await client.chat(ask("hi"))).text == "fine"
        with pytest.raises(LLMUnavailable, match=f"no engine at {engine.base_url}"):
            await client.chat(ask("hi"))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=gateway.base_url[:-3]))
        assert (await http.get("/ready")).status_code == 503
        assert (await http.get("/health")).status_code == 200


async def test_leaving_client_frees_its_slot_and_the_engine(tmp_path: Path) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def script(request: ChatRequest) -> str:
        if request.messages[-1].content == "next":
            return "served"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with gateway_over(ScriptedModel(script), tmp_path, slots=1) as (_, client):
        leaver = asyncio.create_task(client.chat(ask("stay")))
        await began.wait()
        leaver.cancel()
        async with asyncio.timeout(30):
            assert (await client.chat(ask("next"))).text == "served"
            await ended.wait()


async def test_stopping_gateway_tells_unanswered_clients(tmp_path: Path) -> None:
    engine = Turnstile()
    async with ScriptedServer(ScriptedModel(engine)) as server:
        async with LocalGateway(home=tmp_path, upstream=server.base_url, slots=1) as gateway:
            client = LLMClient(gateway.base_url, retries=0)
            calls = [asyncio.create_task(client.chat(ask(f"{i}"))) for i in range(3)]
            await until_waiting(gateway, 2)
        for call in calls:
            with pytest.raises(LLMUnavailable, match="the gateway is stopping"):
                await call
        await client.__aexit__(None, None, None)


async def test_missing_parts_are_reported_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path))
    with pytest.raises(ModelMissing, match="ramify models pull"):
        async with LocalGateway(home=tmp_path):
            pytest.fail("there are no weights")


async def test_taken_port_is_named(tmp_path: Path) -> None:
    async with ScriptedServer(lambda _: "") as other:
        port = int(other.base_url.split(":")[2].split("/")[0])
        with pytest.raises(EngineFailed, match=rf"cannot listen on 127.0.0.1:{port}: .* Choose another port"):
            async with LocalGateway(home=tmp_path, upstream=other.base_url, port=port):
                pytest.fail("the port is taken")


def test_policy_options_reach_the_scheduler_inside_vllm(tmp_path: Path) -> None:
    settings = GatewaySettings(home=tmp_path, model="some/model", policy_options={"goodput": "token"})
    make, _ = startup._maker(EngineSpec(EngineKind.VLLM), settings, tmp_path / "engine.sock")
    engine = make()
    assert isinstance(engine, VllmEngine)
    line = engine.arguments("folder", 1)
    options = PluginOptions.of(json.loads(line[line.index("--additional-config") + 1]))
    assert (options.policy, options.policy_options) == ("concord", {"goodput": "token"})


SERVE = """
import asyncio, sys
from pathlib import Path
from ramify.serving.engine.contract import EngineSpec
from ramify.serving.gateway.server import serve
from ramify.serving.gateway.settings import GatewaySettings
ready = lambda url: print(url, flush=True)
settings = GatewaySettings(home=Path("."), engines=(EngineSpec.parse(sys.argv[1]),), drain_s=30)
asyncio.run(serve(settings, ready=ready))
print("stopped", flush=True)
"""


async def served(engine: str, at: Path) -> tuple[asyncio.subprocess.Process, str]:
    """A process that serves what `engine` answers, and where."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVE, engine),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=at,
    )
    assert process.stdout is not None
    return process, (await process.stdout.readline()).decode().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_serve_lets_calls_finish_on_the_first_signal(tmp_path: Path, number: signal.Signals) -> None:
    engine = Turnstile()
    async with ScriptedServer(ScriptedModel(engine)) as server:
        process, url = await served(server.base_url, tmp_path)
        async with LLMClient(url, retries=0) as client:
            call = asyncio.create_task(client.chat(ask("last words")))
            await engine.inside.acquire()
            process.send_signal(number)
            engine.open.set()
            assert (await call).text == "last words"
        out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (out, err, process.returncode) == (b"stopped\n", b"", 0)


async def test_second_signal_breaks_off_remaining_calls(tmp_path: Path) -> None:
    engine = Turnstile()
    async with ScriptedServer(ScriptedModel(engine)) as server:
        process, url = await served(server.base_url, tmp_path)
        async with LLMClient(url, retries=0) as client, httpx.AsyncClient(trust_env=False) as http:
            call = asyncio.create_task(client.chat(ask("never")))
            await engine.inside.acquire()
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while (await http.get(f"{url[:-3]}/ready")).status_code != 503:
                    pass
            process.send_signal(signal.SIGTERM)
            with pytest.raises(LLMUnavailable, match="the gateway is stopping"):
                await asyncio.wait_for(call, 20)
        out, err = await asyncio.wait_for(process.communicate(), 20)
    assert (out, err, process.returncode) == (b"stopped\n", b"", 0)
