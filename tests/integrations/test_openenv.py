"""OpenEnv's own template of an environment, served in a world; and a world as an environment, over its own server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openenv.core.env_server", reason="needs openenv: pip install 'ramify[openenv]'")

import httpx
import openenv.cli
import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.rubrics import Rubric

from ramify.integrations import openenv as openenv_adapter
from ramify.integrations.openenv import CommandAction, CommandObservation, WorldEnvironment, WorldProvider
from ramify.integrations.world_access import NotStarted
from ramify.sandboxes import doctor
from ramify.worlds.blocking_home import SyncWorldHome
from ramify.worlds.errors import WorldClosed
from tests.ports import free_port

pytestmark = pytest.mark.filterwarnings("default")  # OpenEnv's requirements warn

MARKS = {"ENV_CLASS_NAME": "Echo", "ENV_TITLE_NAME": "Echo", "ENV_NAME": "echo", "ENV_IMAGE_NAME": "echo"}


def filled(text: str) -> str:
    for name, value in MARKS.items():
        text = text.replace(f"__{name}__", value)
    return text


@pytest.fixture
def isolated(tmp_path: Path) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)


@pytest.fixture
def echo(isolated: None, tmp_path: Path) -> Path:
    """The environment that `openenv init echo` writes."""
    template = Path(openenv.cli.__file__).parent / "templates" / "openenv_env"
    for source in template.rglob("*.*"):
        if source.suffix in (".py", ".yaml"):
            target = tmp_path / "echo" / filled(str(source.relative_to(template)))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(filled(source.read_text()))
    return tmp_path / "echo"


def test_a_server_in_a_world(echo: Path, tmp_path: Path) -> None:
    provider = WorldProvider(folder=str(echo), home=str(tmp_path / "home"))
    with GenericEnvClient(provider=provider).sync() as client:
        assert client.reset().observation["echoed_message"] == "Echo environment ready!"
        told = client.step({"message": "hello"})
        assert (told.observation["echoed_message"], told.reward, told.done) == ("hello", 0.5, False)
        assert client.state()["step_count"] == 1
    with pytest.raises(NotStarted):
        provider.snapshot()


def test_fork_restore_and_a_start_from_a_snapshot(isolated: None, repo: Path, tmp_path: Path) -> None:
    """Of a server that tells what is in a file."""
    (repo / "health").write_text("first")
    place = {"home": str(tmp_path / "home")}
    with WorldProvider(folder=str(repo), command="exec python3 -m http.server 8000", **place) as provider:
        url = provider.start_container()
        provider.wait_for_ready(url)
        kept = provider.snapshot()
        provider.world.write("health", "second")
        (fork,) = provider.fork()
        fork.world.write("health", "of the fork")
        assert (health(url), health(fork.base_url)) == ("second", "of the fork")
        fork.stop_container()
        fork.stop_container()
        provider.restore(kept)
        assert provider.base_url == url and health(url) == "first"
    with WorldProvider(snapshot=kept, **place) as later:
        later.wait_for_ready(later.start_container())
        assert health(later.base_url) == "first"


def health(url: str) -> str:
    return httpx.get(f"{url}/health", trust_env=False).text


def test_a_server_that_cannot_start(repo: Path, sandbox: str, tmp_path: Path) -> None:
    place = {"sandbox": sandbox, "home": str(tmp_path / "home")}
    with pytest.raises(RuntimeError, match="pass command="):
        WorldProvider(folder=str(repo), **place).start_container()
    (repo / "openenv.yaml").write_text("name: none\n")
    with pytest.raises(RuntimeError, match="names no app"):
        WorldProvider(folder=str(repo), **place).start_container()
    with pytest.raises(ValueError, match="knows no memory"):
        WorldProvider(folder=str(repo), **place).start_container(memory=1)


def test_the_command_of_an_image(layout: Path, tmp_path: Path) -> None:
    port = free_port()
    with WorldProvider(home=str(tmp_path / "home")) as provider:
        url = provider.start_container(f"oci:{layout}", port, {"GREETING": "given"})
        assert url == f"http://127.0.0.1:{port}"
        assert provider.world.run("pwd; echo $GREETING").stdout == "/app\ngiven\n"
        with pytest.raises(TimeoutError, match="It wrote: hello"):
            provider.wait_for_ready(url, timeout_s=2)
        with pytest.raises(RuntimeError, match="has a world already"):
            provider.start_container(f"oci:{layout}")


class Found(Rubric):
    """Rewards an output that says hello."""

    def forward(self, action: Any, observation: Any) -> float:
        return float("hello" in observation.output)


@pytest.fixture
def environment(repo: Path, sandbox: str, tmp_path: Path) -> Iterator[WorldEnvironment]:
    made = WorldEnvironment(folder=str(repo), sandbox=sandbox, home=str(tmp_path / "home"), rubric=Found())
    yield made
    made.close()


def test_an_environment_that_is_a_world(environment: WorldEnvironment) -> None:
    assert environment.reset(episode_id="one").output == "" and environment.state.episode_id == "one"
    told = environment.step(CommandAction(command="python3 main.py; export WORD=kept; echo error >&2; false"))
    assert (told.output, told.exit_code, told.reward) == ("hello\nerror\n", 1, 1.0)
    kept = environment.step(CommandAction(command="echo $WORD > note", keep=True))
    assert (kept.reward, environment.state.step_count) == (0.0, 2)
    (fork,) = environment.fork()
    assert fork.step(CommandAction(command="cat note; echo $WORD; rm note")).output == "kept\nkept\n"
    assert (fork.state.step_count, environment.state.step_count) == (3, 2)
    fork.close()
    assert environment.step(CommandAction(command="cat note; rm note; unset WORD")).output == "kept\n"
    environment.restore(kept.snapshot)
    assert environment.step(CommandAction(command="cat note; echo $WORD")).output == "kept\nkept\n"
    environment.reset()
    assert environment.step(CommandAction(command="ls; echo $WORD")).output == "main.py\n\n"
    assert environment.state.step_count == 1
    assert "stopped after 0.2 seconds" in environment.step(CommandAction(command="sleep 60"), timeout_s=0.2).output
    refused = environment.step(CommandAction(command="echo a\0b"))
    assert refused.exit_code == 126 and "NUL" in refused.output
    with pytest.raises(ValueError, match="this server keeps no snapshot 'another'"):
        environment.reset(snapshot="another")


def test_a_closed_environment_is_told(environment: WorldEnvironment) -> None:
    environment.close()
    for act in (environment.reset, lambda: environment.step(CommandAction(command="true"))):
        with pytest.raises(WorldClosed):
            act()


def test_the_first_state_is_kept_while_the_environment_lives(environment: WorldEnvironment, tmp_path: Path) -> None:
    with SyncWorldHome(tmp_path / "home", "copy") as opened:
        start = environment.world.state.id
        environment.step(CommandAction(command="rm main.py", keep=True))
        (fork,) = environment.fork()
        with opened.home.pins.collecting():
            assert start in opened.home.pins.kept()
        environment.close()
        with opened.home.pins.collecting():
            assert start in opened.home.pins.kept(), "by the fork"
        fork.reset()
        assert fork.step(CommandAction(command="ls")).output == "main.py\n"
        fork.close()
        with opened.home.pins.collecting():
            assert start not in opened.home.pins.kept()


def test_a_server_keeps_the_snapshots_that_were_used_last(
    environment: WorldEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openenv_adapter, "_kept", {})
    monkeypatch.setattr(openenv_adapter, "MOST_KEPT", 2)

    def keep(number: int) -> str:
        return environment.step(CommandAction(command=f"echo {number} > note", keep=True)).snapshot

    first, second = keep(1), keep(2)
    environment.reset(snapshot=first)
    third = keep(3)
    with pytest.raises(ValueError, match="one of the last 2 "):
        environment.reset(snapshot=second)
    environment.reset(snapshot=third)
    environment.reset(snapshot=first)
    assert environment.step(CommandAction(command="cat note")).output == "1\n"


def client_of(url: str) -> Any:
    return GenericEnvClient(base_url=url).sync()


@contextmanager
def served(app: Any) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_it_serves_several_clients_that_fork(repo: Path, sandbox: str, tmp_path: Path) -> None:
    place = {"sandbox": sandbox, "home": str(tmp_path / "home")}
    app = create_app(
        lambda: WorldEnvironment(folder=str(repo), **place),
        CommandAction,
        CommandObservation,
        env_name="world",
        max_concurrent_envs=2,
    )
    with served(app) as url, client_of(url) as one, client_of(url) as two:
        one.reset()
        kept = one.step({"command": "echo first > note", "keep": True}).observation["snapshot"]
        one.step({"command": "rm note"})
        two.reset(snapshot=kept)
        assert two.step({"command": "cat note"}).observation["output"] == "first\n"
        assert one.step({"command": "ls"}).observation["output"] == "main.py\n"
