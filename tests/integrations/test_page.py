"""The code blocks of the pages of harnesses: each names what its package has, and those that need no model run."""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks

PACKAGES = {
    "mini-swe-agent": "minisweagent",
    "deepagents": "deepagents",
    "openai-agents": "agents.sandbox",  # `agents` alone is also the folder beside this one
    "swe-rex": "swerex",
    "nemo-gym": "nemo_gym",
    "verifiers": "verifiers.v1",
    "openenv": "openenv.core.env_server",
}
PAGES = [ROOT / "docs" / "how-to" / name for name in ("harnesses.md", "training-harnesses.md")]
BLOCKS = {block.needs: block for page in PAGES for block in blocks(page) if block.needs}


def code_of(needs: str) -> Block:
    pytest.importorskip(PACKAGES[needs], reason=f"needs {needs}: pip install 'ramify[{needs}]'")
    return BLOCKS[needs]


def run(tree: ast.Module, names: dict[str, Any]) -> None:
    code = compile(tree, "harnesses.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


@pytest.fixture
def repository(repo: Path, sandbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repo.rename(tmp_path / "repository")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAMIFY_SANDBOX", sandbox)
    return tmp_path / "repository"


def test_every_block_is_here() -> None:
    assert BLOCKS.keys() == PACKAGES.keys()


@pytest.mark.parametrize("needs", PACKAGES)
def test_what_a_block_imports_is_there(needs: str) -> None:
    tree = ast.parse(code_of(needs).text)
    run(ast.Module([node for node in tree.body if isinstance(node, ast.ImportFrom)], []), {})


def test_swe_rex(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "src").mkdir()
    run(ast.parse(code_of("swe-rex").text), {})
    assert capsys.readouterr().out.count(f"{repository}/src\\n1\\n") == 3


def test_mini_swe_agent(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = code_of("mini-swe-agent")
    from minisweagent.models.test_models import DeterministicModel, make_output

    async def run_tests(turns: Any, history: Sequence[Any]) -> float:
        return float(len(history))

    submit = make_output("", [{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat main.py"}])
    templates = {"system_template": "Fix.", "instance_template": "{{task}}", "cost_limit": 0}
    names = {"model": DeterministicModel(outputs=[submit] * 9), "templates": templates, "task": "t"}
    run(ast.parse(block.text), {**names, "run_tests": run_tests})
    assert "print('hello')" in capsys.readouterr().out
