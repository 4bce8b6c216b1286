"""Golden files: the compiler's output for a sample, in every form that `ramify compile --emit` prints.

`RAMIFY_UPDATE_GOLDENS=1 pytest tests/compiler/test_pipeline.py` writes them anew; read the diff before you commit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from examples.coder_graph import graph as coder
from examples.repair import workflow as repair
from ramify.compiler.pipeline import Compilation, compile_graph, compile_workflow
from ramify.compiler.plan import Plan
from tests.compiler.graph_parser import parse_graph

FILE = "tests/compiler/test_pipeline.py"
GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(params=["repair", "coder"])
def compiled(request: pytest.FixtureRequest, sample: Callable[[str], ModuleType]) -> tuple[str, Compilation]:
    name = request.param
    if name == "repair":
        return name, compile_workflow(sample(name).repair, ref="samples/repair.py:repair")
    return name, compile_graph(sample(name).graph, name="coder", ref="samples/coder.py:graph", deadline_s=30.0)


def test_every_output_of_a_sample_matches_its_golden(compiled: tuple[str, Compilation]) -> None:
    name, compilation = compiled
    forms = {
        "spec": compilation.spec_text(),
        "ir": compilation.ir_text(),
        "dot": compilation.dot(),
        "mmd": compilation.mermaid(),
        "plan.json": compilation.plan.to_json(),
    }
    check_goldens(name, forms)


def check_goldens(name: str, forms: Mapping[str, str]) -> None:
    for ending, exact in forms.items():
        golden = GOLDENS / f"{name}.{ending}"
        text = re.sub(r"\b[0-9a-f]{64}\b", "DIGEST", exact)  # each version of Python has its own syntax trees
        if os.environ.get("RAMIFY_UPDATE_GOLDENS"):
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8"), (
            f"{golden.name} differs. If the new output is right: RAMIFY_UPDATE_GOLDENS=1 pytest {FILE}, read the diff"
        )


@pytest.mark.parametrize("name", ["repair", "coder"])
def test_the_plans_of_the_examples_match_their_goldens(name: str) -> None:
    """These are the examples that people run; the samples above exist only for these tests."""
    if name == "repair":
        made = compile_workflow(repair.repair, ref="examples/repair/workflow.py:repair")
    else:
        made = compile_graph(coder.build(), name="coder", ref="examples/coder_graph/graph.py:build")
    check_goldens(f"{name}_example", {"ir": made.ir_text(), "plan": by_lines(made.plan)})


def by_lines(plan: Plan) -> str:
    """Return a plan without its code parts, one item a line."""
    said: dict[str, Any] = json.loads(plan.to_json())
    del said["code"]
    parts = ((key, item) for key, value in said.items() for item in (value if isinstance(value, list) else [value]))
    return "".join(f"{key} {json.dumps(item)}\n" for key, item in parts)


def test_ir_text_and_plan_json_read_back_equal(compiled: tuple[str, Compilation]) -> None:
    _, compilation = compiled
    assert parse_graph(compilation.ir_text()) == compilation.ssg
    assert Plan.from_json(compilation.plan.to_json()) == compilation.plan


def test_compiling_twice_gives_the_same_plan(sample: Callable[[str], ModuleType]) -> None:
    first, second = (compile_workflow(sample("repair").repair, ref="r") for _ in range(2))
    assert first.plan == second.plan
    assert first.ssg.digest == second.ssg.digest


def test_name_and_deadline_are_the_decorators_unless_given(sample: Callable[[str], ModuleType]) -> None:
    flow = sample("repair").repair
    assert compile_workflow(flow, ref="r").plan.deadline_s == 90.0
    plan = compile_workflow(flow, ref="r", name="other", deadline_s=5.0).plan
    assert (plan.name, plan.deadline_s, plan.workflow) == ("other", 5.0, "r")


def test_the_compiler_imports_langgraph_only_to_read_a_graph() -> None:
    script = "import sys, ramify.compiler.pipeline; print('langgraph' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert found == "False\n"


def test_a_plan_is_read_without_the_compiler() -> None:
    """A run needs only the two modules of the plan."""
    script = (
        "import sys; from ramify.compiler.plan import Plan; Plan.from_json(sys.stdin.read());"
        "print(*sorted(m for m in sys.modules if m.startswith('ramify.compiler.')))"
    )
    plan = (GOLDENS / "repair.plan.json").read_text(encoding="utf-8")
    found = subprocess.run([sys.executable, "-c", script], input=plan, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["ramify.compiler.plan", "ramify.compiler.plan_json"]
