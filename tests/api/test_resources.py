"""Which backend a runtime opens."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

import ramify
from ramify import Runtime, Sandbox, llm, step, workflow
from ramify.fork_engine.types import Snapshot
from ramify.resources import without_secrets
from ramify.runtime.errors import RunError, RunFailed
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.serving.client import LLMClient
from ramify.serving.errors import LLMUnavailable
from ramify.serving.testing import ScriptedModel, ScriptedServer

MADE: list[str] = []
Begin = Callable[[LLMClient], Awaitable[str]]


class Mine(CopyBackend):
    """Derived from one of Ramify's own, and still called "copy"."""

    async def fork(self, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
        MADE.append("fork")
        return await super().fork(snapshot, spec, n)

    async def materialise(self, snapshot: Snapshot, spec: WorldSpec) -> World:
        MADE.append("materialise")
        return await super().materialise(snapshot, spec)


@step
async def look(sandbox: Sandbox) -> str:
    return (await sandbox.run("echo seen", check=True)).stdout


@workflow
async def looking() -> str:
    return await look()


async def test_custom_backend_is_used_under_any_name(home: Path) -> None:
    MADE.clear()
    async with Runtime(home=home, sandbox=Mine) as runtime:
        assert await runtime.run(looking) == "seen\n"
    assert MADE


def test_graph_uses_the_sandbox_of_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from langgraph.graph import START, StateGraph

    def place(state: dict[str, str], sandbox: ramify.SyncSandbox) -> dict[str, str]:
        return {"place": str(sandbox.path)}

    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    graph = StateGraph(dict)
    graph.add_node(place)
    graph.add_edge(START, "place")
    with ramify.compile(graph, home=home) as app:
        assert app.invoke({})["place"].startswith(str(home))


@workflow
async def asks() -> int:
    return (await llm.choose("Anybody?", ["yes", "no"])).best


async def test_unreachable_model_address_fails_before_any_call(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, and not listening: a connection is refused
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with Runtime(home=tmp_path, sandbox="copy", base_url=address) as runtime:
            with pytest.raises(RunFailed, match=r"no server at http://127\.0\.0\.1:.*--base-url"):
                await runtime.run(asks)
            assert await runtime.llm_calls() == []


@step(effect="pure")
async def need_luck() -> None:
    if "LUCK" not in os.environ:  # what resumes loads this file anew
        raise ConnectionError("no luck")


@workflow
async def says() -> str:
    await need_luck()
    return (await llm.chat("who?")).text


@pytest.fixture
async def began_with(home: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """A run that a program began with a client of its own, and that failed before it asked anything."""

    async def begin(client: LLMClient) -> str:
        async with Runtime(home=home, sandbox="copy", llm=client) as runtime:
            with pytest.raises(RunFailed, match="no luck"):
                await runtime.run(says)
            monkeypatch.setenv("LUCK", "now")
            return str(runtime.last_run_id)

    return begin


async def test_resume_asks_the_server_of_the_programs_client(home: Path, began_with: Begin) -> None:
    model = ScriptedModel(lambda request: f"{request.model} says {request.messages[-1].content}")
    async with ScriptedServer(model) as server:
        async with LLMClient(server.base_url, model="mine") as client:
            run = await began_with(client)
        async with Runtime(home=home, sandbox="copy") as runtime:
            assert await runtime.resume(run) == "mine says who?"


async def test_stored_client_settings_hold_no_secret(
    home: Path, began_with: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMIFY_BASE_URL", "http://127.0.0.1:2/v1")  # for runs that named no server
    async with LLMClient("http://ada:geheim@127.0.0.1:1/v1?key=geheim", api_key="geheim", model="mine") as client:
        run = await began_with(client)
    async with Runtime(home=home, sandbox="copy") as runtime:
        settings = (await runtime.record(run)).settings
        assert (settings.client_url, settings.client_model) == ("http://127.0.0.1:1/v1", "mine")
        assert "geheim" not in str(settings)
        with pytest.raises(RunFailed, match=r"no server at http://127\.0\.0\.1:1:"):
            await runtime.resume(run)


@pytest.mark.parametrize("named", ["by hand", "by the environment"])
async def test_stored_address_holds_no_secret(home: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """Neither in the database nor in what is said; a process that is not told the address asks for it."""
    async with ScriptedServer(ScriptedModel(lambda _: "it is me")) as server:
        whole = server.base_url.replace("://", "://ada:geheim@") + "?key=geheim"
        shown = server.base_url.replace("://", "://***@")
        given = {"base_url": whole} if named == "by hand" else {}
        if not given:
            monkeypatch.setenv("RAMIFY_BASE_URL", whole)
        async with Runtime(home=home, sandbox="copy", **given) as runtime:
            with pytest.raises(RunFailed, match="no luck"):
                await runtime.run(says)
            run = str(runtime.last_run_id)
            assert (await runtime.record()).settings.base_url == shown
        monkeypatch.setenv("LUCK", "now")
        monkeypatch.delenv("RAMIFY_BASE_URL", raising=False)
        async with Runtime(home=home, sandbox="copy") as runtime:
            with pytest.raises(
                RunFailed, match=r"\*\*\*@127.*not stored: name the whole address again.*--base-url"
            ) as failed:
                await runtime.resume(run)
            assert isinstance(failed.value.__cause__, LLMUnavailable)
        async with Runtime(home=home, sandbox="copy", base_url=whole) as runtime:
            assert await runtime.resume(run) == "it is me"
            assert not (await runtime.record(run)).settings.mixed
    assert [path.name for path in home.rglob("*") if path.is_file() and b"geheim" in path.read_bytes()] == []


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1", "https://model.test", "https://model.test/@us/v1"])
def test_address_without_secrets_is_stored_unchanged(address: str) -> None:
    assert without_secrets(address) == address


def test_address_with_an_ambiguous_password_is_refused_and_not_shown(home: Path) -> None:
    with pytest.raises(RunError, match="%2F") as refused:
        Runtime(home=home, base_url="http://ada:ge/heim@model.test/v1")
    assert "heim" not in str(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "ada:geheim@model.test/v1",  # the user is taken for the scheme
        "http:ada:geheim@model.test/v1",
        "http://ada:geheim@[::1/v1",
        "http://ada:geheim\N{CARE OF}@model.test/v1",  # its normal form holds a slash
    ],
)
def test_unreadable_address_is_refused_and_not_shown(home: Path, address: str) -> None:
    with pytest.raises(RunError, match="model's address") as refused:
        Runtime(home=home, base_url=address)
    assert "geheim" not in str(refused.value)
    assert refused.value.__cause__ is None


class Embedded:
    """In place of the gateway before the embedded engine."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def __call__(self, **_: object) -> Embedded:
        return self

    async def __aenter__(self) -> Embedded:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_running_embedded_model_does_not_replace_an_unknown_client(
    home: Path, began_with: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await began_with(cast(LLMClient, object()))
    async with ScriptedServer(ScriptedModel(lambda _: "it is me")) as server:
        monkeypatch.setattr("ramify.serving.gateway.server.LocalGateway", Embedded(server.base_url))
        async with Runtime(home=home, sandbox="copy") as runtime:
            assert await runtime.run(says) == "it is me"
            with pytest.raises(RunFailed, match="whose server is not known"):
                await runtime.resume(run)


async def test_resume_after_an_unknown_client_needs_a_server(home: Path, began_with: Begin) -> None:
    run = await began_with(cast(LLMClient, object()))
    async with Runtime(home=home, sandbox="copy") as runtime:
        with pytest.raises(RunFailed, match=r"whose server is not known.*--base-url.*Runtime\(llm=") as failed:
            await runtime.resume(run)
        assert isinstance(failed.value.__cause__, LLMUnavailable)
    async with (
        ScriptedServer(ScriptedModel(lambda _: "it is me")) as server,
        Runtime(home=home, sandbox="copy", base_url=server.base_url) as runtime,
    ):
        assert await runtime.resume(run) == "it is me"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"check_reuse": 2.0}, "check_reuse=2.0 is not a share"),
        ({"check_reuse": float("nan")}, "check_reuse=nan is not a share"),
        ({"llm": LLMClient("http://model.test/v1"), "api_key": "k"}, "leave one out"),
    ],
)
def test_an_argument_of_a_runtime_without_effect_is_refused(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        Runtime(home=tmp_path, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"home": 3},
        {"database": b"runs.db"},
        {"remote": 3},
        {"base_url": 3},
        {"api_key": 3},
        {"model": ["m"]},
        {"fleet": True},
        {"observer": "print"},
        {"clock": 0.0},
        {"reuse_answers": "no"},
    ],
    ids=str,
)
def test_an_argument_of_another_type_is_named(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(TypeError, match=rf"Runtime\({name}=.*\): (give|write)"):
        Runtime(**given)


async def test_a_backend_that_is_none_is_refused_when_the_runtime_is_opened(home: Path) -> None:
    with pytest.raises(TypeError, match=r"Runtime\(sandbox=3\): give one of namespaces, docker, copy"):
        async with Runtime(home=home, sandbox=cast(Any, 3)):
            pass


def test_a_share_that_is_no_number_is_refused(home: Path) -> None:
    with pytest.raises(RunError, match="check_reuse='all' is not a share"):
        Runtime(home=home, check_reuse=cast(Any, "all"))
