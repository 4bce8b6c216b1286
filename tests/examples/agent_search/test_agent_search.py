"""The search over mini-swe-agent's turns, with its scripted model and with one behind a server."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("minisweagent", reason="needs mini-swe-agent: pip install 'ramify[mini-swe-agent]'")

from examples.agent_search.__main__ import PROJECT, main
from tests.agents.model_server import Asked, Call, ModelServer, Turn
from tests.machine import why_no_namespaces

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "examples" / "agent_search.md"


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    sandbox = "copy" if why_no_namespaces() else "namespaces"
    return ["--sandbox", sandbox, "--home", str(tmp_path / "home")]


def test_it_prints_what_its_page_shows(
    place: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (PROJECT / "shop.py").read_text()
    monkeypatch.chdir(tmp_path)
    block = re.search(r"^\$ python -m examples.agent_search (.*?)$\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert block is not None
    main([*shlex.split(block[1]), *place])
    printed = capsys.readouterr().out
    assert masked(printed) == masked(block[2]), printed
    repaired = (tmp_path / "repaired" / "shop.py").read_text()
    assert "sum(prices)" in repaired and "paid - price" in repaired
    assert before == (PROJECT / "shop.py").read_text()


def masked(text: str) -> str:
    """Without the counts of the search: between states of equal score, it is chance which goes on."""
    first, _, rest = text.partition("whole runs")
    return re.sub(r"\d+ (turns|equal|states)", r"N \1", first) + rest


def test_a_model_behind_a_server_that_first_answers_without_a_command(place: list[str], tmp_path: Path) -> None:
    """mini-swe-agent tells the model what was wrong with its answer, and so does the search."""

    def script(asked: Asked) -> Turn:
        if not any("Tool call error" in text for _, text in asked.said):
            return Turn("I think about it first.")
        if not any(role == "assistant" for role, _ in asked.said):
            return run("printf 'print(\"1 passed\")' > checks.py")
        return run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")

    def run(command: str) -> Turn:
        return Turn("I do it.", (Call("bash", {"command": command}),))

    with ModelServer(script, "key") as server:
        words = ["--model", "openai/scripted", "--width", "2", "--keep", "1", "--cost-limit", "0", *place]
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "key",
            "OPENAI_API_BASE": f"{server.url}/v1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_GLOBAL_CONFIG_DIR": str(tmp_path),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        command = [sys.executable, "-m", "examples.agent_search", *words]
        told = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "search        3 turns: 100% of the checks pass\n" in told.stdout, told.stdout
    assert not server.failures and "not executed: 3 equal answers" in told.stdout
