from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramify.compiler.step_parameters import carried_over, parameters_of, recorded_names


def plain(x, y=1): ...
def box_first(box, x, /): ...
def by_name(x, *, box, y=1): ...
def only_box_by_name(x, *, box): ...
def every(x, /, y, *rest, z, **named): ...
def nothing(): ...


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (plain, "x y"),
        (box_first, "x"),
        (by_name, "x * y"),
        (only_box_by_name, "x"),
        (every, "x y *rest z **named"),
        (nothing, ""),
    ],
)
def test_parameters_are_written_as_in_a_signature(function: Callable[..., Any], names: str) -> None:
    assert parameters_of(function, "box") == tuple(names.split())


@pytest.mark.parametrize(
    ("then", "now", "renamed", "goes_on_as"),
    [
        ("x y", "x y", {}, "x y"),
        ("x y", "z y", {"z": "x"}, "x y"),
        ("x y", "z w v", {"z": "x", "w": "y"}, "x y v"),
        ("x * y", "z * w v", {"z": "x", "w": "y"}, "x * y v"),
        ("x *rest", "x *others", {"others": "rest"}, "x *rest"),
        ("x **named", "z **others", {"z": "x", "others": "named"}, "x **named"),
        ("x *rest y **named", "z *others y **named", {"z": "x", "others": "rest"}, "x *rest y **named"),
        ("x", "x n", {}, "x n"),
        ("", "x", {}, "x"),
        ("x * y", "z y", {"z": "x"}, "x y"),
    ],
)
def test_a_parameter_is_known_by_its_place(then: str, now: str, renamed: dict[str, str], goes_on_as: str) -> None:
    assert recorded_names(then.split(), now.split()) == renamed
    assert carried_over(then.split(), now.split()) == tuple(goes_on_as.split())


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("x y", "y x"),
        ("x y", "y z"),
        ("x y", "z x"),
        ("x", "new x"),
        ("x y", "y"),
        ("x y", "z"),
        ("x * y", "y * x"),
        ("x * y z", "x * z"),
        ("x *rest", "rest *others"),
        ("x **named", "named"),
        ("x x", "y z"),
    ],
)
def test_a_name_that_may_mean_another_parameter_now_is_not_guessed(then: str, now: str) -> None:
    assert recorded_names(then.split(), now.split()) == {}
    assert carried_over(then.split(), now.split()) == tuple(now.split())
