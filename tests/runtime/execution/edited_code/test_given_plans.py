"""Plans that were compiled from other code, or by other versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ramify.compiler.plan import OpKind, Plan
from ramify.runtime.errors import (
    CallNotTold,
    RunFailed,
    StepFailed,
    WorkflowChanged,
)
from tests.plans import compile_plan
from tests.runtime.execution.edited_code.files import DONE, ONCE, THREE, App


async def test_a_given_plan_is_moved_to_the_present_lines(app: App) -> None:
    plan = compile_plan(app.load(THREE).flow)
    module = app.load("# a\n# comment\n" + THREE)
    with pytest.raises(StepFailed):
        await app.runtime.run(module.flow, plan=Plan.from_json(plan.to_json()))
    ran = [row.op_id for row in await app.runtime.journal() if row.kind is OpKind.RUN and row.step == "next_id"]
    assert ran == ["run.3", "run.4", "run.5"]
    (app.folder / "flag").unlink()
    assert await app.resume("#\n" + THREE) == DONE
    assert app.log == ONCE


async def test_a_plan_of_other_code_expects_the_common_operations(app: App) -> None:
    plan = compile_plan(app.load(THREE).flow)
    module = app.load(THREE.replace("    bob =", "    await extra('x')\n    bob ="))
    with pytest.raises(StepFailed):
        await app.runtime.run(module.flow, plan=plan)
    ran = {row.step: row.op_id for row in await app.runtime.journal() if row.kind is OpKind.RUN}
    assert ran["extra"] == "break.unseen"
    (app.folder / "flag").unlink()
    text = THREE.replace("    bob =", "    await extra('x')\n    bob =")
    assert await app.resume("# shifted\n" + text) == DONE


class Forgetful(dict[Any, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


async def test_without_columns_the_line_decides_or_an_error_is_raised(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under PYTHONNODEBUGRANGES."""
    from ramify.runtime.user_code import call_sites

    one = THREE.replace('[await pay("a"), await pay("b")]', '[await pay("a"),\n        await pay("b")]')
    position = call_sites._position
    await app.begin(one)
    monkeypatch.setattr(call_sites, "_POSITIONS", Forgetful())
    monkeypatch.setattr(call_sites, "_position", lambda frame: (*position(frame)[:2], call_sites.NO_COLUMN))
    assert await app.resume(one) == DONE
    assert app.log == ONCE
    (app.folder / "flag").touch()
    with pytest.raises(RunFailed, match="PYTHONNODEBUGRANGES") as error:
        await app.runtime.run(app.load(THREE).flow)
    assert isinstance(error.value.__cause__, CallNotTold)


async def test_a_plan_of_format_5_is_recognised_under_each_python(app: App) -> None:
    """Its digests are computed from `ast.dump`, whose output differs between versions of Python."""
    from ramify.compiler.frontend.python.workflow_reader import read_workflow

    for minor in (11, 12, 13):
        module = app.load(THREE)
        now = compile_plan(module.flow)
        spec = read_workflow(module.flow, ref=now.workflow, version=5, minor=minor)
        said = json.loads(now.to_json())
        for key in ("places", "patches", "files"):
            del said[key]
        for op in said["ops"]:
            del op["origin"]
        said |= {"version": 5, "code_digest": spec.code_digest}
        said["code"] = [
            {"name": p.name, "where": p.where, "digest": p.digest, "steps": list(p.steps)} for p in spec.code
        ]
        said["steps"] = [
            {**step, "code_digest": next(one.code_digest for one in spec.steps if one.name == step["name"])}
            for step in said["steps"]
        ]
        (app.folder / "flag").touch()
        (app.folder / "log").write_text("")
        with pytest.raises(StepFailed):
            await app.runtime.run(app.load(THREE).flow, plan=Plan.from_json(json.dumps(said)))
        (app.folder / "flag").unlink()
        with pytest.raises(WorkflowChanged, match="earlier version of Ramify"):
            await app.resume(THREE.replace("    bob =", "    await extra('x')\n    bob ="), accept_changes=True)
        assert await app.resume("# shifted\n" + THREE) == DONE
        assert app.log == ONCE
