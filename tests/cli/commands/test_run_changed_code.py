"""`ramify resume` of a run whose file was edited, as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm_process import WarmInterpreter

APP = """
import os, signal
from pathlib import Path
from ramify import step, workflow

PAID, ONCE = Path(__file__).with_name("paid"), Path(__file__).with_name("once")

@step(effect="irreversible")
async def pay(who: str) -> str:
    with PAID.open("a") as file:
        file.write(f"{who}\\n")
    return who

@step(effect="pure")
async def extra() -> str:
    return "more"

@step
async def die() -> None:
    if not ONCE.exists():
        ONCE.touch()
        os.kill(os.getpid(), signal.SIGKILL)

@workflow
async def flow() -> list[str]:
    out = [await pay("a"), await pay("b")]
    await die()
    return out
"""


class Shell:
    def __init__(self, folder: Path, interpreter: WarmInterpreter) -> None:
        self.folder, self.interpreter = folder, interpreter
        self.app = folder / "edited_by_hand.py"
        self.paid = folder / "paid"
        self.env = {**os.environ, "RAMIFY_HOME": str(folder / "home"), "RAMIFY_SANDBOX": "copy"}
        self.env["PYTHONDONTWRITEBYTECODE"] = "1"

    def ramify(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.interpreter.run(words, cwd=self.folder, env=self.env)

    def anew(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """In an interpreter that reads `env` when it starts."""
        command = [str(Path(sys.executable).with_name("ramify")), *words]
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, timeout=120)


@pytest.fixture
def killed(tmp_path: Path, warm: WarmInterpreter) -> Shell:
    shell = Shell(tmp_path, warm)
    shell.app.write_text(APP)
    assert shell.ramify("run", "-q", f"{shell.app}:flow").returncode == -9
    return shell


def test_changed_comment_repeats_no_effect(killed: Shell) -> None:
    killed.app.write_text("# a comment\n" + APP.replace("    await die", "\n    # another\n    await die"))
    shown = killed.ramify("resume", "-q", "--show-changes")
    assert (shown.returncode, shown.stdout) == (0, "nothing has changed\n")
    done = killed.ramify("resume", "-q")
    assert json.loads(done.stdout) == ["a", "b"]
    assert killed.paid.read_text() == "a\nb\n"


def test_changed_code_is_shown_and_accepted(killed: Shell) -> None:
    killed.app.write_text(APP.replace("    out =", "    await extra()\n    out ="))
    refused = killed.ramify("resume", "-q")
    assert refused.returncode == 1
    assert "--show-changes" in refused.stderr
    assert "--accept-changes" in refused.stderr
    shown = json.loads(killed.ramify("resume", "--show-changes", "--json").stdout)
    assert [line.partition(" at ")[0] for line in shown["kept"]] == ["pay", "pay"]
    assert [line.partition(" at ")[0] for line in shown["added"]] == ["extra"]
    done = killed.ramify("resume", "-q", "--accept-changes")
    assert json.loads(done.stdout) == ["a", "b"], done.stderr
    assert killed.paid.read_text() == "a\nb\n"
    told = killed.ramify("explain")
    assert told.returncode == 0, told.stderr
    assert "changed code accepted" in killed.ramify("tree").stdout


def test_no_guess_without_column_positions(killed: Shell) -> None:
    """Two payments stand on one line."""
    failed = killed.anew("resume", "-q", PYTHONNODEBUGRANGES="1")
    assert "PYTHONNODEBUGRANGES" in failed.stderr
    assert killed.paid.read_text() == "a\nb\n"
    assert json.loads(killed.ramify("resume", "-q").stdout) == ["a", "b"]
    assert killed.paid.read_text() == "a\nb\n"


def test_a_plan_of_shifted_code_is_run_where_the_code_stands(tmp_path: Path, warm: WarmInterpreter) -> None:
    shell = Shell(tmp_path, warm)
    shell.app.write_text(APP)
    plan = tmp_path / "plan.json"
    plan.write_text(shell.ramify("compile", f"{shell.app}:flow", "--emit", "plan").stdout)
    shell.app.write_text("# shifted\n" + APP)
    assert shell.ramify("run", "-q", "--plan", str(plan)).returncode == -9
    shell.app.write_text("\n# shifted again\n" + APP)
    assert json.loads(shell.ramify("resume", "-q").stdout) == ["a", "b"]
    assert shell.paid.read_text() == "a\nb\n"
