"""Errors that travel from a node arrive as what they were."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace

import pytest

from ramify.fleet.carried_errors import CarriedError, NodeTraceback, carried, rebuilt
from ramify.fleet.errors import FailedOnNode
from ramify.fork_engine.errors import RemoteUnusable
from ramify.runtime.errors import LeaseHeld, RunWaiting, StepFailed


def sent(error: BaseException) -> CarriedError:
    found: CarriedError = pickle.loads(pickle.dumps(carried(error)))
    return found


@pytest.mark.parametrize(
    "error",
    [
        StepFailed("no", step="try", branch="root", run_id="r1"),
        LeaseHeld("busy", host="m", pid=3, renewed=(1, 2)),
        RunWaiting("why", question={"a": [1]}, run_id="r1"),
        RemoteUnusable("gone"),
        KeyError("k"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_class_message_and_attributes_are_kept(error: Exception) -> None:
    made = rebuilt(sent(error), "m (1)")
    assert type(made) is type(error)
    assert str(made) == str(error)
    assert {name: value for name, value in vars(made).items() if name != "__notes__"} == vars(error)
    assert made.__notes__ == ["on node m (1)"]


def test_the_cause_is_the_traceback_on_the_node() -> None:
    try:
        try:
            raise ValueError("below")
        except ValueError as error:
            raise StepFailed("above", step="s", branch="root", run_id="r1") from error
    except StepFailed as error:
        made = rebuilt(sent(error), "m")
    assert isinstance(made.__cause__, NodeTraceback)
    assert "ValueError: below" in str(made.__cause__)
    assert "test_carried_errors.py" in str(made.__cause__)


def test_a_class_that_is_not_here_is_named() -> None:
    gone = replace(carried(ValueError("what")), module="users_module", name="Theirs")
    made = rebuilt(gone, "m")
    assert isinstance(made, FailedOnNode)
    assert str(made) == "node m raised Theirs: what"
    assert made.kind == "users_module.Theirs"


def test_what_cannot_travel_is_left_behind() -> None:
    error = RuntimeError("held", threading.Lock())
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    made = rebuilt(sent(error), "m")
    assert made.args[0] == "held"
    assert "lock" in made.args[1]
    assert not hasattr(made, "lock")
