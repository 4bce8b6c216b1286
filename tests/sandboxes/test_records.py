"""Records behave as dataclasses, also for the standard library's own functions."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify.sandboxes import records
from ramify.sandboxes.agent.messages import Run
from ramify.sandboxes.agent.mount_server import Overlay


@records.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0
    seen: list[int] = records.field(default_factory=list)

    def moved(self) -> Point:
        return records.replace(self, x=self.x + 1)


@records.dataclass
class Box:
    corner: Point
    others: dict[str, Point] = records.field(default_factory=dict)
    label: str = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class PlainPoint:
    x: int
    y: int = 0
    seen: list[int] = dataclasses.field(default_factory=list)


CASES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, 2), {}),
    ((1, 2, [3]), {}),
    ((), {"x": 1, "seen": [2]}),
    ((1,), {"y": 5}),
    ((), {}),
    ((1,), {"x": 2}),
    ((1,), {"z": 2}),
    ((1, 2, [3], 4), {}),
]


@pytest.mark.parametrize(("values", "named"), CASES)
def test_values_are_taken_or_refused_as_by_a_dataclass(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        plain = PlainPoint(*values, **named)
    except TypeError:
        with pytest.raises(TypeError, match="Point"):
            Point(*values, **named)
        return
    assert repr(Point(*values, **named)) == repr(plain).replace("PlainPoint", "Point")
    assert records.asdict(Point(*values, **named)) == dataclasses.asdict(plain)
    assert records.astuple(Point(*values, **named)) == dataclasses.astuple(plain)


def test_defaults_are_not_shared() -> None:
    assert Point(1).seen is not Point(1).seen


def test_equality_hash_and_match() -> None:
    assert Point(1, 2) == Point(1, 2) != Point(1, 3)
    assert Point(1) != PlainPoint(1)
    assert len({Overlay("u", "w", "p"), Overlay("u", "w", "p"), Overlay("u", "w", "q")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Box(Point(1)))
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_a_frozen_record_does_not_change_and_has_no_other_attributes() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x  # type: ignore[misc]
    assert not hasattr(point, "__dict__")
    assert point.moved() == Point(2)


def test_a_record_that_is_not_frozen_changes() -> None:
    box = Box(Point(1))
    box.label = "other"
    assert (box.label, Box.label) == ("other", "none")
    assert records.asdict(Box(Point(1), {"a": Point(2)}))["others"] == {"a": {"x": 2, "y": 0, "seen": []}}


def test_the_standard_functions_work_on_records() -> None:
    point = Point(1, seen=[4])
    assert [each.name for each in dataclasses.fields(Point)] == ["x", "y", "seen"]
    assert dataclasses.replace(point, y=2) == Point(1, 2, [4])
    assert dataclasses.asdict(Box(point)) == records.asdict(Box(point))
    assert dataclasses.replace(Run("ls"), timeout=1.0) == Run("ls", timeout=1.0)


def test_copies_are_equal() -> None:
    point = Point(1, seen=[4])
    assert copy.deepcopy(point) == copy.copy(point) == point
    assert pickle.loads(pickle.dumps(point)) == point


ALONE = """
import sys, types
for name in ("ramify", "ramify.sandboxes"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = sys.argv[1:]
from ramify.sandboxes.agent import fork_server
print("inspect" in sys.modules)
"""


def test_the_helper_process_starts_without_the_standard_dataclasses() -> None:
    """What its modules import costs every first world."""
    folder = str(Path(records.__file__).parent)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", ALONE, folder], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
