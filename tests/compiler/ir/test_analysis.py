"""Loops and reachability, compared with following every path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramify.compiler.ir.analysis import blocks_in_loops, reachable
from ramify.compiler.ir.graph import Block, Graph

NAMES = "abcdefg"


DRAWN = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), unique=True, max_size=3))


def every_way(exits: dict[str, list[str]]) -> dict[str, set[str]]:
    found = {name: set(targets) for name, targets in exits.items()}
    for _ in NAMES:
        found = {name: found[name].union(*(found[to] for to in found[name])) for name in found}
    return found


@given(DRAWN)
def test_blocks_that_lead_back_to_themselves(drawn: dict[str, list[str]]) -> None:
    exits = {name: drawn.get(name, []) for name in NAMES}
    blocks = tuple(Block(name, exits=tuple((to, ()) for to in targets)) for name, targets in exits.items())
    ways = every_way(exits)
    assert blocks_in_loops(Graph("drawn", "decorators", (), blocks)) == {name for name in NAMES if name in ways[name]}


@given(DRAWN, st.sets(st.sampled_from([*NAMES, "elsewhere"])))
def test_names_reachable_from_several_starts(drawn: dict[str, list[str]], start: set[str]) -> None:
    ways = every_way({name: drawn.get(name, []) for name in [*NAMES, "elsewhere"]})
    assert reachable(start, drawn) == start.union(*(ways[name] for name in start))
