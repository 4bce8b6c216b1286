"""Errors that travel from a node arrive as what they were."""

from __future__ import annotations

import pickle
import sys
import threading
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest

from ramify.fleet.carried_errors import CarriedError, NodeTraceback, carried, rebuilt
from ramify.fleet.errors import FailedOnNode
from ramify.fork_engine.errors import RemoteUnusable
from ramify.runtime.errors import EffectInDoubt, LeaseHeld, RunWaiting, StepFailed


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


def test_its_cause_is_kept_and_below_it_the_traceback_on_the_node() -> None:
    try:
        try:
            raise EffectInDoubt("below", run_id="r1", key="k")
        except EffectInDoubt as error:
            raise StepFailed("above", step="s", branch="root", run_id="r1") from error
    except StepFailed as error:
        made = rebuilt(sent(error), "m")
    assert isinstance(made.__cause__, EffectInDoubt)
    assert made.__cause__.doubtful_run == "r1"  # what the command line's exit status depends on
    trace = made.__cause__.__cause__
    assert isinstance(trace, NodeTraceback)
    assert "EffectInDoubt: below" in str(trace)
    assert "test_carried_errors.py" in str(trace)


def test_without_a_cause_the_traceback_on_the_node_is_the_cause() -> None:
    made = rebuilt(sent(KeyError("k")), "m")
    assert str(made.__cause__) == "\nKeyError: 'k'"


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Picky(Exception):
    """Its message needs what does not travel."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        super().__init__()

    def __str__(self) -> str:
        return f"{self.lock.locked()}"


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", "a.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        SyntaxError("invalid syntax", ("a.py", 3, 1, "if", 3, 2)),
        ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
        StopAsyncIteration(),
        Frozen(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_classes_that_keep_their_state_elsewhere(error: Exception) -> None:
    made: Any = rebuilt(sent(error), "m")
    assert type(made) is type(error)
    assert str(made) == str(error)
    for name in ("errno", "filename", "reason", "lineno", "code"):
        assert getattr(made, name, None) == getattr(error, name, None)
    assert isinstance(made.__cause__, NodeTraceback)


class Refused(Exception):
    """Its constructor takes what its message is made of."""

    def __init__(self, status: int, *, body: str) -> None:
        self.status, self.body = status, body
        super().__init__(f"{status}: {body}")


class Slotted(Exception):
    """Its state is in none of the places where errors keep theirs, so it says how it is made again."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__()

    def __str__(self) -> str:
        return f"code {self.code}"

    def __reduce__(self) -> Any:
        return Slotted, (self.code,)


def test_errors_in_a_group_are_what_they_were() -> None:
    inner = ExceptionGroup("inner", [Refused(503, body="busy")])
    made = rebuilt(sent(ExceptionGroup("outer", [Refused(500, body="down"), inner])), "m")
    assert isinstance(made, ExceptionGroup)
    first, second = made.exceptions
    assert isinstance(first, Refused)
    assert (first.status, first.body) == (500, "down")
    assert isinstance(second, ExceptionGroup)
    assert [type(one) for one in second.exceptions] == [Refused]


def test_an_error_in_an_attribute_is_what_it_was_and_one_that_holds_itself_ends() -> None:
    error = RuntimeError("above")
    error.first, error.itself = Refused(500, body="down"), error  # type: ignore[attr-defined]
    made: Any = rebuilt(sent(error), "m")
    assert isinstance(made.first, Refused)
    assert made.first.body == "down"
    assert not hasattr(made, "itself")


def test_a_class_that_says_how_it_is_pickled_is_asked() -> None:
    made = rebuilt(sent(Slotted(3)), "m")
    assert isinstance(made, Slotted)
    assert made.code == 3


def test_notes_travel_and_the_node_is_named_once() -> None:
    """The program that has the fleet passes on an error of one node to another one."""
    error = ValueError("no")
    error.add_note("look there")
    once = rebuilt(sent(error), "m")
    twice = rebuilt(sent(once), "m")
    assert once.__notes__ == twice.__notes__ == ["look there", "on node m"]


def test_a_class_that_is_not_here_is_named() -> None:
    gone = replace(carried(ValueError("what")), module="users_module", name="Theirs")
    made = rebuilt(gone, "m")
    assert isinstance(made, FailedOnNode)
    assert str(made) == "node m raised Theirs: what"
    assert made.kind == "users_module.Theirs"


def test_what_cannot_travel_is_left_behind() -> None:
    error = RuntimeError("held")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    made = rebuilt(sent(error), "m")
    assert isinstance(made, RuntimeError)
    assert made.args == ("held",)
    assert not hasattr(made, "lock")


@pytest.mark.parametrize("error", [RuntimeError("held", threading.Lock()), Picky(threading.Lock())])
def test_an_error_that_would_say_something_else_is_told(error: Exception) -> None:
    made = rebuilt(sent(error), "m")
    assert isinstance(made, FailedOnNode)
    assert str(made) == f"node m raised {type(error).__name__}: {error}"


def test_objects_whose_class_is_not_here_cost_neither_the_answer_nor_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = ModuleType("users_module")
    exec("class Thing: pass", vars(theirs))
    monkeypatch.setitem(sys.modules, "users_module", theirs)
    kept = RuntimeError("held")
    kept.thing, kept.word = theirs.Thing(), "a"  # type: ignore[attr-defined]
    travelling = [pickle.dumps(carried(error)) for error in (kept, ValueError(theirs.Thing()))]
    monkeypatch.delitem(sys.modules, "users_module")
    made, told = (rebuilt(pickle.loads(one), "m") for one in travelling)
    assert isinstance(made, RuntimeError)
    assert {name: value for name, value in vars(made).items() if name != "__notes__"} == {"word": "a"}
    assert isinstance(told, FailedOnNode)
    assert "node m raised ValueError: <users_module.Thing" in str(told)


def test_a_class_of_the_program_is_that_of_its_file_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the file of the program is a module with its own name."""
    there, here = ModuleType("flow_of_mine"), ModuleType("__main__")
    here.__file__ = "/somewhere/flow_of_mine.py"
    for module in (there, here):
        exec("class Thing: ...\nclass Wrong(Exception): ...", vars(module))
    monkeypatch.setitem(sys.modules, "flow_of_mine", there)
    error = there.Wrong("no")
    error.thing = there.Thing()
    travels = sent(error)
    monkeypatch.delitem(sys.modules, "flow_of_mine")
    monkeypatch.setitem(sys.modules, "__main__", here)
    made = rebuilt(travels, "m")
    assert type(made) is here.Wrong
    assert type(vars(made)["thing"]) is here.Thing
    assert carried(made).module == "flow_of_mine"
