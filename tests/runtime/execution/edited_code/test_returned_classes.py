"""Runs whose workflow calls methods of what a step returned, without naming the class; the methods are edited."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ramify.compiler.frontend.python.workflow_reader import read_workflow
from ramify.runtime.errors import StepFailed, WorkflowChanged
from tests.plans import compile_plan
from tests.runtime.execution.edited_code.files import App

CLASSES = """
from dataclasses import dataclass
from typing import Any, Protocol, Optional

@dataclass
class Member:
    name: str

    def _lower(self):
        return self.name.lower()

    low = property(_lower)

    def key(self):
        return self.name

@dataclass
class Team:
    members: list["Member"]

    def __iter__(self):
        return iter(sorted(self.members, key=by))

    def described(self):
        return f"team of {len(self.members)}"

def by(member):
    return member.name

TEAM = Team([Member("ada"), Member("bob")])
"""
FLOW = """
@step
async def load() -> Team:
    log(TEAM.described())
    return TEAM

@workflow
async def flow():
    out = []
    for member in await load():
        out.append(await pay(member.key() or member.low))
    await die()
    return out
"""
ONCE = ["team of 2", "pay ada", "pay bob"]


KEY = "return self.name", "return self.name.upper()"


@pytest.mark.parametrize(
    ("returns", "old", "new"),
    [
        ("-> Team", "return iter(sorted(self.members, key=by))", "return iter(reversed(self.members))"),
        ("-> Team", "return member.name", "return [-ord(each) for each in member.name]"),
        ("-> Team", "lower()", "upper()"),
        ("-> 'Team'", *KEY),
        ("-> Optional[Team]", *KEY),
        ("-> Team | None", *KEY),
        ("-> 'Teams'", *KEY),
        ("-> Any", *KEY),
        ("", *KEY),
        ("-> HasMembers", *KEY),
        ("-> Base", *KEY),
    ],
)
async def test_an_edited_method_of_what_a_step_returned_is_noticed(
    app: App, returns: str, old: str, new: str
) -> None:
    text = CLASSES.replace("class Team:", "class Team(Base):") + "Teams = Team\n" + FLOW.replace("-> Team", returns)
    text = "class Base: ...\n" + text.replace("TEAM =", "class HasMembers(Protocol): ...\nTEAM =")
    await app.begin(text)
    with pytest.raises(WorkflowChanged, match=r"affected: .*pay"):
        await app.resume(text.replace(old, new))
    assert app.log == ONCE
    assert await app.resume(text) == ["ada", "bob"]
    assert app.log == ONCE


RAISED = """
class Late(Exception):
    def fee(self):
        return "low"

def deadline():
    raise Late("late")

@step
async def check() -> int:
    return deadline()

@workflow
async def flow():
    try:
        await check()
    except Exception as error:
        paid = await pay(error.fee())
    await die()
    return paid
"""


async def test_an_edited_method_of_what_a_step_raised_is_noticed(app: App) -> None:
    await app.begin(RAISED)
    with pytest.raises(WorkflowChanged, match=r"Late\.fee"):
        await app.resume(RAISED.replace('"low"', '"high"'))
    assert await app.resume("# moved\n" + RAISED) == "low"
    assert app.log == ["pay low"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('f"team of', 'f"a team of'),  # only the step calls it
        ("    name: str\n", "    name: str\n    mail: str = ''\n"),
        ("    def __iter__(self):\n        return", "    # in order\n    def __iter__(  self  ):\n\n        return"),
        ("class Member:", "class Person:"),
        ("return self.name", "found = self.name\n        return found"),
    ],
)
async def test_other_edits_of_these_classes_are_no_change_of_the_workflow(app: App, old: str, new: str) -> None:
    text = CLASSES.replace("return self.name", "given = self.name\n        return given") + FLOW
    await app.begin(text)
    edited = text.replace("given", "found") if "found" in new else text.replace(old, new)
    assert edited != text
    if "Person" in new:
        edited = edited.replace("@dataclass\nclass Team", "Member = Person\n@dataclass\nclass Team")
    assert await app.resume(edited) == ["ada", "bob"]
    assert app.log == ONCE


async def test_a_method_that_names_its_own_class_in_annotations_leaves_its_fields_free(app: App) -> None:
    text = CLASSES.replace(
        "    def key(self):",
        "    def __lt__(self, other: 'Member | Team') -> bool:\n"
        "        return isinstance(other, Member) and self.name < other.name\n\n    def key(self):",
    )
    text = text.replace("self.members, key=by", "self.members") + FLOW
    await app.begin(text)
    edited = text.replace("    name: str\n", "    name: str\n    mail: str = ''\n")
    assert await app.resume(edited) == ["ada", "bob"]
    assert app.log == ONCE


async def test_a_run_of_plan_format_8_is_compared_by_its_own_digests(app: App) -> None:
    module = app.load(CLASSES + FLOW)
    plan, then = compile_plan(module.flow), read_workflow(module.flow, ref="", version=8)
    assert then.code_digest != plan.code_digest
    digests = {each.name: each.code_digest for each in then.steps}
    steps = tuple(replace(each, code_digest=digests[each.name]) for each in plan.steps)
    old = replace(plan, version=8, code=then.code, code_digest=then.code_digest, steps=steps)
    with pytest.raises(StepFailed):
        await app.runtime.run(module.flow, plan=old)
    (app.folder / "flag").unlink()
    assert await app.resume("# moved\n" + CLASSES + FLOW) == ["ada", "bob"]
    assert app.log == ONCE


def test_a_long_chain_of_classes_is_followed(app: App) -> None:
    classes = [
        f"class C{n}:\n    next: 'C{n + 1} | None' = None\n    def key(self): return {n}\n" for n in range(1000)
    ]
    flow = "@step\nasync def load() -> C0: ...\n\n@workflow\nasync def flow():\n    return (await load()).key()\n"
    first, last = (
        compile_plan(app.load("".join((*classes[:-1], end, flow))).flow).code_digest
        for end in (classes[-1], classes[-1].replace("return 999", "return 0"))
    )
    assert first != last
