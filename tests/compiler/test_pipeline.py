"""Goldens: what the compiler says of a sample, in every form that `ramify compile --emit` prints.

`RAMIFY_UPDATE_GOLDENS=1 pytest tests/compiler/test_pipeline.py` writes them anew; read the diff before you commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ramify.compiler.ir.text import parse_graph
from ramify.compiler.pipeline import Compilation, compile_graph, compile_workflow
from ramify.compiler.plan import Plan

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(params=["repair", "coder"])
def compiled(request: pytest.FixtureRequest, sample: Callable[[str], ModuleType]) -> tuple[str, Compilation]:
    name = request.param
    if name == "repair":
        return name, compile_workflow(sample(name).repair, ref="samples/repair.py:repair")
    return name, compile_graph(sample(name).graph, name="coder", ref="samples/coder.py:graph", deadline_s=30.0)


def test_every_form_of_a_sample_is_as_it_was(compiled: tuple[str, Compilation]) -> None:
    name, compilation = compiled
    forms = {
        "spec": compilation.spec_text(),
        "ir": compilation.ir_text(),
        "dot": compilation.dot(),
        "plan.json": compilation.plan.to_json(),
    }
    for ending, text in forms.items():
        golden = GOLDENS / f"{name}.{ending}"
        if os.environ.get("RAMIFY_UPDATE_GOLDENS"):
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8"), f"{golden.name} differs"


def test_the_forms_read_back(compiled: tuple[str, Compilation]) -> None:
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
