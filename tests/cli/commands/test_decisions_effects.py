"""`effects`, `approve`, `cancel` and `resume --from`, as processes, on the copying sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import effects_app
import pytest

from tests.warm_process import WarmInterpreter

FLOW = """
import asyncio
from effects_app import *

@workflow
async def sleepy() -> None:
    await write("first")
    await asyncio.sleep(600)

@workflow
async def posts_first(text: str) -> str:
    return await post(text)

@workflow
async def posts(text: str) -> str:
    await write("first")
    return await post(text)
"""

Call = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ramify.cli.main", "--home", "home", *map(str, arguments)]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    apps = str(Path(effects_app.__file__).parent)
    return {**os.environ, "PYTHONPATH": apps, "EFFECTS_OUTBOX": str(tmp_path / "outbox"), "RAMIFY_SANDBOX": "copy"}


@pytest.fixture
def call(tmp_path: Path, env: dict[str, str], warm: WarmInterpreter) -> Call:
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "workspace").mkdir()
    return lambda *arguments: warm.run(["--home", "home", *arguments], cwd=tmp_path, env=env)


def outbox(place: Path) -> list[str]:
    return [line.partition(" ")[2] for line in (place / "outbox").read_text().splitlines()]


def run_and_kill(tmp_path: Path, env: dict[str, str], warm: WarmInterpreter, flow: str) -> None:
    """Its process dies in the effect, after that has happened."""
    kill = 'import effects_app, sys; effects_app.STOP.append("after"); from ramify.cli.main import main; main()'
    words = ["--home", "home", "run", f"flow.py:{flow}", "hi", "--workspace", "workspace"]
    killed = warm.run(words, cwd=tmp_path, env={**env, "EFFECTS_KILL": "1"}, program=kill)
    assert killed.returncode == -9, killed.stderr


def test_a_run_killed_in_its_first_effect_has_begun(
    tmp_path: Path, call: Call, env: dict[str, str], warm: WarmInterpreter
) -> None:
    """No row of the journal says so, the ledger does."""
    run_and_kill(tmp_path, env, warm, "posts_first")
    assert "effects    1 begun, outcome unknown: post (`ramify --home home effects " in call("show").stdout
    told = call("resume").stderr.splitlines()
    assert told[0].endswith(" continues") and told[1].startswith("[root] ✗ post: in doubt"), told


def test_killed_effect_is_in_doubt_until_approved(
    tmp_path: Path, call: Call, env: dict[str, str], warm: WarmInterpreter
) -> None:
    run_and_kill(tmp_path, env, warm, "posts")
    doubt = call("resume")
    (run,) = json.loads(call("ls", "--json").stdout)
    assert doubt.returncode == 4  # a person is asked: not 1, and not 3, whose answer is `resume --answer`
    # Once by the error, beside the step's line.
    assert doubt.stderr.count("it is unknown whether the effect of step 'post'") == 1
    assert "Traceback" not in doubt.stderr
    assert f"ramify --home home approve {run['id']} post" in doubt.stderr
    assert "lies outside the code" not in doubt.stderr  # what it says first is what to do
    assert "had failed; there was nothing to stop" in call("cancel").stdout
    (effect,) = json.loads(call("effects", "--json").stdout)
    assert (effect["step"], effect["status"], run["status"]) == ("post", "in doubt", "in doubt")
    assert " in doubt\n" in call("show").stdout and " in doubt " in call("ls").stdout
    assert "in doubt" in call("effects").stdout
    assert call("approve", "@", "post").returncode == 2
    assert call("approve", "@", "post", "--done", "--again").returncode == 2
    assert call("approve", "@", "post", "--again", "--result", "x").returncode == 2
    said = call("approve", "@", "post", "--done", "--result", "receipt 7")
    assert (said.returncode, "is recorded as done" in said.stdout) == (0, True), said.stderr
    assert f"ramify --home home resume {run['id']}" in said.stdout
    assert json.loads(call("ls", "--json").stdout)[0]["status"] == "failed"  # settled: nothing is in doubt any more
    assert call("resume", "-q").stdout == "receipt 7\n"
    assert outbox(tmp_path) == ["hi"]


def test_repeated_effect_is_listed_twice(
    tmp_path: Path, call: Call, env: dict[str, str], warm: WarmInterpreter
) -> None:
    run_and_kill(tmp_path, env, warm, "posts")
    assert call("resume").returncode == 4
    call("approve", "@", "post", "--again")
    assert call("resume", "-q").stdout == "receipt for hi\n"
    ledger = json.loads(call("effects", "--json").stdout)
    assert [(one["attempt"], one["status"]) for one in ledger] == [(1, "again"), (2, "done")]
    told = call("effects").stdout
    assert "1 of 2" in told and "2 of 2" in told
    assert outbox(tmp_path) == ["hi", "hi"]  # as the person wanted it


def test_cancel_stops_a_run_that_can_be_resumed(tmp_path: Path, call: Call, env: dict[str, str]) -> None:
    process = subprocess.Popen(
        command("run", "flow.py:sleepy", "--workspace", "workspace"),
        cwd=tmp_path,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not [run for run in json.loads(call("ls", "--json").stdout) if run["steps"]]:
        assert time.monotonic() < until
    cancelled = call("cancel")
    assert cancelled.returncode == 0, cancelled.stderr
    assert "ramify --home home resume" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    (run,) = json.loads(call("ls", "--json").stdout)
    assert run["status"] == "cancelled"
    assert call("cancel").returncode == 0  # stopped already


def test_a_done_run_cannot_be_cancelled_but_taken_back(tmp_path: Path, call: Call) -> None:
    call("run", "flow.py:posts", "hi", "--workspace", "workspace", "-q")
    refused = call("cancel")
    assert (refused.returncode, "is done" in refused.stderr) == (1, True)
    again = call("resume", "@", "--from", "@~1", "-q")
    assert (again.returncode, again.stdout) == (0, "receipt for hi\n"), again.stderr
    assert outbox(tmp_path) == ["hi"]  # without a hook what was done stays done
    assert "undone" in call("show", "@").stdout
    assert call("resume", "@", "--from", "nowhere").returncode == 1


def test_the_ledger_of_a_run_that_is_not_there(call: Call) -> None:
    call("run", "flow.py:two_that_can_be_recalled", "--workspace", "workspace", "-q")
    assert [e["step"] for e in json.loads(call("effects", "--json").stdout)] == ["post_and_recall"] * 2
    missing = call("effects", "zzzz")
    assert (missing.returncode, "ramify --home home ls" in missing.stderr) == (1, True)
