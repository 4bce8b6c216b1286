"""The cache on disk behaves as LangGraph's own in memory, and outlives the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy
from sqlalchemy import create_engine, inspect, select

from ramify.graph import Cache, Saver, Store
from ramify.runtime.langgraph.checkpointer.tables import cached


async def test_values_are_kept_until_they_expire(address: str) -> None:
    now = [1000.0]
    one, two, odd = ((("a", "b"), "k"), (("a",), "k"), (("a", "b\x1f"), "ä"))
    async with Cache.open(address, clock=lambda: now[0]) as cache:
        await cache.aset({one: ({"x": [1, 2]}, 10), two: ([None], None), odd: (3, None)})
    async with Cache.open(address, clock=lambda: now[0]) as again:
        assert await again.aget([one, two, odd, (("no",), "k")]) == {one: {"x": [1, 2]}, two: [None], odd: 3}
        now[0] += 11
        assert again.get([one, two]) == {two: [None]}
        again.set({two: ("new", None)})
        assert again.get([two]) == {two: "new"}
        await again.aclear([("a",)])
        assert again.get([two, odd]) == {odd: 3}
        again.clear()
        assert again.get([odd]) == {}
        assert again.get([]) == {}


def test_a_node_is_not_run_again(address: str) -> None:
    class State(TypedDict):
        n: int

    runs: list[int] = []

    def node(state: State) -> State:
        runs.append(state["n"])
        return {"n": state["n"] + 1}

    def app(cache: Cache[Any]) -> Any:
        built = StateGraph(State).add_node("node", node, cache_policy=CachePolicy())
        return built.add_edge(START, "node").compile(cache=cache)

    for _ in range(2):
        with Cache.open(address) as cache:
            assert app(cache).invoke({"n": 1}) == {"n": 2}
    assert runs == [1]


def test_expired_entries_are_deleted(address: str) -> None:
    now = [1000.0]
    with Cache.open(address, clock=lambda: now[0]) as cache:
        cache.set({(("n",), f"k{at}"): (at, 10) for at in range(5)})
        now[0] += 61
        cache.set({(("n",), "new"): (1, None)})
        with cache._engine.connect() as connection:
            assert list(connection.execute(select(cached.c.key)).scalars()) == ["new"]


def test_each_makes_only_the_tables_that_it_needs(tmp_path: Path) -> None:
    """An empty table takes two pages of a file."""

    def made() -> set[str]:
        engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}")
        try:
            return set(inspect(engine).get_table_names())
        finally:
            engine.dispose()

    with Cache[int].open(tmp_path / "x.db"):
        assert made() == {"ramify_saver", "ramify_cache"}
    with Store.open(tmp_path / "x.db") as store:
        store.put(("a",), "k", {"n": 1})
        assert made() == {"ramify_saver", "ramify_cache", "ramify_items"}
    with Saver.open(tmp_path / "x.db"):
        assert {"ramify_threads", "ramify_checkpoints", "ramify_writes", "ramify_house"} < made()
    with Store.open(tmp_path / "x.db") as store:
        assert store.get(("a",), "k").value == {"n": 1}  # type: ignore[union-attr]
