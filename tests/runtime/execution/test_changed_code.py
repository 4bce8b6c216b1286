"""A run that is resumed with other code: what is refused, and what is reported."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ramify import Runtime
from ramify.compiler.frontend.python.workflow_reader import format_3_digests, read_workflow
from ramify.runtime.errors import StepFailed, WorkflowChanged
from ramify.runtime.events import Noticed
from tests.plans import compile_plan

HELPERS = """
SCALE = 2

def scaled(x):
    return x * SCALE

def worded(x):
    return str(x)
"""
APP = """
from pathlib import Path
from changing_helpers import scaled
import changing_helpers as more
from ramify import Sandbox, step, workflow

FLAG = Path(__file__).with_name("flag")

def kept(text):
    return text

@step
async def first(sandbox: Sandbox, x: int) -> int:
    return x

@step(reuse=True)
async def second(sandbox: Sandbox, x: int) -> str:
    return kept(more.worded(x))

@step
async def third(sandbox: Sandbox, text: str) -> str:
    if FLAG.exists():
        raise OSError("the flag is there")
    return text

@workflow
async def flow() -> str:
    x = await first(1)
    text = await second(scaled(x))
    return await third(text)
"""

STILL_USED = "their recorded results are still used, unless their parameters are in another order"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes the app, with replacements, and loads it as a new process would."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path / "app")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "flag").touch()

    def load(old: str = "", new: str = "") -> ModuleType:
        for name, text in (("changing_helpers", HELPERS), ("changing_app", APP)):
            (tmp_path / "app" / f"{name}.py").write_text(text.replace(old, new) if old else text)
            sys.modules.pop(name, None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module("changing_app")

    yield load
    for name in ("changing_helpers", "changing_app"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("old", "new", "parts", "steps"),
    [
        ("SCALE = 2", "SCALE = 3", ["SCALE (app/changing_helpers.py:2)"], ("second", "third")),
        ("x * SCALE", "SCALE * x", ["scaled (app/changing_helpers.py:4)"], ("second", "third")),
        ("await first(1)", "await first(2)", ["flow (app/changing_app.py:27)"], ("first", "second", "third")),
    ],
)
async def test_code_that_the_workflow_itself_uses_must_not_change(
    runtime: Runtime,
    workspace: Path,
    app: Callable[..., ModuleType],
    old: str,
    new: str,
    parts: list[str],
    steps: tuple[str, ...],
) -> None:
    with pytest.raises(StepFailed):
        await runtime.run(app().flow, workspace=workspace)
    app(old, new)
    with pytest.raises(WorkflowChanged) as error:
        await runtime.resume(str(runtime.last_run_id))
    assert (list(error.value.parts), error.value.steps) == (parts, steps)
    said = f"{parts[0]}. Its journal no longer fits; steps that may be affected: {', '.join(steps)}."
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return text\n\n@step", "return f'{text}'\n\n@step", "second (kept (app/changing_app.py:9))"),
        ("str(x)", "repr(x)", "second (worded (app/changing_helpers.py:7))"),
    ],
)
async def test_changed_steps_are_reported_and_the_run_continues(
    home: Path, workspace: Path, app: Callable[..., ModuleType], tmp_path: Path, old: str, new: str, said: str
) -> None:
    heard: list[object] = []
    async with Runtime(home=home, sandbox="copy", observer=heard.append) as runtime:
        with pytest.raises(StepFailed):
            await runtime.run(app().flow, workspace=workspace)
        (tmp_path / "app" / "flag").unlink()
        app(old, new)
        assert await runtime.resume(str(runtime.last_run_id)) == "2"
    (noticed,) = [event.what for event in heard if isinstance(event, Noticed)]
    assert noticed == f"changed since the run started: {said}; {STILL_USED}"


async def test_results_of_a_changed_step_are_not_reused_for_its_old_code(
    runtime: Runtime, workspace: Path, app: Callable[..., ModuleType], tmp_path: Path
) -> None:
    """The run was cut off, continued with other code, and then the old code came back."""
    failing = ("return kept(more.worded(x))", 'raise OSError("not yet")')
    with pytest.raises(StepFailed):
        await runtime.run(app(*failing).flow, workspace=workspace)
    (tmp_path / "app" / "flag").unlink()
    app("return kept(more.worded(x))", "return 'of the new code'")
    assert await runtime.resume(str(runtime.last_run_id)) == "of the new code"
    with pytest.raises(StepFailed, match="not yet"):
        await runtime.run(app(*failing).flow, workspace=workspace)


LEFT = """
from pathlib import Path
from ramify import Sandbox, step, workflow

NOTE = Path(__file__).with_name("note")  # changes between two processes; a workflow should not read it

@step
async def write(sandbox: Sandbox, text: str) -> str:
    return text

@step
async def extra(sandbox: Sandbox) -> None: ...

@step(effect="pure")
async def ends() -> None:
    if NOTE.read_text() == "old":
        raise OSError("old")

@workflow
async def flow() -> str:
    text = await write(NOTE.read_text())
    if text == "old":
        await extra()
    await ends()
    return text
"""


async def test_a_resume_reports_recorded_results_that_it_did_not_use(
    home: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "app")
    (tmp_path / "app" / "left_aside_app.py").write_text(LEFT)
    (tmp_path / "app" / "note").write_text("old")
    heard: list[object] = []
    async with Runtime(home=home, sandbox="copy", observer=heard.append) as runtime:
        with pytest.raises(StepFailed):
            await runtime.run(importlib.import_module("left_aside_app").flow, workspace=workspace)
        (tmp_path / "app" / "note").write_text("new")
        assert await runtime.resume(str(runtime.last_run_id)) == "new"
    said = "recorded results that were not used: write (called with other arguments), extra (no longer called)"
    assert [event.what for event in heard if isinstance(event, Noticed)] == [said]


@pytest.mark.parametrize(
    ("old", "new"), [("", ""), ("await first(1)", "await first(3)"), ("return kept(more", "return (more")]
)
async def test_a_run_of_the_version_before_is_resumed_by_its_own_digests(
    home: Path, workspace: Path, app: Callable[..., ModuleType], tmp_path: Path, old: str, new: str
) -> None:
    heard: list[object] = []
    async with Runtime(home=home, sandbox="copy", observer=heard.append) as runtime:
        flow = app().flow
        plan, (whole, each) = compile_plan(flow), format_3_digests(flow)
        steps = tuple(replace(step, code_digest=each[step.name]) for step in plan.steps)
        with pytest.raises(StepFailed):
            await runtime.run(flow, workspace=workspace, plan=replace(plan, code=(), code_digest=whole, steps=steps))
        (tmp_path / "app" / "flag").unlink()
        app(old, new)
        if "first" in old:
            with pytest.raises(WorkflowChanged, match="affected: unknown"):
                await runtime.resume(str(runtime.last_run_id))
        else:
            assert await runtime.resume(str(runtime.last_run_id)) == "2"
    said = [f"changed since the run started: second; {STILL_USED}"]
    assert [event.what for event in heard if isinstance(event, Noticed)] == (said if "kept" in old else [])


LATER = ("x = await first(1)", "from changing_helpers import worded as later\n    x = await first(1)")


async def test_code_that_is_imported_inside_the_workflow_must_not_change(
    runtime: Runtime, workspace: Path, app: Callable[..., ModuleType], tmp_path: Path
) -> None:
    with pytest.raises(StepFailed):
        await runtime.run(app(*LATER).flow, workspace=workspace)
    helpers = tmp_path / "app" / "changing_helpers.py"
    helpers.write_text(HELPERS.replace("str(x)", "repr(x)"))
    linecache.clearcache()  # as in a new process
    with pytest.raises(WorkflowChanged, match=r"worded \(app/changing_helpers.py:7\)"):
        await runtime.resume(str(runtime.last_run_id))


async def test_a_run_of_plan_format_4_is_compared_by_its_own_digests(
    runtime: Runtime, workspace: Path, app: Callable[..., ModuleType], tmp_path: Path
) -> None:
    flow = app(*LATER).flow
    plan, then = compile_plan(flow), read_workflow(flow, ref="", version=4)
    assert then.code_digest != plan.code_digest
    digests = {step.name: step.code_digest for step in then.steps}
    steps = tuple(replace(step, code_digest=digests[step.name]) for step in plan.steps)
    old = replace(plan, version=4, code=then.code, code_digest=then.code_digest, steps=steps)
    with pytest.raises(StepFailed):
        await runtime.run(flow, workspace=workspace, plan=old)
    (tmp_path / "app" / "flag").unlink()
    assert await runtime.resume(str(runtime.last_run_id)) == "2"


async def test_a_plan_of_other_code_reuses_no_results_of_that_code(
    runtime: Runtime, workspace: Path, app: Callable[..., ModuleType], tmp_path: Path
) -> None:
    (tmp_path / "app" / "flag").unlink()
    flow = app().flow
    plan = compile_plan(flow)
    assert await runtime.run(flow, workspace=workspace, plan=plan) == "2"
    flow = app("return kept(more.worded(x))", "return 'of the new code'").flow
    assert await runtime.run(flow, workspace=workspace, plan=plan) == "of the new code"
