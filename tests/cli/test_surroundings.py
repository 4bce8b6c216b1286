"""Commands whose surroundings are broken: a user's file, a database that is down, a full disk, closed streams.

Each says what happened, where, and what to do, in a line or two, and never shows a stack of Ramify's own.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.cli.main import run_command_line
from ramify.inspect.home import Home
from tests.warm_process import COMMAND_LINE, WarmInterpreter

Call = Callable[..., subprocess.CompletedProcess[str]]

GOOD = """
from pathlib import Path
from ramify import step, workflow

@step
async def wait() -> int:
    if not Path(__file__).with_name("ready").exists():
        raise OSError("not ready")
    return 1

@workflow
async def flow() -> int:
    return await wait()
"""
BROKEN = {
    "syntax error": ("def f(:\n", "could not be loaded: "),
    "missing import": ("import no_such_module\n", "could not be loaded: No module named 'no_such_module'"),
    "syntax error in an imported module": ("import imported_by_it\n", "could not be loaded: "),
    "exit": ("import sys\nsys.exit(3)\n", "it ended the program (SystemExit(3))"),
    "null bytes": ("x = 1\0\n", "could not be loaded: "),
    "no such name": ("x = 1\n", "has no 'flow'"),
    "another object": ("flow = 1\n", "int, not a workflow: put @workflow on it"),
}
DATABASE = "postgresql://someone:secret@127.0.0.1:1/runs"


@pytest.fixture
def call(tmp_path: Path, warm: WarmInterpreter) -> Call:
    def call(*words: object, program: str = COMMAND_LINE, **env: str) -> subprocess.CompletedProcess[str]:
        surroundings = {**os.environ, "RAMIFY_HOME": str(tmp_path / "home"), "RAMIFY_SANDBOX": "copy", **env}
        return warm.run(words, cwd=tmp_path, env=surroundings, program=program)

    return call


def check(ended: subprocess.CompletedProcess[str], status: int, said: str) -> None:
    assert ended.returncode == status, ended.stderr
    assert said in ended.stderr
    own = [line for line in ended.stderr.splitlines() if re.search(r'File ".*/(api|runtime|compiler)/', line)]
    assert own == [], ended.stderr
    assert "secret" not in ended.stderr


@pytest.fixture
def failed(tmp_path: Path, call: Call) -> Path:
    """The file of a workflow that has a failed run."""
    app = tmp_path / "broken_later.py"
    app.write_text(GOOD)
    (tmp_path / "imported_by_it.py").write_text("def f(:\n")
    assert call("run", "-q", f"{app}:flow").returncode == 1
    return app


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_loaded_is_named(failed: Path, call: Call, kind: str) -> None:
    text, said = BROKEN[kind]
    failed.write_text(text)
    for words in (["resume"], ["run", f"{failed}:flow"]):
        ended = call(*words)
        check(ended, 1, said)
        assert said != BROKEN["syntax error"][1] or failed.name in ended.stderr


def test_a_run_whose_file_cannot_be_loaded_is_kept(failed: Path, call: Call) -> None:
    text, said = BROKEN["syntax error"]
    failed.write_text(text)
    for option in ("--show-changes", "--accept-changes"):
        check(call("resume", option), 1, said)
    check(call("explain"), 0, "")
    failed.write_text(GOOD)
    failed.with_name("ready").touch()
    assert call("resume", "-q").stdout.strip() == "1"


def test_a_file_that_became_a_folder_is_named(failed: Path, call: Call) -> None:
    failed.unlink()
    check(call("resume"), 1, "no such file")
    failed.mkdir()
    check(call("resume"), 1, "a folder, not a file")


def test_a_run_at_the_top_of_a_file_is_named_when_the_file_is_loaded_for_a_resume(failed: Path, call: Call) -> None:
    failed.write_text(GOOD + "import asyncio\none = asyncio.sleep(0)\nasyncio.run(one)\n")
    check(call("resume"), 1, 'put `asyncio.run(…)` under `if __name__ == "__main__":`')


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["ls"],
            ["tree"],
            ["show"],
            ["log"],
            ["effects"],
            ["gc"],
            ["inbox"],
            ["resume"],
            ["explain"],
            ["fork", "@"],
        ),
        *(["run", "app.py:flow"], ["cancel", "@"], ["answer", "a", "b"], ["approve", "@", "s", "--done"]),
        *(["diff", "@", "@~1"], ["merge", "@", "@~1"], ["checkout", "@", "out"], ["threads", "export", "theirs.db"]),
    ],
    ids=" ".join,
)
def test_a_database_that_is_down_is_named(tmp_path: Path, call: Call, words: list[str]) -> None:
    (tmp_path / "app.py").write_text(GOOD)
    ended = call(*words, RAMIFY_DATABASE=DATABASE)
    check(ended, 1, "no server answers there: check that it runs, and try again")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["run", "app.py:flow"], ["world", "new"]], ids=" ".join)
def test_a_backend_that_does_not_exist_is_named_before_anything_begins(
    tmp_path: Path, call: Call, words: list[str]
) -> None:
    (tmp_path / "app.py").write_text(GOOD)
    ended = call(*words, RAMIFY_SANDBOX="magic")
    check(ended, 1, "there is no sandbox backend 'magic': choose one of namespaces, docker, copy")
    assert len(ended.stderr.splitlines()) == 1
    assert "no runs yet" in call("ls").stderr


@pytest.mark.parametrize("words", [["ls"], ["show"], ["doctor"], ["--help"]], ids=" ".join)
def test_output_that_does_not_fit_on_the_disk_is_told(failed: Path, call: Call, words: list[str]) -> None:
    full = f"import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); {COMMAND_LINE}"
    ended = call(*words, program=full)
    check(ended, 1, "No space left on device: free some space, or write the output elsewhere")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["ls"], ["show"], ["run", "-q", "broken_later.py:flow"]], ids=" ".join)
@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_stream_may_be_closed(failed: Path, call: Call, words: list[str], name: str) -> None:
    failed.with_name("ready").touch()
    number = ["stdin", "stdout", "stderr"].index(name)
    ended = call(*words, program=f"import os, sys; os.close({number}); sys.{name} = None; {COMMAND_LINE}")
    check(ended, 0, "")
    assert (ended.stdout == "") == (name == "stdout")


def test_a_home_that_cannot_be_used_is_named(tmp_path: Path, call: Call) -> None:
    (tmp_path / "home").touch()
    for words in (["ls"], ["world", "new"], ["resume"]):
        ended = call(*words)
        check(
            ended, 1, "home (--home DIR or $RAMIFY_HOME)" if words == ["world", "new"] else "Name another one: --home"
        )


@pytest.mark.parametrize("words", [["ls"], ["run", "-q", "broken_later.py:flow"], ["mcp"]], ids=" ".join)
def test_a_folder_that_was_deleted_is_told(failed: Path, call: Call, words: list[str]) -> None:
    gone = f"import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); {COMMAND_LINE}"
    if words == ["ls"]:
        check(call(*words, program=gone), 0, "")  # the home is named by an absolute path
    else:
        ended = call(*words, program=gone)
        check(ended, 1, "the current folder was deleted: go to another one")
        assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN])
def test_what_the_system_refuses_is_told_with_a_remedy(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Home, "require_usable", refuse)
    assert run_command_line(["--home", "/nonexistent", "ls"]) == 1
    assert re.fullmatch(rf"ramify: {os.strerror(number)}: .*`ulimit -[nu]`.*\n", capfd.readouterr().err)
