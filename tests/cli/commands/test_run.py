"""`run` and `resume` as processes, on the copying sandbox: what is printed where, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from ramify.cli.commands.run import summarized
from ramify.runtime.records import RunStatus
from tests.warm_process import WarmInterpreter

Call = Callable[..., subprocess.CompletedProcess[str]]
FLOW = """
from pathlib import Path
from ramify import Sandbox, fork, step, workflow

@step
async def write(sandbox: Sandbox, text: str) -> str:
    await sandbox.run(["sh", "-c", f"echo {text} >> notes; echo {text} > {text}"])
    return text

@step
async def gated(sandbox: Sandbox, gate: str) -> str:
    (sandbox.path / "gated").write_text("x")
    if not Path(gate).exists():
        raise RuntimeError("the gate is closed")
    return "passed"

@step
async def nap(sandbox: Sandbox) -> None:
    await sandbox.run("sleep 60")

@workflow(deadline="5m")
async def best(words: list[str], ending: str = "end") -> dict:
    async with fork(words) as branches:
        outs = await branches.map(write)
        await outs.best(key=len).adopt()
    await write(ending)
    return {"longest": max(words, key=len)}

@workflow
async def gate(path: str) -> str:
    await write("first")
    return await gated(path)

@workflow
async def sleepy() -> None:
    await write("first")
    await nap()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a workflow file and a workspace."""
    (tmp_path / "flow.py").write_text(FLOW)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "notes").write_text("begin\n")
    return tmp_path


@pytest.fixture
def call(place: Path, warm: WarmInterpreter) -> Call:
    return lambda *arguments: warm.run(["--home", "home", *arguments], cwd=place)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ramify.cli.main", "--home", "home", *map(str, arguments)]


COPY = ("--sandbox", "copy", "--workspace", "workspace")


def test_the_result_goes_to_stdout_and_the_rest_to_stderr(place: Path, call: Call) -> None:
    done = call("run", "flow.py:best", '["a", "bcd"]', "--arg", "ending=last", *COPY)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"longest": "bcd"})
    assert "[root/fork.1.0.1] write: bcd" in done.stderr
    assert "\x1b" not in done.stderr
    assert "3 paths changed" in done.stderr
    assert (place / "workspace" / "notes").read_text() == "begin\n"  # untouched
    assert not (place / "workspace" / "bcd").exists()
    (run,) = json.loads(call("ls", "--json").stdout)
    assert (run["status"], run["steps"], run["forks"], run["merges"]) == ("done", 3, 2, 1)
    assert call("diff", "@", "--name-only").stdout == "bcd\nlast\nnotes\n"


def test_apply_writes_what_changed_into_the_workspace(place: Path, call: Call) -> None:
    done = call("run", "flow.py:best", '["a", "bcd"]', "--apply", "--json", "--quiet", *COPY)
    told = json.loads(done.stdout)
    assert (told["status"], told["result"], told["applied"]) == ("done", {"longest": "bcd"}, True)
    assert [change["path"] for change in told["changes"]] == ["bcd", "end", "notes"]
    assert (place / "workspace" / "notes").read_text() == "begin\nbcd\nend\n"
    assert done.stderr == ""


def test_apply_leaves_out_what_acts_on_entry_and_names_it(place: Path, call: Call) -> None:
    done = call("run", "flow.py:best", '["a", ".envrc"]', "--apply", *COPY)
    assert done.returncode == 0
    assert "left out: .envrc: " in done.stderr
    assert sorted(path.name for path in (place / "workspace").iterdir()) == ["end", "notes"]
    done = call("run", "flow.py:best", '["a", ".envrc"]', "--apply", "--active-files", "--quiet", *COPY)
    assert (place / "workspace" / ".envrc").exists(), done.stderr


def test_apply_without_a_workspace_is_refused_before_anything_runs(place: Path, call: Call) -> None:
    done = call("run", "flow.py:best", '["a"]', "--apply", "--sandbox", "copy")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--workspace" in done.stderr
    assert not (place / "home").exists()


def test_a_step_that_raises_shows_their_code_and_can_be_resumed(place: Path, call: Call) -> None:
    failed = call("run", "flow.py:gate", place / "open", *COPY)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert 'raise RuntimeError("the gate is closed")' in failed.stderr
    assert f'File "{place}/flow.py"' in failed.stderr
    assert f"{os.sep}runtime{os.sep}" not in failed.stderr  # nothing of ours in the traceback
    (run,) = json.loads(call("ls", "--json").stdout)
    assert f"ramify --home home resume {run['id']}" in failed.stderr
    (place / "open").write_text("")
    again = call("resume")
    assert (again.returncode, again.stdout) == (0, "passed\n"), again.stderr
    assert "[root] 2 results taken from the journal" in again.stderr
    assert "] write" not in again.stderr  # what was done is not done again
    nothing_left = call("resume")
    assert nothing_left.returncode == 1
    assert "ramify --home home ls" in nothing_left.stderr
    once_more = call("resume", run["id"], "--quiet")
    assert (once_more.stdout, once_more.stderr) == ("passed\n", "")


def started(place: Path) -> subprocess.Popen[str]:
    """A run that has done its first step and sleeps in the second."""
    process = subprocess.Popen(
        command("run", "flow.py:sleepy", *COPY), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "write: first" in line:
            return process
    raise AssertionError("the run ended before its first step was done")


def test_ctrl_c_exits_with_130_and_suggests_resume(place: Path, call: Call) -> None:
    process = started(place)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    (run,) = json.loads(call("ls", "--json").stdout)
    assert (process.returncode, out, run["status"]) == (130, "", "cancelled")
    assert err.splitlines()[-1] == f"ramify: interrupted; `ramify --home home resume {run['id']}` continues"
    assert "Traceback" not in err


def test_a_killed_run_is_interrupted(place: Path, call: Call) -> None:
    process = started(place)
    process.kill()
    process.communicate(timeout=60)
    (run,) = json.loads(call("ls", "--json").stdout)
    assert (run["status"], run["steps"]) == ("interrupted", 1)


def test_a_plan_is_run_as_it_stands_without_compiling(place: Path, call: Call) -> None:
    compiled = call("compile", "flow.py:best", "-o", "plan.json")
    assert (compiled.returncode, compiled.stdout) == (0, ""), compiled.stderr
    probe = (
        "import sys; from ramify.cli.main import run_command_line; status = run_command_line(sys.argv[1:]); "
        "compiler = ('ramify.compiler.pipeline', 'ramify.compiler.ir', 'ramify.compiler.passes'); "
        "found = [m for m in sys.modules if m.startswith(compiler)]; "
        "print(status, found, file=sys.stderr)"
    )
    arguments = ["--home", "home", "run", "--plan", "plan.json", '["a", "bcd"]', *COPY]
    done = subprocess.run(
        [sys.executable, "-c", probe, *arguments], cwd=place, capture_output=True, text=True, check=True, timeout=90
    )
    assert json.loads(done.stdout) == {"longest": "bcd"}
    assert done.stderr.splitlines()[-1] == "0 []"
    assert "warning" not in done.stderr


def test_a_plan_of_other_code_is_told_with_the_steps_that_it_may_affect(place: Path, call: Call) -> None:
    assert call("compile", "flow.py:gate", "-o", "plan.json").returncode == 0
    flow = place / "flow.py"
    flow.write_text(flow.read_text().replace('return "passed"', 'return "gone through"'))
    done = call("run", "--plan", "plan.json", str(flow), *COPY)
    assert (done.returncode, done.stdout) == (0, "gone through\n"), done.stderr
    said = f"warning: the plan was compiled from other code: gated ({place.name}/flow.py:11)"
    assert f"{said}; steps that may be affected: gated." in done.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nofile.py:x", "nofile.py: no such file"),
        ("flow.py:nothing", "flow.py has no 'nothing'"),
        ("flow.py", "expected FILE.py:NAME"),
        ("flow.py:write", "not a workflow"),
        ("no_such_module_at_all:x", "no module named"),
    ],
)
def test_missing_target_is_refused(call: Call, target: str, said: str) -> None:
    done = call("run", target)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert done.stderr.startswith("ramify: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "is no plan: it is not text"),
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "version"),
    ],
    ids=["bytes", "empty", "deep", "list"],
)
def test_a_file_that_is_no_plan_is_named(content: bytes, said: str, place: Path, call: Call) -> None:
    (place / "other.json").write_bytes(content)
    done = call("run", "--plan", "other.json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "other.json" in done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_missing_workspace_is_refused(call: Call) -> None:
    done = call("run", "flow.py:best", '["a"]', "--workspace", "nowhere", "--sandbox", "copy")
    assert done.returncode == 1
    assert done.stderr.startswith("ramify: ")
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"messages": [HumanMessage("hi"), AIMessage("It is\ndone.")]}, "It is\ndone."),
        ([HumanMessage("hi"), AIMessage("ho")], "ho"),
        ({"messages": [AIMessage("ho")], "n": 1}, {"messages": "1 message, the last: ai: ho", "n": 1}),
        ({"log": ["a"], "messages": []}, {"log": ["a"], "messages": []}),
        ("as it is", "as it is"),
        ([], []),
    ],
)
def test_of_an_agents_messages_the_last_is_printed(result: Any, said: Any) -> None:
    """As its workflow would have returned it; with `--json` they are all there."""
    assert summarized(result) == said


def test_a_langgraph_thread_whose_program_is_gone_is_not_resumed(home: Any, ramify: Any, add_run: Any) -> None:
    add_run(id="1a9610000000", frontend="langgraph", thread_id="thread-7", status=RunStatus.FAILED)
    for arguments in (["resume"], ["resume", "1a96"]):
        said = ramify(*arguments)
        assert said.status == 1
        assert "/src/agent.py: no such file" in said.err
