"""A deployment of SWE-ReX over a world: its commands, sessions and files, and what they raise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("swerex", reason="needs swe-rex: pip install 'ramify[swe-rex]'")

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from ramify.integrations.swe_rex import WorldDeployment, WorldDeploymentConfig, WorldRuntime

PYTHON = {"is_interactive_command": True, "expect": [">>> "], "timeout": 60}


@pytest.fixture
async def deployment(repo: Path, sandbox: str, tmp_path: Path) -> AsyncIterator[WorldDeployment]:
    config = WorldDeploymentConfig(folder=str(repo), sandbox=sandbox, home=str(tmp_path / "home"))
    made = config.get_deployment()
    assert not await made.is_alive()
    with pytest.raises(DeploymentNotStartedError):
        _ = made.runtime
    await made.start()
    yield made
    await made.stop()
    assert not await made.is_alive()


@pytest.fixture
def runtime(deployment: WorldDeployment) -> WorldRuntime:
    return deployment.runtime


async def said(runtime: WorldRuntime, command: str, session: str = "default") -> str:
    return str((await runtime.run_in_session(BashAction(command=command, session=session))).output)


async def test_commands(runtime: WorldRuntime, repo: Path) -> None:
    assert await runtime.is_alive()
    told = await runtime.execute(Command(command=["python3", "main.py"]))
    assert (told.stdout, told.stderr, told.exit_code) == ("hello\n", "", 0)
    loud = Command(command="echo out; echo err >&2; echo $WORD; exit 3", shell=True, env={"WORD": "yes"}, cwd="/")
    told = await runtime.execute(loud)
    assert (told.stdout, told.stderr, told.exit_code) == ("out\nyes\n", "err\n", 3)
    told = await runtime.execute(loud.model_copy(update={"merge_output_streams": True}))
    assert (told.stdout, told.stderr) == ("out\nerr\nyes\n", "")
    with pytest.raises(NonZeroExitCodeError, match=r"of mine: .* exit code 3"):
        await runtime.execute(loud.model_copy(update={"check": True, "error_msg": "of mine"}))
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "60"], timeout=0.1))
    with pytest.raises(FileNotFoundError):
        await runtime.execute(Command(command=["true"], cwd="/nowhere"))


async def test_a_session_keeps_its_state(runtime: WorldRuntime) -> None:
    (Path(runtime.world.path) / "vars.sh").write_text("export A=1\necho sourced\n")
    created = await runtime.create_session(CreateBashSessionRequest(startup_source=["vars.sh"]))
    assert created.output == "sourced\n"
    assert await said(runtime, "cd /tmp; B=2; echo $A >&2") == "1\n"
    assert await said(runtime, "\n pwd \n\n echo $B\n") == "/tmp\n2\n"
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await said(runtime, "true", session="other")
    with pytest.raises(BashIncorrectSyntaxError) as wrong:
        await said(runtime, "(a")
    assert "syntax error" in wrong.value.extra_info["bash_stderr"]
    for odd in ("echo a\0b", "echo \ud800"):  # what no shell can be given: the agent is told
        with pytest.raises(BashIncorrectSyntaxError, match=r"NUL|surrogate"):
            await said(runtime, odd)
    with pytest.raises(NonZeroExitCodeError):
        await said(runtime, "false")
    for check, code in (("silent", 4), ("ignore", None)):
        told = await runtime.run_in_session(BashAction(command="(exit 4)", check=check))
        assert told.exit_code == code
    with pytest.raises(CommandTimeoutError):
        await runtime.run_in_session(BashAction(command="sleep 60", timeout=0.1))
    await runtime.run_in_session(BashInterruptAction())
    assert await said(runtime, "echo $B") == "2\n"
    await runtime.close_session(CloseBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await runtime.close_session(CloseBashSessionRequest())


async def test_an_interactive_program_beside_commands(runtime: WorldRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest())
    await said(runtime, "cd /tmp; export WORD=yes")
    started = await runtime.run_in_session(BashAction(command="python3 -q", **PYTHON))
    assert started.expect_string == ">>> "
    code = "import os; print(os.getcwd(), os.environ['WORD'])"
    assert (await runtime.run_in_session(BashAction(command=code, **PYTHON))).output == "/tmp yes"
    assert await said(runtime, "echo beside") == "beside\n"
    with pytest.raises(CommandTimeoutError):
        slow = "import time; time.sleep(600)"
        await runtime.run_in_session(BashAction(command=slow, is_interactive_command=True, expect=["x"], timeout=0.1))
    stopped = await runtime.run_in_session(BashInterruptAction(timeout=60, expect=["KeyboardInterrupt.*\n>>> "]))
    assert "KeyboardInterrupt" in stopped.expect_string
    await runtime.run_in_session(BashAction(command="quit()", is_interactive_quit=True, timeout=60))
    assert await said(runtime, "echo after") == "after\n"


async def test_files(runtime: WorldRuntime, repo: Path, tmp_path: Path) -> None:
    for path in (str(repo / "deep" / "one.txt"), "two.txt", "/tmp/elsewhere/three.txt"):
        await runtime.write_file(WriteFileRequest(path=path, content="tëxt"))
        assert (await runtime.read_file(ReadFileRequest(path=path))).content == "tëxt"
    assert not (repo / "two.txt").exists(), "the folder on this machine stays as it is"
    told = await runtime.read_file(ReadFileRequest(path="two.txt", encoding="ascii", errors="ignore"))
    assert told.content == "txt"
    for path, error in (
        ("missing", FileNotFoundError),
        ("/etc", IsADirectoryError),
        (".", IsADirectoryError),
    ):
        with pytest.raises(error):
            await runtime.read_file(ReadFileRequest(path=path))
    folder = tmp_path / "sent"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "run.sh").write_text("echo ran\n")
    (folder / "below" / "run.sh").chmod(0o755)
    for target in (str(repo / "got"), "/tmp/got"):
        await runtime.upload(UploadRequest(source_path=str(folder), target_path=target))
        told = await runtime.execute(Command(command=[f"{target}/below/run.sh"], check=True, shell=True))
        assert told.stdout == "ran\n"
    with pytest.raises(FileNotFoundError):
        await runtime.upload(UploadRequest(source_path=str(tmp_path / "none"), target_path="got"))


async def test_a_fork_has_the_sessions_and_goes_its_own_way(deployment: WorldDeployment) -> None:
    await deployment.runtime.create_session(CreateBashSessionRequest())
    await said(deployment.runtime, "echo one > notes; N=1")
    kept = await deployment.snapshot()
    (fork,) = await deployment.fork()
    await said(fork.runtime, "rm notes; N=2")
    assert await said(deployment.runtime, "cat notes; echo $N") == "one\n1\n"
    assert await said(fork.runtime, "ls; echo $N") == "main.py\n2\n"
    await said(deployment.runtime, "rm main.py; N=3")
    await deployment.restore(kept)
    assert await said(deployment.runtime, "ls; echo $N") == "main.py\nnotes\n1\n"
    await fork.stop()


async def test_a_world_that_was_closed(deployment: WorldDeployment) -> None:
    runtime = deployment.runtime
    await runtime.create_session(CreateBashSessionRequest())
    await runtime.world.close()
    assert not await deployment.is_alive()
    with pytest.raises(DeploymentNotStartedError, match="closed"):
        await said(runtime, "true")
    with pytest.raises(DeploymentNotStartedError, match="closed"):
        await runtime.read_file(ReadFileRequest(path="main.py"))
