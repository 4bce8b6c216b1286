"""What a plan says of the code that it was compiled from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramify.compiler.affected import changed_parts
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import Plan

FILES = {
    "shared/__init__.py": "from shared import ring\nfrom shared.deep import deep as renamed\n",
    "shared/ring.py": "import shared\nfrom shared import link\ndef turned(x):\n    return (shared, link)\n",
    "shared/link.py": "import shared.ring as ring\ndef linked(x):\n    return repr(ring)\n",
    "shared/every.py": "from shared.starred import *\n",
    "shared/starred.py": "SCALE = 2\nunused_too = 1\nscaled = (lambda by: lambda x: x * by)(SCALE)\n",
    "shared/deep.py": "LEVEL = 1\ndef deep(x):\n    return x + LEVEL\ndef unused(): ...\n",
    "app.py": """
import shared.deep
from math import sqrt
from shared import renamed
from shared.every import *
from stand_in import Sandbox, step, workflow

class Word(str):
    def loud(self):
        return shout(self)
def shout(x):
    return x.upper()
def before(x):
    return renamed(x)
def between(x):
    return Word(x).loud()
def after(x):
    return sqrt(x)
def in_step(x):
    return shared.deep.deep(scaled(x))
def nobody(x):
    return x
@step
async def one(sandbox: Sandbox, x):
    return in_step(x)
@step
async def two(sandbox: Sandbox, x): ...
@step
async def three(sandbox: Sandbox, x): ...
async def pair(x):
    await two(between(x))
    return after(x)
@workflow
async def flow(x):
    for i in range(2):
        await one(i)
        x = before(x)
    await pair(x)
    x = await three(x)
    return shared.ring.turned(x)
""",
}


def plan_of(load: Callable[[Path], Any], folder: Path, monkeypatch: Any, old: str = "", new: str = "") -> Plan:
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name == "shared" or name.startswith("shared.")]:
        monkeypatch.delitem(sys.modules, name)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace(old, new) if old else text)
    return compile_workflow(load(folder / "app.py").flow, ref="app.py:flow").plan


def test_each_part_and_the_steps_that_a_change_may_affect(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan_of(load, tmp_path / "one", monkeypatch)
    every = ("one", "three", "two")
    found = {part.name: part.steps for part in plan.code}
    assert {name: steps for name, steps in found.items() if name not in ("Sandbox", "step", "workflow")} == {
        "flow": every,
        "before": every,  # in a loop with `one`
        "deep": every,
        "LEVEL": every,
        "pair": ("three", "two"),
        "between": ("three", "two"),
        "Word": ("three", "two"),
        "shout": ("three", "two"),
        "after": ("three",),
        "sqrt": ("three",),
        "in_step": ("one",),
        "scaled": ("one",),
        "SCALE": ("one",),
        "one": ("one",),
        "two": ("two",),
        "three": ("three",),
        "turned": (),
        "linked": (),
    }
    assert [part.where for part in plan.code if part.name == "LEVEL"] == ["shared/deep.py:1"]


def test_what_changes_a_digest_is_named(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    whole = plan_of(load, tmp_path / "0", monkeypatch)
    for number, (old, new, name, step, workflow) in enumerate(
        [
            ("LEVEL = 1", "LEVEL = 2", "LEVEL", True, True),
            ("x.upper()", "x.lower()", "shout", False, True),
            ("from math import sqrt", "from cmath import sqrt", "sqrt", False, True),
            ("SCALE = 2", "SCALE = 3", "SCALE", True, False),
            ("unused_too = 1", "unused_too = 2", None, False, False),
            ("shared.deep.deep(scaled(x))", "shared.deep.deep(scaled(x) + 1)", "in_step", True, False),
            ("def unused(): ...", "def unused(): pass", None, False, False),
            ("import Sandbox, step, workflow", "import Sandbox, fork, step, workflow", None, False, False),
        ],
        1,
    ):
        other = plan_of(load, tmp_path / str(number), monkeypatch, old, new)
        assert (other.code_digest != whole.code_digest) == workflow, old
        steps = {step.name: step.code_digest for step in other.steps}
        assert [each.name for each in whole.steps if steps[each.name] != each.code_digest] == ["one"] * step, old
        # the folders differ: a part is told by its name
        before, after = ({(part.name, "app.py", part.digest) for part in plan.code} for plan in (whole, other))
        assert {part[0] for part in before ^ after} == ({name} if name else set()), old
    assert [part.name for part in changed_parts(whole.code, whole.code[1:])] == [whole.code[0].name]


def test_plans_of_the_version_before_are_read(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan_of(load, tmp_path / "one", monkeypatch)
    older = {key: value for key, value in json.loads(plan.to_json()).items() if key != "code"} | {"version": 3}
    assert Plan.from_json(json.dumps(older)).steps == plan.steps
