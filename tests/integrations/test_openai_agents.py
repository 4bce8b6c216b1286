"""Sessions of the OpenAI Agents SDK, and an agent that its Runner runs, on worlds."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents.sandbox", reason="needs openai-agents: pip install 'ramify[openai-agents]'")

import httpx
from agents import RunConfig, Runner
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.sandbox import ExecTimeoutError, Manifest, SandboxAgent, SandboxRunConfig, WorkspaceReadNotFoundError
from agents.sandbox.entries import File
from agents.sandbox.errors import ExposedPortUnavailableError
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from ramify import paths
from ramify.integrations.openai_agents import WorldSandboxClient, WorldSandboxOptions
from ramify.worlds.references import Kind, References


@pytest.fixture
def options(repo: Path, sandbox: str, tmp_path: Path) -> WorldSandboxOptions:
    return WorldSandboxOptions(folder=str(repo), sandbox=sandbox, home=str(tmp_path / "home"))


async def output(session: Any, command: str) -> str:
    result = await session.exec(command)
    return str((result.stdout + result.stderr).decode())


async def test_a_session_runs_reads_and_writes(options: WorldSandboxOptions, repo: Path) -> None:
    client = WorldSandboxClient()
    manifest = Manifest(entries={"notes.txt": File(content=b"a note")})
    async with await client.create(manifest=manifest, options=options) as session:
        assert await output(session, "python3 main.py; cat notes.txt") == "hello\na note"
        await session.write(Path("deep/file.bin"), io.BytesIO(b"\0\xff"))
        assert (await session.read(Path("deep/file.bin"))).read() == b"\0\xff"
        assert sorted(Path(entry.path).name for entry in await session.ls("."))[-1] == "notes.txt"
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("missing"))
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 60", timeout=0.5)
        await client.delete(session)
    assert [path.name for path in repo.iterdir()] == ["main.py"]


async def test_a_stored_session_resumes_with_its_files(options: WorldSandboxOptions) -> None:
    client = WorldSandboxClient()
    async with await client.create(options=options) as session:
        await session.exec("echo kept > kept.txt")
        stored = client.serialize_session_state(session.state)
    resumed = await WorldSandboxClient().resume(client.deserialize_session_state(stored))
    async with resumed as session:
        assert await output(session, "cat kept.txt") == "kept\n"
        await client.delete(session)


async def test_a_port_that_is_exposed(options: WorldSandboxOptions) -> None:
    if options.sandbox == "copy":
        pytest.skip("a port inside is a port of this machine")
    client = WorldSandboxClient()
    options = options.model_copy(update={"exposed_ports": (8123,)})
    async with await client.create(options=options) as session:
        await session.exec("nohup python3 -m http.server 8123 >/dev/null 2>&1 &")
        ready = "until (: < /dev/tcp/127.0.0.1/8123) 2>/dev/null; do sleep 0.05; done"
        await session.exec("bash", "-c", ready, shell=False)
        endpoint = await session.resolve_exposed_port(8123)
        async with httpx.AsyncClient(trust_env=False) as asking:
            got = await asking.get(f"{endpoint.url_for('http')}/main.py")
        assert got.text == "print('hello')\n" and endpoint == await session.resolve_exposed_port(8123)
        with pytest.raises(ExposedPortUnavailableError):
            await session.resolve_exposed_port(9)
        await client.delete(session)


async def test_the_workspace_travels_as_an_archive(options: WorldSandboxOptions) -> None:
    client = WorldSandboxClient()
    async with await client.create(options=options) as one:
        await one.exec("echo more > more.txt; ln -s more.txt link")
        archive = await one.persist_workspace()
        async with await client.create(options=options.model_copy(update={"folder": None})) as two:
            await two.hydrate_workspace(archive)
            assert await output(two, "ls; cat link") == "link\nmain.py\nmore.txt\nmore\n"
            await client.delete(two)
        archive.close()
        await client.delete(one)


async def test_fork_and_restore(options: WorldSandboxOptions) -> None:
    client = WorldSandboxClient()
    async with await client.create(options=options) as session:
        inner: Any = session._inner
        kept = await inner.snapshot()
        await session.exec("echo more > more.txt")
        (fork,) = await client.fork(session)
        async with fork:
            await fork.exec("rm main.py")
            await inner.restore(kept)
            assert (await output(session, "ls"), await output(fork, "ls")) == ("main.py\n", "more.txt\n")
            await client.delete(fork)
        await client.delete(session)


async def test_a_fork_has_a_world_that_keeps_its_state(options: WorldSandboxOptions, tmp_path: Path) -> None:
    client = WorldSandboxClient()
    async with await client.create(options=options) as session:
        await session.exec("echo more > more.txt")
        (fork,) = await client.fork(session)
        stored = client.serialize_session_state(fork.state)
        await client.delete(session)
    (kept,) = References(paths.references(tmp_path / "home")).all(Kind.WORLD)
    assert kept.name == fork.state.world
    client = WorldSandboxClient()
    async with await client.resume(client.deserialize_session_state(stored)) as fork:
        assert await output(fork, "ls") == "main.py\nmore.txt\n"
        await client.delete(fork)


class Scripted(Model):
    """Answers with one shell command after the other, and then with text."""

    def __init__(self, *commands: str) -> None:
        self.commands = list(commands)
        self.seen: list[Any] = []

    async def get_response(self, *rest: Any, **more: Any) -> ModelResponse:
        self.seen.append(more["input"])
        if self.commands:
            arguments = f'{{"cmd": "{self.commands.pop(0)}"}}'
            number = str(len(self.seen))
            call = ResponseFunctionToolCall(
                type="function_call", name="exec_command", call_id=number, id=number, arguments=arguments
            )
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = ResponseOutputText(type="output_text", text="done", annotations=[])
        said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[said], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **more: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def test_the_runner_runs_a_sandbox_agent(options: WorldSandboxOptions) -> None:
    model = Scripted("sed -i s/hello/bye/ main.py", "python3 main.py")
    agent = SandboxAgent(name="Fixer", instructions="Say bye.", model=model)
    config = RunConfig(sandbox=SandboxRunConfig(client=WorldSandboxClient(), options=options), tracing_disabled=True)
    result = await Runner.run(agent, "go", run_config=config)
    assert result.final_output == "done"
    assert "bye" in str(model.seen[-1][-1]["output"])
