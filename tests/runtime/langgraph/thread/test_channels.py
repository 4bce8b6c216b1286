"""The world channel's reducer maps primitives to primitives, and gives the same through every serialiser."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from ramify.runtime.langgraph.thread.channels import WorldChannel, joined
from ramify.runtime.langgraph.thread.positions import StoredPosition

words = st.text("abc0", min_size=1, max_size=4)
child = st.lists(words, min_size=4, max_size=4)


def env(**more: Any) -> StoredPosition:
    return StoredPosition(run="r", branch="root", at="k", snapshot="s", checkpoint="c", **more)


def test_one_task_replaces_the_value() -> None:
    assert joined([env(unsealed=True)]) == env(unsealed=True)


@given(st.lists(child, min_size=1, max_size=5))
def test_several_are_a_join_in_their_order(children: list[list[str]]) -> None:
    value = joined([env(child=each) for each in children])
    assert value == env(join=children)


@given(st.lists(child, max_size=3))
def test_a_checkpoint_holds_all_of_it(children: list[list[str]]) -> None:
    channel = WorldChannel()
    assert not channel.is_available()
    channel.update([env(child=each) for each in children] or [env()])
    serde = JsonPlusSerializer()
    stored = serde.loads_typed(serde.dumps_typed(channel.checkpoint()))
    again = channel.from_checkpoint(stored)
    assert again.get() == channel.get() == channel.copy().get()
    assert not again.update([])
    assert again.get() == channel.get()
