"""Reused steps that are refused because they read what their key does not cover."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramify.compiler.errors import WorkflowError
from ramify.compiler.pipeline import compile_workflow


@pytest.mark.parametrize(
    ("imports", "read", "what"),
    [
        ("import time", "time.time()", "the clock"),
        ("from time import perf_counter", "perf_counter()", "the clock"),
        ("import datetime", "datetime.datetime.now()", "the clock"),
        ("from datetime import date", "date.today()", "the clock"),
        ("import random", "random.choice([1, 2])", "random numbers"),
        ("import secrets", "secrets.token_hex()", "random numbers"),
        ("from uuid import uuid4", "uuid4()", "random numbers"),
        ("import os", "os.environ['HOME']", "the host's environment"),
        ("import os", "os.getenv('HOME')", "the host's environment"),
        ("from pathlib import Path", "Path('~/x').expanduser()", "the host's environment"),
        ("import pathlib", "pathlib.Path('~').expanduser().name", "the host's environment"),
    ],
)
def test_a_reused_step_that_reads_the_clock_or_the_host_is_refused(
    compile_source: Callable[..., Any], imports: str, read: str, what: str
) -> None:
    text = f"""
{imports}
def helper():
    return {read}
@step(reuse=REUSE)
async def measured(sandbox: Sandbox):
    return helper()
@workflow
async def flow():
    await measured()
"""
    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}") as error:
        compile_source(text.replace("REUSE", "True"))
    assert error.value.where.startswith("app/sample.py:")
    assert "pass the value" in error.value.mend
    assert compile_source(text.replace("REUSE", "False")).plan.step("measured") is not None


@pytest.mark.parametrize(
    ("imports", "read", "what"),
    [
        ("import time", "time.time()", "the clock"),
        ("from datetime import datetime as now", "now.now()", "the clock"),
        ("import random as chance", "chance.random()", "random numbers"),
        ("from secrets import token_hex", "token_hex()", "random numbers"),
        ("from os import environ", "environ['HOME']", "the host's environment"),
        ("from pathlib import Path", "str(Path.home())", "the host's environment"),
        ("import pathlib as paths", "str(paths.Path.cwd())", "the host's process"),
        ("from os.path import expanduser", "expanduser('~')", "the host's environment"),
        ("import os.path", "os.path.expandvars('$HOME')", "the host's environment"),
        ("import os.path as p", "p.expanduser('~')", "the host's environment"),
    ],
)
def test_such_a_read_imported_inside_the_step_is_refused(
    compile_source: Callable[..., Any], imports: str, read: str, what: str
) -> None:
    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}"):
        compile_source(f"""
@step(reuse=True)
async def measured(sandbox: Sandbox):
    {imports}
    return {read}
@workflow
async def flow():
    await measured()
""")


@pytest.mark.parametrize(
    ("constant", "what"),
    [
        ("MODE = os.environ.get('MODE', 'none')", "the host's environment"),
        ("HOME: str = os.environ['HOME']\nMODE = HOME + '/x'", "the host's environment"),
        ("MODE = str(time.time())", "the clock"),
    ],
)
def test_a_constant_made_from_the_clock_or_the_host_is_refused(
    compile_source: Callable[..., Any], constant: str, what: str
) -> None:
    text = f"""
import os, time
{constant}
@step(reuse=True)
async def measured(sandbox: Sandbox):
    return USED
@workflow
async def flow():
    await measured()
"""
    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}"):
        compile_source(text.replace("USED", "MODE"))
    assert compile_source(text.replace("USED", "1")).plan.step("measured") is not None


@pytest.mark.parametrize(
    ("far", "what"),
    [
        ("import os\nMODE = os.environ.get('MODE', 'none')\ndef mode():\n    return MODE", "the host's environment"),
        ("import time\ndef mode():\n    return _now()\ndef _now():\n    return time.time()", "the clock"),
        ("def mode():\n    from random import random\n    return random()", "random numbers"),
        ("import sys\nclass Mode:\n    def get(self):\n        return sys.argv\nmode = Mode", "the host's process"),
        ("import os\nif os.getenv('FAST'):\n    mode = 1\nelse:\n    mode = 2", "the host's environment"),
    ],
)
def test_such_a_read_in_another_module_of_the_project_is_refused(
    load: Callable[[Path], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: str, what: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a_far_one", "a_near_one"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "a_far_one.py").write_text(f"import time\n{far}\ndef unused():\n    return time.time()\n")
    (tmp_path / "a_near_one.py").write_text("import a_far_one\ndef asked():\n    return a_far_one.mode\n")
    text = """
from a_near_one import asked
from stand_in import Sandbox, step, workflow
@step(reuse=True)
async def measured(sandbox: Sandbox):
    return USED
@workflow
async def flow():
    await measured()
"""

    def compiled_with(used: str) -> Any:
        (tmp_path / "app.py").write_text(text.replace("USED", used))
        linecache.clearcache()
        return compile_workflow(load(tmp_path / "app.py").flow, ref="app.py:flow").plan

    with pytest.raises(WorkflowError, match=f"measured is declared reuse=True, but it reads {what}") as error:
        compiled_with("asked()")
    assert "a_far_one.py:" in error.value.where
    assert compiled_with("1").step("measured") is not None


def test_a_seeded_random_generator_is_accepted(compile_source: Callable[..., Any]) -> None:
    assert compile_source("""
import random
@step(reuse=True)
async def shuffled(sandbox: Sandbox):
    return random.Random(7).random()
@workflow
async def flow():
    await shuffled()
""").plan.step("shuffled")
