"""verifiers' contract of a runtime, beside its own `subprocess`; its agents and environments in worlds."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("verifiers.v1", reason="needs verifiers: pip install 'ramify[verifiers]'")

import verifiers.v1 as vf
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import SubprocessRuntime

from ramify.integrations.verifiers import WorldConfig, WorldEnvConfig, WorldRuntime, provision
from ramify.sandboxes import doctor
from ramify.sandboxes.egress.connection_log import Outcome

PLUGIN = '''
import verifiers.v1 as vf
from ramify.integrations.verifiers import WorldEnv

PROGRAM = """
import json, subprocess, sys, urllib.request
endpoint, secret, prompt = sys.argv[1:]
messages = [{"role": "user", "content": prompt}]
while True:
    body = json.dumps({"model": "scripted", "messages": messages}).encode()
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    asked = urllib.request.Request(f"{endpoint}/chat/completions", body, headers)
    reply = json.load(urllib.request.urlopen(asked, timeout=60))["choices"][0]["message"]["content"]
    messages.append({"role": "assistant", "content": reply})
    if not reply.startswith("$ "):
        break
    done = subprocess.run(reply[2:], shell=True, capture_output=True, text=True)
    messages.append({"role": "user", "content": done.stdout + done.stderr})
"""


class ShellHarness(vf.Harness[vf.HarnessConfig]):
    async def setup(self, runtime):
        await runtime.write("/tmp/agent.py", PROGRAM.encode())

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        return await runtime.run_program(["python3", "/tmp/agent.py", endpoint, secret, data.prompt], {})


class WordTask(vf.Task[vf.TaskData]):
    async def setup(self, trace, runtime):
        await runtime.write("word.txt", b"hello")

    def runtime_env(self):
        return {"SUFFIX": "world"}

    @vf.reward
    async def wrote(self, runtime) -> float:
        return float((await runtime.read("answer.txt")).decode().strip() == "hello world")


class WordTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        return [WordTask(vf.TaskData(idx=0, prompt="join the words"), self.config.task)]


__all__ = ["WordTaskset", "ShellHarness", "WorldEnv"]
'''

ASK = """
import sys, urllib.request
print(urllib.request.urlopen(urllib.request.Request(sys.argv[1], b'{"messages": []}'), timeout=60).read().decode())
"""


@pytest.fixture
def world_config(sandbox: str, repo: Path, tmp_path: Path) -> WorldConfig:
    unbounded = sandbox == "copy"  # no broker: its worlds have the host's own network
    return WorldConfig(folder=str(repo), sandbox=sandbox, home=str(tmp_path / "home"), network=unbounded)


@pytest.fixture
async def runtime(world_config: WorldConfig) -> AsyncIterator[WorldRuntime]:
    async with provision(world_config) as made:
        yield made


@pytest.fixture
def brokered(tmp_path: Path) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)


@pytest.fixture
def word_taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "word_v1.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    return "word-v1"


@pytest.fixture
def model() -> Iterator[EvalClientConfig]:
    """A server that answers with one command, and then with a word."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            turn = sum(message["role"] == "assistant" for message in asked["messages"])
            said = ["$ echo $(cat word.txt) $SUFFIX > answer.txt; cat answer.txt", "done"][turn]
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            body = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}
            data = json.dumps({**body, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield EvalClientConfig(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key_var="NO_KEY")
        server.shutdown()
        thread.join()


@asynccontextmanager
async def made(kind: str, config: WorldConfig) -> AsyncIterator[Any]:
    runtime = SubprocessRuntime(vf.SubprocessConfig()) if kind == "subprocess" else WorldRuntime(config)
    try:
        await runtime.start()
        yield runtime
    finally:
        await runtime.stop()


@pytest.mark.parametrize("kind", ["subprocess", "ramify"])
async def test_the_contract(kind: str, world_config: WorldConfig) -> None:
    async with made(kind, world_config) as runtime:
        view = runtime.with_env({"WORD": "view"})
        for one, word in ((runtime, ""), (view, "view")):
            told = await one.run(["sh", "-c", "echo $WORD $OWN; echo error >&2; exit 3"], {"OWN": "own"})
            assert (told.exit_code, told.stdout.split(), told.stderr) == (3, [*word.split(), "own"], "error\n")
        data = bytes(range(256)) * 5
        await runtime.write("deep/data.bin", data)
        assert await runtime.read("deep/data.bin") == data
        assert await runtime.read("deep/data.bin", max_bytes=len(data)) == data
        with pytest.raises(SandboxError, match="over the 10 byte limit"):
            await runtime.read("deep/data.bin", max_bytes=10)
        with pytest.raises(SandboxError, match="missing"):
            await runtime.read("missing", max_bytes=10)
        assert (await runtime.run(["wc", "-c", "deep/data.bin"], {})).stdout.split()[0] == "1280"
        assert runtime.supports_live_processes
        process = await runtime.open_process(["sh", "-c", "read line; echo got $line; exec sleep 60"], {})
        await process.write(b"a line\n")
        assert await anext(process.stdout) == b"got a line\n" and await process.poll() is None
        await process.terminate()
        assert await process.wait() != 0 and await process.poll() is not None
        assert await runtime.alive()
    assert runtime.stopped


async def test_what_is_not_there(runtime: WorldRuntime, world_config: WorldConfig) -> None:
    with pytest.raises(SandboxError, match="missing"):
        await runtime.read("missing")
    with pytest.raises(SandboxError, match="write '/proc"):
        await runtime.write("/proc/none", b"")
    assert (await runtime.run(["no-such-program"], {})).exit_code == 127
    with pytest.raises(SandboxError):
        await runtime.with_user("no-such-user").run(["true"], {})
    await runtime.stop()
    await runtime.stop()
    assert not await runtime.alive()
    with pytest.raises(SandboxError, match="was not started, or was stopped"):
        await runtime.run(["true"], {})
    for changed, said in (
        ({"folder": "/no/such/folder"}, "/no/such/folder"),
        ({"allow": ["a.org"], "network": True}, "network=True"),
        ({"block": ["a.org"], "network": False}, "give allow instead of block"),
    ):
        with pytest.raises(SandboxError, match=said):
            async with provision(WorldConfig(**{**world_config.model_dump(exclude={"allow", "block"}), **changed})):
                pass


@pytest.mark.usefixtures("brokered")
async def test_a_server_inside_is_reached_from_outside(runtime: WorldRuntime) -> None:
    await runtime.run_background(["python3", "-u", "-m", "http.server", "8000"], {}, "server.log")
    url = await runtime.expose(8000)
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=3)) as client:
        while True:
            try:
                found = await client.get(f"{url}/main.py")
                break
            except httpx.TransportError:
                assert b"Traceback" not in await runtime.read("server.log")
    assert found.text == "print('hello')\n"


async def test_fork_restore_and_a_start_from_a_snapshot(runtime: WorldRuntime, world_config: WorldConfig) -> None:
    await runtime.write("note", b"kept")
    kept = await runtime.snapshot()
    (fork,) = await runtime.fork()
    await fork.write("note", b"the fork's")
    await runtime.run(["rm", "note"], {})
    runtime._uv_interpreters["script"] = "python"
    await runtime.restore(kept)
    assert await runtime.read("note") == b"kept" and not runtime._uv_interpreters
    assert await fork.read("note") == b"the fork's"
    await fork.stop()
    async with provision(world_config.model_copy(update={"folder": None, "snapshot": kept})) as again:
        assert await again.read("note") == b"kept"


@pytest.mark.usefixtures("brokered")
async def test_an_agent_of_verifiers_in_a_world(
    runtime: WorldRuntime, word_taskset: str, model: EvalClientConfig
) -> None:
    config = WorldEnvConfig(taskset={"id": word_taskset}).agent
    agent_config = config.model_copy(update={"model": "scripted", "client": model})
    harness = vf.harness_config_type(word_taskset)(id=word_taskset)
    (task,) = vf.load_taskset(vf.taskset_config_type(word_taskset)(id=word_taskset)).load()
    before = await runtime.snapshot()
    async with vf.Agent(agent_config.model_copy(update={"harness": harness})) as agent:
        forks = [runtime, *await runtime.fork()]
        for box in forks:
            trace = await agent.run(task, runtime=box)
            assert (trace.ok, trace.reward, trace.errors, trace.num_turns) == (True, 1.0, [], 2)
            assert trace.agent.runtime.id.startswith("ramify-") and trace.agent.runtime.borrowed
            recorded = vf.WireTrace.model_validate_json(trace.model_dump_json())
            assert recorded.agent.runtime == trace.agent.runtime, "a reader of traces knows the runtime"
    await forks[1].stop()
    await runtime.restore(before)
    assert (await runtime.run(["ls"], {})).stdout == "main.py\n"


@pytest.mark.usefixtures("brokered")
async def test_an_environment_of_verifiers_in_worlds(
    word_taskset: str, model: EvalClientConfig, world_config: WorldConfig
) -> None:
    config = vf.env_config_type(word_taskset)(taskset={"id": word_taskset}, world=world_config)
    environment = vf.load_environment(config)
    (task,) = environment.taskset.load()
    async with environment.serving():
        episode = await environment.run_episode(task, vf.ModelContext(model="scripted", client=model))
    assert (episode.ok, episode.errors, [trace.reward for trace in episode.traces]) == (True, [], [1.0])


@pytest.mark.usefixtures("brokered")
async def test_the_policy_of_a_task(world_config: WorldConfig, word_taskset: str, model: EvalClientConfig) -> None:
    """Every host before the agent starts; then those that the task allows, and the model's."""
    (task,) = vf.load_taskset(vf.taskset_config_type(word_taskset)(id=word_taskset)).load()
    bounded = task.with_data(network_allow=["pypi.org", "https://example.org/path", "10.0.0.0/8", "[fd00::7]:5432"])
    async with provision(world_config, bounded) as runtime:
        await runtime.prepare_setup()
        await runtime.run(["true"], {})
        assert runtime.egress == ["*:*"]
        assert runtime.host_url(f"{model.base_url}/x") == f"{model.base_url}/x"
        await runtime.prepare_execution([model.base_url, "http://tools.example:81/mcp"])
        port = httpx.URL(model.base_url).port
        own, tools = f"127.0.0.1:{port}", "tools.example:81"
        assert runtime.egress == [own, tools, "pypi.org:*", "example.org:443", "10.0.0.0/8:*", "[fd00::7]:5432"]
        await runtime.write("/tmp/ask.py", ASK.encode())
        asked = await runtime.run(["python3", "/tmp/ask.py", f"{model.base_url}/chat"], {})
        assert json.loads(asked.stdout)["model"] == "scripted"
        asked = await runtime.run(["python3", "/tmp/ask.py", "http://other.example/"], {})
        assert "HTTP Error 403" in asked.stderr
        refused = [one for one in await runtime.world.connections() if one.outcome is Outcome.REFUSED]
        assert [one.host for one in refused] == ["other.example"]
        await runtime.prepare_execution(None)
        assert runtime.egress == [own, "*:*"]


@pytest.mark.usefixtures("brokered")
async def test_what_a_task_asks_for(layout: Path, tmp_path: Path, word_taskset: str) -> None:
    (task,) = vf.load_taskset(vf.taskset_config_type(word_taskset)(id=word_taskset)).load()
    asked = task.with_data(image=str(layout), workdir="/new/place")
    async with provision(WorldConfig(home=str(tmp_path / "home")), asked) as runtime:
        told = await runtime.run(["sh", "-c", "pwd; echo $GREETING $SUFFIX; id -u"], {})
        assert told.stdout == "/new/place\nimage world\n0\n"
        assert (runtime.info.image, runtime.info.workdir) == (str(layout), "/new/place")
