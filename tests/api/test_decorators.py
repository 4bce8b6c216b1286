"""What the decorators accept, and what they refuse by name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from ramify import Sandbox, SyncSandbox, step, workflow
from ramify.compiler.plan import Effect


async def takes(sandbox: Sandbox, x: int) -> int:
    return x


def takes_sync(box: SyncSandbox) -> None: ...


async def takes_none(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("function", "options", "declared", "effect", "parameter"),
    [
        (takes, {}, None, Effect.REVERTIBLE, "sandbox"),
        (takes_sync, {}, None, Effect.REVERTIBLE, "box"),
        (takes_none, {}, None, Effect.UNKNOWN, None),
        (takes_none, {"effect": "pure"}, Effect.PURE, Effect.PURE, None),
        (takes, {"effect": "irreversible"}, Effect.IRREVERSIBLE, Effect.IRREVERSIBLE, "sandbox"),
    ],
)
def test_effects_are_declared_or_inferred(
    function: Any, options: dict[str, Any], declared: Effect | None, effect: Effect, parameter: str | None
) -> None:
    made = step(**options)(function)
    assert made.__ramify_step__.effect is declared
    assert made.definition.effect is effect
    assert made.definition.sandbox_parameter == parameter
    assert made.__ramify_step__.takes_sandbox is (parameter is not None)
    assert made.__wrapped__ is function
    assert made.__name__ == function.__name__


def test_pure_step_takes_no_sandbox() -> None:
    with pytest.raises(TypeError, match=r"takes.*pure"):
        step(effect="pure")(takes)


def test_step_takes_at_most_one_sandbox() -> None:
    async def two(a: Sandbox, b: Sandbox) -> None: ...

    with pytest.raises(TypeError, match="2 sandboxes"):
        step(two)


@pytest.mark.parametrize(
    "options", [{"retry": -1}, {"timeout": "soon"}, {"effect": "harmless"}, {"timeout": 0}], ids=lambda o: str(o)
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"retry|duration|harmless"):
        step(**options)(takes)


def test_irreversible_step_cannot_be_reused() -> None:
    """A later run would say that it was done, with nothing in its ledger; a checked one would do it twice."""
    with pytest.raises(TypeError, match=r"is irreversible and declared reuse=True: .*Remove one"):
        step(effect="irreversible", reuse=True)(takes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"effect": "nope"}, "effect='nope'.*'readonly', 'revertible', 'irreversible'"),
        ({"effect": "irreversible", "in_fork": "maybe"}, "in_fork='maybe'.*'refuse', 'recorded', 'leave'"),
    ],
)
def test_an_unknown_word_is_answered_with_those_that_there_are(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        step(**options)


@pytest.mark.parametrize("given", [Sandbox, functools.partial(takes, x=1), step(takes)])
def test_step_refuses_what_is_not_a_function(given: Any) -> None:
    with pytest.raises(TypeError, match="is not a function: put @step on"):
        step(given)


def test_workflow_refuses_what_is_not_a_function() -> None:
    with pytest.raises(TypeError, match="put @workflow on a `def` or an `async def`"):
        workflow(Path)


def test_workflow_has_its_reference_deadline_and_workspace() -> None:
    made = workflow(deadline="2m", workspace="somewhere")(takes_none)
    assert made.__ramify_workflow__.deadline_s == 120
    assert made.workspace == Path("somewhere")
    assert made.__ramify_workflow__.ref.endswith("test_decorators.py:takes_none")


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_step_stands_below_staticmethod_and_classmethod(kind: Any) -> None:
    with pytest.raises(TypeError, match=rf"@step stands above @{kind.__name__} of takes_none: put it below"):
        step(kind(takes_none))
