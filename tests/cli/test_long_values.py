"""What people see of a long value: its beginning and its size. `--json` and the result of a run stay whole."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.cli.errors import report
from ramify.runtime.errors import RunError
from tests.cli.test_terminal_injection import on_a_terminal
from tests.warm_process import WarmInterpreter

SIZE = 3_000_000
FLOW = """
from ramify import Sandbox, interrupt, step, workflow

@step(effect="irreversible", reconcile=lambda key, **_: None)
async def send(text: str, sandbox: Sandbox) -> str:
    return text

@step
async def write(text: str, sandbox: Sandbox) -> str:
    await sandbox.run("echo x > file")
    return text

@step(effect="pure")
async def fails(text: str) -> str:
    raise ValueError(text)

@workflow
async def sends(letter: str, size: int) -> list[str]:
    await write(letter * size)
    return [await send(letter * size)]

@workflow
async def asks(size: int) -> str:
    return await interrupt("q" * size)

@workflow
async def raises(size: int) -> str:
    return await fails("f" * size)
"""

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(tmp_path: Path, warm: WarmInterpreter) -> Call:
    (tmp_path / "flow.py").write_text(FLOW)
    env = {**os.environ, "RAMIFY_SANDBOX": "copy"}
    return lambda *arguments: warm.run(["--home", "home", *map(str, arguments)], cwd=tmp_path, env=env)


def test_of_long_values_people_see_the_beginning_and_the_size(call: Call, tmp_path: Path) -> None:
    ran = call("run", "flow.py:sends", "x", SIZE)
    assert json.loads(ran.stdout) == ["x" * SIZE], ran.stderr
    call("run", "flow.py:sends", "y", SIZE)
    run, before = (one["id"] for one in json.loads(call("ls", "--json").stdout))
    states = ["show", f"{run}~0"], ["diff", f"{before}~0", f"{run}~0"], ["diff", "@"]
    for words in (["show", run], ["effects", run], *states):
        said = call(*words)
        assert (said.returncode, len(said.stdout) < 30_000) == (0, True), (words, said.stderr)
        assert "2.9 MB in all; --json prints it whole)" in said.stdout, words
    for words in (["log"], ["tree"], ["ls"], ["explain", "--trust-home"], ["inbox"]):
        said = call(*words)
        assert (said.returncode, len(said.stdout) < 5_000) == (0, True), (words, said.stderr)
    assert "y" * SIZE in call("show", run, "--json").stdout
    (effect,) = json.loads(call("effects", run, "--json").stdout)
    assert json.loads(effect["result"]) == "y" * SIZE
    (written,) = (
        one
        for one in json.loads(call("diff", f"{before}~0", f"{run}~0", "--json").stdout)["state"]
        if one["key"] == "write"
    )
    assert (written["before"], written["after"]) == ("x" * SIZE, "y" * SIZE)
    shown = on_a_terminal("--home", str(tmp_path / "home"), "show")
    assert len(shown) < 5_000 and "2.9 MB in all; --json prints it whole)" in shown


def test_a_diff_tells_long_values_apart_that_begin_alike(call: Call) -> None:
    for _ in range(2):
        call("run", "flow.py:sends", "x", SIZE)
    call("run", "flow.py:sends", "x", SIZE + 1)
    longer, second, first = (f"{one['id']}~0" for one in json.loads(call("ls", "--json").stdout))
    assert "state: write" not in call("diff", first, second).stdout
    assert "state: write" in call("diff", second, longer).stdout


def test_a_long_question_is_listed_by_its_beginning(call: Call) -> None:
    call("run", "flow.py:asks", SIZE)
    said = call("inbox").stdout
    assert len(said) < 10_000 and "2.9 MB in all" in said
    (item,) = json.loads(call("inbox", "--json").stdout)
    assert item["question"] == "q" * SIZE


def test_a_long_error_is_told_by_both_ends(call: Call) -> None:
    said = call("run", "flow.py:raises", SIZE)
    assert said.returncode == 1 and len(said.stderr) < 40_000
    assert "2.9 MB in all" in said.stderr and "continues" in said.stderr
    assert len(call("show").stdout) < 20_000


def test_a_long_result_is_cut_on_a_terminal_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMIFY_SANDBOX", "copy")
    shown = on_a_terminal("--home", "home", "run", "--quiet", "flow.py:sends", "x", str(SIZE))
    assert 4_000 < len(shown) < 10_000
    assert "the result has 2.9 MB in all: `ramify --home home show " in shown


def test_a_short_error_is_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    report(RunError("x" * 60_000))
    assert capsys.readouterr().err == f"ramify: {'x' * 60_000}\n"
