"""For whole programs, the callers of plain graphs and of graphs over worlds see the same, event for event. With
`RAMIFY_DEEP=1`, each runs both sync and async."""

from __future__ import annotations

import pytest

from tests.runtime.langgraph.differential.test_differential import DEEP, Lab, lab  # noqa: F401  # a fixture
from tests.runtime.langgraph.differential.whole_programs import KINDS

WAYS = [
    (name, is_async)
    for number, (name, piece) in enumerate(KINDS.items())
    for is_async in (False, True)
    if is_async or not (piece.is_racy or piece.needs_loop)
    if DEEP or piece.is_racy or piece.needs_loop or is_async == bool(number % 2)
]


@pytest.mark.parametrize(("name", "is_async"), WAYS)
def test_a_kind_of_program(name: str, is_async: bool, lab: Lab) -> None:  # noqa: F811
    lab.check_piece(KINDS[name], is_async)
