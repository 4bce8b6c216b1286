"""The second example, with a scripted model: it repairs its project, goes back, and runs on as a branch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import ramify.graph
from examples.coder_graph.__main__ import PROJECT, demo
from examples.coder_graph.edits import applied, candidates, shown
from examples.coder_graph.graph import build
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest
from tests.warm_process import WarmInterpreter

MENDS = (" != 0", "all(tag", "+ 0 + len(word)")


def model(request: ChatRequest) -> dict[str, float]:
    """Knows the edits that help; picks B, a wrong one, where none of them is offered."""
    options = [line for line in request.messages[-1].content.splitlines() if line[1:3] == ") "]
    good = [option[0] for option in options if any(mend in option for mend in MENDS)]
    return {good[0] if good else "B": 1.0, "A": 0.1}


@pytest.mark.parametrize("sandbox", ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)])
async def test_it_repairs_goes_back_and_on(sandbox: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = LLMClient("http://model.test/v1", transport=ScriptedModel(model))
    before = {path: path.read_bytes() for path in PROJECT.rglob("*.py")}
    with (
        ramify.graph.Saver(home / "threads.db") as saver,
        ramify.compile(build(), PROJECT, checkpointer=saver, home=home, sandbox=sandbox, llm=client) as app,
    ):
        await demo(app, "t")
        config: Any = {"configurable": {"thread_id": "t"}}
        said = capsys.readouterr().out
        assert said.count("0 failing on the tree") == 2
        assert "the files went back with the state" in said
        states = list(app.get_state_history(config))
        fork = next(state for state in states if state.metadata["source"] == "fork")
        back = next(state for state in states if state.config == fork.parent_config)
        end = states[0]
        changed = [change.path for change in ramify.graph.changes(app, fork.config, end.config)]
        assert len(changed) == 1
        then, began, last = (ramify.graph.read(app, state.config, changed[0]) for state in (back, fork, end))
        assert then == began != last
    assert {path: path.read_bytes() for path in PROJECT.rglob("*.py")} == before  # the workspace is as it was


def test_candidates_stay_in_the_function_that_the_test_is_named_after() -> None:
    source = (PROJECT / "notes" / "wrap.py").read_text()
    edits = candidates("notes/wrap.py", source, "test_shorten_leaves_what_fits")
    assert {edit["line"] for edit in edits} == {6, 8}
    assert all(applied(source, edit) != source for edit in edits)
    assert len({shown(edit) for edit in edits}) == len(edits)


def test_without_weights_it_says_what_to_do(tmp_path: Path, warm_langgraph: WarmInterpreter) -> None:
    program = "import runpy; runpy.run_module('examples.coder_graph', None, '__main__')"
    home = {**os.environ, "RAMIFY_HOME": str(tmp_path)}
    ran = warm_langgraph.run(["--sandbox", "copy"], cwd=PROJECT.parents[2], env=home, program=program)
    assert ran.returncode == 1
    assert "ramify models pull" in ran.stderr
    assert "Traceback" not in ran.stderr
