from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.cli import errors
from ramify.cli.errors import report
from ramify.compiler.errors import WorkflowError
from ramify.compiler.plan import PlanError
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.runtime.errors import RunFailed, StoreError, TargetBroken
from ramify.sandboxes.errors import BackendUnavailable
from ramify.serving.errors import LLMUnavailable

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMIFY_TRACEBACK", raising=False)


@pytest.mark.parametrize(
    "error",
    [
        StoreError("what, where, what to do"),
        SnapshotNotFound("what, where, what to do"),
        BackendUnavailable("what, where, what to do"),
        LLMUnavailable("what, where, what to do"),
        PlanError("what, where, what to do"),
    ],
)
def test_each_of_our_trees_is_one_line(error: Exception, capsys: Capture) -> None:
    assert report(error) == 1
    assert capsys.readouterr().err == "ramify: what, where, what to do\n"


def test_a_compile_error_says_where(capsys: Capture) -> None:
    assert report(WorkflowError("a fork in a step", where="a.py:3", mend="fork in the workflow")) == 1
    assert capsys.readouterr().err == "ramify: a.py:3: a fork in a step; fork in the workflow\n"


def test_a_missing_extra_names_its_install(capsys: Capture) -> None:
    assert report(ModuleNotFoundError("No module named 'starlette'", name="starlette")) == 1
    assert "pip install 'ramify[serve]'" in capsys.readouterr().err


def test_os_error_names_the_file(capsys: Capture) -> None:
    assert report(PermissionError(13, "Permission denied", "/root/x")) == 1
    assert capsys.readouterr().err == "ramify: /root/x: Permission denied\n"


def test_a_bug_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        report(ZeroDivisionError("oops"))


def test_ramify_traceback_shows_the_whole_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMIFY_TRACEBACK", "1")
    with pytest.raises(StoreError):
        report(StoreError("x"))


def chained(error: Exception, cause: Exception) -> Exception:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


def test_of_the_stack_only_the_users_part_is_shown(capsys: Capture) -> None:
    def user_function() -> None:
        raise KeyError("it was theirs")

    try:
        user_function()
    except KeyError as cause:
        frames = [frame.name for frame in errors._users_frames(cause.__traceback__)]
        assert report(chained(RunFailed("KeyError: resume it", run_id="r"), cause)) == 1
    assert frames == ["test_of_the_stack_only_the_users_part_is_shown", "user_function"]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert said[-2:] == ["KeyError: 'it was theirs'", "ramify: KeyError: resume it"]


def test_a_syntax_error_shows_its_line(capsys: Capture, tmp_path: Path) -> None:
    try:
        compile("def f(:\n", "flow.py", "exec")
    except SyntaxError as cause:
        report(chained(TargetBroken("flow.py could not be loaded"), cause))
    said = capsys.readouterr().err
    assert "def f(:" in said
    assert 'File "flow.py", line 1' in said


def test_error_base_classes_exist() -> None:
    modules = "; ".join(f"from {module} import {name}" for module, name in errors.ROOTS)
    subprocess.run([sys.executable, "-c", modules], check=True, timeout=60)


def test_a_row_that_is_not_json_is_told_without_a_traceback(capsys: Capture) -> None:
    with pytest.raises(json.JSONDecodeError) as damaged:
        json.loads("{half")
    assert report(damaged.value) == 1
    assert capsys.readouterr().err.startswith("ramify: a value in the database is not JSON (Expecting property name")


def test_a_value_that_is_nested_too_deep_is_told_without_a_traceback(capsys: Capture) -> None:
    with pytest.raises(RecursionError) as deep:
        json.loads("[" * 100_000)
    assert report(deep.value) == 1
    assert capsys.readouterr().err.startswith("ramify: a value in the database is nested too deep")
