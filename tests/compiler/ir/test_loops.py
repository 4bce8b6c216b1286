"""Which blocks a loop goes through, against looking at every way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.compiler.ir.graph import Block, Graph
from ramify.compiler.ir.loops import in_loops

NAMES = "abcdefg"


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True, max_size=3)))
def test_those_that_lead_back_to_themselves(drawn: dict[str, list[str]]) -> None:
    exits = {name: list(drawn.get(name, ())) for name in NAMES}
    blocks = tuple(Block(name, exits=tuple((to, ()) for to in targets)) for name, targets in exits.items())
    reached = {name: set(targets) for name, targets in exits.items()}
    for _ in NAMES:
        reached = {name: found.union(*(reached[to] for to in found)) for name, found in reached.items()}
    assert in_loops(Graph("drawn", "decorators", (), blocks)) == {name for name in NAMES if name in reached[name]}
