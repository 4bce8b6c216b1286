"""The parts of the code that a plan was compiled from, and their digests."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.change_impact import changed_parts
from ramify.compiler.frontend.python.modules import digest
from ramify.compiler.frontend.python.sources import Sources
from ramify.compiler.frontend.python.workflow_reader import format_3_digests
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


def test_the_part_that_changes_a_digest_is_named(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
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
        # the folders differ, so a part is identified by its name
        before, after = ({(part.name, "app.py", part.digest) for part in plan.code} for plan in (whole, other))
        assert {part[0] for part in before ^ after} == ({name} if name else set()), old
    assert [part.name for part in changed_parts(whole.code, whole.code[1:])] == [whole.code[0].name]


LATER = {
    "later/__init__.py": "",
    "later/app.py": """
from stand_in import Sandbox, step, workflow
@step
async def one(sandbox: Sandbox, x):
    from .near import near
    import later.whole
    return near(x)
@step
async def two(sandbox: Sandbox, x): ...
def between(x):
    import json
    from later import sub
    from later.near import missing
    return sub.up(x)
@workflow
async def flow(x):
    await one(x)
    await two(between(x))
""",
    "later/near.py": "from later.deep import *\nfrom . import whole as other\n"
    "def near(x):\n    return level(x) + other.A\ndef far(x): ...\n",
    "later/deep.py": "SCALE = 2\ndef level(x):\n    return x * SCALE\n",
    "later/sub/__init__.py": "def up(x):\n    return x\n",
    "later/whole.py": "A = 1\nB = 2\n",
}


def later_plan(load: Callable[..., Any], folder: Path, old: str = "", new: str = "") -> Plan:
    for name, text in LATER.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace(old, new) if old else text)
    return compile_workflow(load(folder / "later" / "app.py", "later.app").flow, ref="app.py:flow").plan


@pytest.mark.parametrize(
    ("old", "new", "name", "steps"),
    [
        ("SCALE = 2", "SCALE = 3", "SCALE", ("one",)),
        ("x * SCALE", "SCALE * x", "level", ("one",)),
        ("return level(x)", "return 1 + level(x)", "near", ("one",)),
        ("A = 1", "A = 7", "A", ("one",)),
        ("B = 2", "B = 7", "B", ("one",)),
        ("    return x\n", "    return -x\n", "up", ("two",)),
        ("def far(x): ...", "def far(y): ...", None, ()),
    ],
)
def test_imports_inside_a_function_are_parts_loaded_or_not(
    load: Any, tmp_path: Path, monkeypatch: Any, old: str, new: str, name: str | None, steps: tuple[str, ...]
) -> None:
    whole = later_plan(load, tmp_path)
    other = later_plan(load, tmp_path, old, new)
    changed = changed_parts(whole.code, other.code)
    assert [(part.name, part.steps) for part in changed] == ([(name, steps)] if name else [])
    digests = {step.name: step.code_digest for step in other.steps}
    assert [step.name for step in whole.steps if digests[step.name] != step.code_digest] == ["one"] * ("one" in steps)
    assert (whole.code_digest != other.code_digest) == ("two" in steps), "the workflow's own"
    monkeypatch.syspath_prepend(tmp_path)
    loaded = ("later", "later.near", "later.deep", "later.sub", "later.whole")
    try:
        for module in loaded:
            importlib.import_module(module)
        assert later_plan(load, tmp_path, old, new).code == other.code
    finally:
        for module in loaded:
            sys.modules.pop(module, None)


INSIDE = {
    "whole/__init__.py": "",
    "whole/above.py": "K = 2\ndef above(x):\n    return x * K\n",
    "whole/sub/__init__.py": "",
    "whole/sub/app.py": """
from stand_in import Sandbox, step, workflow
from whole.above import above
@step
async def one(sandbox: Sandbox, x):
    from whole.above import K
@workflow
async def flow(x):
    await one(above(x))
""",
}


def test_digests_are_equal_for_a_module_and_for_main(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """`ramify resume` loads it by its file; as a script, or by `python -m`, its name is `__main__`."""
    for name, text in INSIDE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        plans = [
            compile_workflow(load(tmp_path / "whole/sub/app.py", name).flow, ref="app.py:flow").plan
            for name in ("whole.sub.app", "__main__")
        ]
    finally:
        for module in ("whole", "whole.above", "whole.sub"):
            sys.modules.pop(module, None)
    assert plans[0].code == plans[1].code
    assert (plans[0].code_digest, plans[0].steps) == (plans[1].code_digest, plans[1].steps)
    assert {"above", "K"} <= {part.name for part in plans[0].code}


def test_plans_of_earlier_versions_are_read(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan_of(load, tmp_path / "one", monkeypatch)
    older = {key: value for key, value in json.loads(plan.to_json()).items() if key != "code"} | {"version": 3}
    assert Plan.from_json(json.dumps(older)).steps == plan.steps
    before = json.loads(plan.to_json()) | {"version": 4}
    assert Plan.from_json(json.dumps(before)).version == 4


METHOD = """
from stand_in import Sandbox, step, workflow

@step
async def edit(sandbox: Sandbox): ...
async def helper():
    await edit()
class Agent:
    async def works(self):
        await helper()
async def later():
    await edit()
def rebinds():
    global later
    later = helper
@workflow
async def flow(agent):
    await agent.works()
    await later()
"""


def test_format_3_digests_cover_what_format_3_covered(load: Any, tmp_path: Path) -> None:
    """It did not cover methods that run steps, and took a global that functions rebind for its current value."""
    (tmp_path / "methods.py").write_text(METHOD)
    app, sources = load(tmp_path / "methods.py"), Sources()
    whole, steps = format_3_digests(app.flow)
    assert whole == digest([sources.function(app.flow).node, sources.function(app.later).node])
    assert set(steps) == {"edit"}


CHANGED_AFTER_IT_IS_BOUND = """
from stand_in import step, workflow
CFG = {}
CFG["amount"] = 100
TABLE = []
for each in ("a", "b"):
    TABLE.append(each)
def chosen(x):
    return x
HANDLERS = {}
HANDLERS.update(one=chosen)
class Options: ...
Options.limit = 3
OTHER = {}
OTHER["x"] = 1
class Log:
    def level(self, x): ...
log = Log()
log.level(1)
@step
async def pay(x): ...
@workflow
async def flow(x):
    for each in TABLE:
        log.level(0)
        await pay(CFG["amount"] + Options.limit)
    return HANDLERS["one"](x)
"""


@pytest.mark.parametrize(
    ("old", "new", "noticed"),
    [
        ('CFG["amount"] = 100', 'CFG["amount"] = 101', True),
        ('"a", "b"', '"a", "b", "c"', True),
        ("    return x\nHAND", "    return [x]\nHAND", True),  # a function that is reached through a table
        ("one=chosen", "one=print", True),
        ("Options.limit = 3", "Options.limit = 4", True),
        ('OTHER["x"] = 1', 'OTHER["x"] = 2', False),
        ("log.level(1)", "log.level(2)", False),
    ],
)
def test_statements_that_change_what_a_name_is_bound_to_belong_to_it(
    load: Any, tmp_path: Path, old: str, new: str, noticed: bool
) -> None:
    assert old in CHANGED_AFTER_IT_IS_BOUND
    plans = []
    for number, text in enumerate((CHANGED_AFTER_IT_IS_BOUND, CHANGED_AFTER_IT_IS_BOUND.replace(old, new))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "app.py").write_text(text)
        plans.append(compile_workflow(load(tmp_path / str(number) / "app.py").flow, ref="app.py:flow").plan)
    assert (plans[0].code_digest != plans[1].code_digest) is noticed
