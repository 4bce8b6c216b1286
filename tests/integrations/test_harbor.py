"""Harbor's own trial of a task, by its command line, in a world; and its environment's interface."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("harbor", reason="needs harbor, on Python 3.12 or later: pip install 'ramify[harbor]'")

from harbor.environments.base import SandboxBuildFailedError
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from ramify.integrations.harbor import WorldEnvironment
from ramify.integrations.world_access import NotStarted
from ramify.worlds.world import World

BY_PATH = "ramify.integrations.harbor:WorldEnvironment"
NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def made(place: Path, task: EnvironmentConfig, **options: Any) -> WorldEnvironment:
    place.mkdir(exist_ok=True)
    paths = TrialPaths(trial_dir=place / "trial")
    paths.mkdir()
    (place / "environment").mkdir(exist_ok=True)
    options = {"network_policy": NO_NETWORK, "home": str(place / "home"), **options}
    return WorldEnvironment(place / "environment", "task", f"task__{uuid4()}", paths, task, **options)


@pytest.fixture
async def environment(layout: Path, tmp_path: Path) -> AsyncIterator[WorldEnvironment]:
    task = EnvironmentConfig(docker_image=str(layout), env={"WORD": "task"})
    environment = made(tmp_path, task, persistent_env={"MORE": "trial"})
    await environment.start(force_build=False)
    yield environment
    await environment.stop(delete=True)
    await environment.stop(delete=True)
    with pytest.raises(NotStarted):
        await environment.exec("true")


async def said(environment: WorldEnvironment, command: str, **options: Any) -> str:
    result = await environment.exec(command, **options)
    assert result.return_code == 0, result
    return result.stdout or ""


def test_a_trial_by_harbors_command_line(layout: Path, tmp_path: Path) -> None:
    task = tmp_path / "task"
    for folder, name, text in (
        (".", "task.toml", f'[environment]\ndocker_image = "{layout}"\nnetwork_mode = "no-network"\n'),
        (".", "instruction.md", "Make greet.sh say bye.\n"),
        ("environment", "word.txt", "bye\n"),
        ("solution", "solve.sh", '#!/bin/bash\nsed -i "s/hello/$(cat word.txt)/" greet.sh\n'),
        ("tests", "test.sh", '#!/bin/bash\n[ "$(bash greet.sh)" = bye ] && echo 1 > /logs/verifier/reward.txt\n'),
    ):
        (task / folder).mkdir(parents=True, exist_ok=True)
        (task / folder / name).write_text(text)
    place = ["--environment-kwarg", f"home={tmp_path / 'home'}", "--trials-dir", str(tmp_path / "trials")]
    harbor = [str(Path(sys.executable).parent / "harbor"), "trial", "start", "-p", str(task), "-a", "oracle"]
    environment = {**os.environ, "HARBOR_TELEMETRY": "0"}
    told = subprocess.run([*harbor, "-e", BY_PATH, *place], env=environment, capture_output=True, text=True)
    assert told.returncode == 0 and "'reward': 1.0" in told.stdout, told.stdout + told.stderr


async def test_commands(environment: WorldEnvironment) -> None:
    told = await environment.exec("pwd; echo $WORD $MORE $OWN $GREETING; echo err >&2; exit 3", env={"OWN": "own"})
    assert told.model_dump() == {
        "stdout": "/app\ntask trial own image\n",
        "stderr": "err\n",
        "return_code": 3,
    }
    assert await said(environment, "pwd; id -u", cwd="/tmp", user="root") == "/tmp\n0\n"
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await environment.exec("sleep 60", timeout_sec=1)
    for wrong in ({"cwd": "/nowhere"}, {"user": "nobody-of-this-name"}, {"cwd": "a\0b"}):
        told = await environment.exec("true", **wrong)
        assert told.return_code == 126 and told.stderr
    assert await environment.is_dir("/logs/verifier") is False and await environment.is_file("greet.sh")


async def test_output_streams_to_who_asks(environment: WorldEnvironment) -> None:
    seen = []

    async def tell(text: str, stream: str) -> None:
        seen.append((stream, text))

    with environment.scoped_output_callback(tell):
        told = await environment.exec("echo oné; read -t 0.3 </dev/zero; echo two >&2; exit 4")
        with pytest.raises(RuntimeError, match="timed out"):
            await environment.exec("sleep 60", timeout_sec=1)
    assert (told.stdout, told.stderr, told.return_code) == ("oné\n", "two\n", 4)
    assert "".join(text for stream, text in seen if stream == "stdout") == "oné\n"


async def test_files_and_folders(environment: WorldEnvironment, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    (sent / "deep" / "empty").mkdir(parents=True)
    (sent / "run.sh").write_text("#!/bin/bash\necho ran\n")
    (sent / "run.sh").chmod(0o755)
    (sent / "link").symlink_to("run.sh")
    for target in ("/app/got", "/tests"):
        await environment.upload_dir(sent, target)
        assert await said(environment, f"{target}/link; ls {target}/deep") == "ran\nempty\n"
    await environment.upload_file(sent / "run.sh", "/solution/deep/solve.sh")
    assert await said(environment, "/solution/deep/solve.sh") == "ran\n"
    await said(environment, "mkfifo /tests/fifo; echo more > /tests/run.sh")
    got = tmp_path / "got"
    got.mkdir()
    (got / "run.sh").write_text("old")
    await environment.download_dir("/tests", got)
    assert (got / "run.sh").read_text() == "more\n" and (got / "link").is_symlink()
    assert (got / "deep" / "empty").is_dir() and not (got / "fifo").exists()
    await environment.download_file("/app/greet.sh", tmp_path / "new" / "greet.sh")
    assert (tmp_path / "new" / "greet.sh").read_text() == "echo hello\n"
    for path, error in (("/missing", FileNotFoundError), ("/app", IsADirectoryError)):
        with pytest.raises(error):
            await environment.download_file(path, tmp_path / "none")
    for path, error in (("/missing", FileNotFoundError), ("/app/greet.sh", NotADirectoryError)):
        with pytest.raises(error):
            await environment.download_dir(path, tmp_path / "none")
    await said(environment, "ln -s /etc/passwd /tests/out")
    with pytest.raises(tarfile.FilterError):
        await environment.download_dir("/tests", tmp_path / "none")


async def test_the_network_policy_is_enforced_and_changes(environment: WorldEnvironment) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 of-the-server\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        ask = f"printf 'GET http://127.0.0.1:{port}/ HTTP/1.0\\r\\n\\r\\n' >&3; head -n 1 <&3"
        ask = f"p=${{HTTP_PROXY#*//}}; p=${{p%/}}; exec 3<>/dev/tcp/${{p/:/\\/}}; {ask}"
        assert "200" not in await said(environment, ask)
        hosts = ["127.0.0.1", "pypi.org", "*.github.com", "10.1.0.0/16", "2001:db8::1"]
        await environment.set_network_policy(NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=hosts))
        assert "200" in await said(environment, ask)
        await environment.set_network_policy(NetworkPolicy())
        await environment.set_network_policy(NO_NETWORK)
        assert "200" not in await said(environment, ask)


async def test_fork_and_restore(environment: WorldEnvironment) -> None:
    await said(environment, "echo one > /logs/note || (mkdir /logs && echo one > /logs/note)")
    kept = await environment.snapshot()
    one, two = await environment.fork(2)
    await said(one, "rm /app/greet.sh")
    assert await said(two, "cat /logs/note; bash greet.sh") == "one\nhello\n"
    assert len({environment.session_id, one.session_id, two.session_id}) == 3
    await said(environment, "echo more >> /logs/note")
    await environment.restore(kept)
    assert await said(environment, "cat /logs/note") == "one\n"
    for fork in (one, two):
        await fork.stop(delete=True)


async def test_a_dockerfile_is_built_once(layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("buildah") is None:
        pytest.skip("needs buildah")
    environment = made(tmp_path, EnvironmentConfig(docker_image=str(layout)))
    dockerfile = environment.environment_dir / "Dockerfile"
    dockerfile.write_text("FROM nowhere.invalid/none\n")
    with pytest.raises(SandboxBuildFailedError, match="buildah"):
        await environment.start(force_build=True)
    await environment.stop(delete=True)
    dockerfile.write_text(f"FROM oci:{layout}\nCOPY word.txt .\n")
    (environment.environment_dir / "word.txt").write_text("built\n")
    for path in (os.environ["PATH"], "/nowhere"):  # the second time without buildah
        monkeypatch.setenv("PATH", path)
        environment = made(tmp_path, EnvironmentConfig())
        await environment.start(force_build=False)
        assert await said(environment, "cat word.txt; bash greet.sh") == "built\nhello\n"
        await environment.stop(delete=True)


async def test_a_stopped_environment_leaves_its_state(layout: Path, tmp_path: Path) -> None:
    environment = made(tmp_path, EnvironmentConfig(docker_image=str(layout)))
    await environment.start(force_build=False)
    await said(environment, "echo last > /app/note")
    await environment.stop(delete=False)
    tag = f"harbor-{environment.session_id}"[:57]
    async with World.create(snapshot=tag, home=tmp_path / "home") as world:
        assert (await world.exec("cat /app/note")).stdout == "last\n"


async def test_what_a_world_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        made(tmp_path, EnvironmentConfig())
    (tmp_path / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(ValueError, match="one container"):
        made(tmp_path, EnvironmentConfig())
    with pytest.raises(ValueError, match="Unknown option 'imgae'"):
        made(tmp_path, EnvironmentConfig(docker_image="x"), imgae="y")
