"""The store on disk answers as LangGraph's own store in memory, and keeps its items."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import postgres
import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from sqlalchemy import Connection, QueuePool

from ramify.graph import Cache, Saver, Store


def fill(store: BaseStore) -> BaseStore:
    for place, key, value in [
        (("users", "ann"), "food", {"likes": "plums", "rank": 3}),
        (("users", "ann"), "tea", {"likes": "mint", "rank": 1}),
        (("users", "bob", "old"), "food", {"likes": "plums", "rank": 7}),
        (("users_x",), "food", {"likes": "none", "rank": 0}),
        (("a%b_c",), "k", {"x": None}),
        (("deep",), "k", {"deep": {"n": 2, "m": 3, "list": [1, {"a": 2, "b": 1}]}}),
        (("u",), "\0\ud800", {}),
    ]:
        store.put(place, key, value)
    return store


ASK: list[Callable[[BaseStore], Any]] = [
    lambda s: s.get(("users", "ann"), "food"),
    lambda s: s.get(("users", "ann"), "nothing"),
    lambda s: s.search(("users",)),
    lambda s: s.search(("users", "bob"), limit=1),
    lambda s: s.search(("users",), filter={"likes": "plums"}),
    lambda s: s.search(("users",), filter={"rank": {"$gte": 3, "$lt": 7}}),
    lambda s: s.search((), filter={"deep": {"n": {"$gt": 1}}}),
    lambda s: s.search((), filter={"deep": {"list": [1, {"a": {"$ne": 3}}]}}),
    lambda s: s.search((), filter={"deep": 1}),
    lambda s: s.get(("u",), "\0\ud800"),
    lambda s: s.search(("a%b_c",)),
    lambda s: s.search(()),
    lambda s: s.list_namespaces(),
    lambda s: s.list_namespaces(prefix=("users",), max_depth=2),
    lambda s: s.list_namespaces(max_depth=0),
    lambda s: s.list_namespaces(suffix=("old",)),
    lambda s: s.list_namespaces(prefix=("users", "*"), limit=1, offset=1),
]


def plain(found: Any) -> Any:
    if isinstance(found, list):
        return [plain(one) for one in found]
    return (found.namespace, found.key, found.value) if hasattr(found, "namespace") else found


def sort(found: Any) -> Any:
    return sorted(found, key=repr) if isinstance(found, list) else found


@pytest.mark.parametrize("ask", ASK)
def test_it_answers_as_the_store_in_memory(address: str, ask: Callable[[BaseStore], Any]) -> None:
    with Store.open(address) as store:
        fill(store)
        assert sort(plain(ask(store))) == sort(plain(ask(fill(InMemoryStore()))))


async def test_what_is_put_is_kept_changed_and_deleted(address: str) -> None:
    async with Store.open(address) as store:
        await store.aput(("n",), "k", {"v": 1})
    async with Store.open(address) as again:
        first = await again.aget(("n",), "k")
        await again.aput(("n",), "k", {"v": 2})
        second = await again.aget(("n",), "k")
        assert first is not None and second is not None
        assert (first.value, second.value) == ({"v": 1}, {"v": 2})
        assert second.created_at == first.created_at <= second.updated_at
        await again.adelete(("n",), "k")
        assert await again.aget(("n",), "k") is None


def test_a_batch_reads_what_was_there_before_it(address: str) -> None:
    ops = [PutOp(("n",), "k", {"v": 1}), GetOp(("n",), "k"), PutOp(("n",), "k", {"v": 2}), SearchOp(("n",))]
    with Store.open(address) as store:
        assert store.batch(ops) == [None, None, None, []]
        assert store.batch(ops)[1].value == {"v": 2}


def test_expired_items_are_deleted(address: str) -> None:
    now = [1000.0]
    with Store.open(address, clock=lambda: now[0]) as store:
        store.put(("n",), "short", {"v": 1}, ttl=1)
        store.put(("n",), "long", {"v": 2})
        now[0] += 50
        assert store.get(("n",), "short") is not None  # it lives for another minute
        now[0] += 50
        assert store.get(("n",), "short", refresh_ttl=False) is not None
        now[0] += 20
        assert store.get(("n",), "short") is None
        assert [item.key for item in store.search(("n",))] == ["long"]
        assert store.sweep_ttl() == 1


def test_a_search_refreshes_the_items_it_returns(address: str) -> None:
    now = [1000.0]
    with Store.open(address, clock=lambda: now[0]) as store:
        for key in "ab":
            store.put(("n",), key, {"v": key}, ttl=1)
        now[0] += 50
        assert [item.key for item in store.search(("n",), filter={"v": "a"})] == ["a"]
        now[0] += 50
        assert [item.key for item in store.search(("n",))] == ["a"]


def test_values_outside_json_are_stored_as_in_langgraphs_store(address: str) -> None:
    at, id = datetime(2026, 1, 2, tzinfo=UTC), UUID(int=7)
    with Store.open(address) as store:
        store.put(("n",), "k", {"at": at, "id": id, "deep": [{"at": at}]})
        found = store.get(("n",), "k")
        assert found is not None
        assert found.value == {"at": at.isoformat(), "id": str(id), "deep": [{"at": at.isoformat()}]}


@dataclass
class Fields:
    """Not a mapping, but `dict` makes one of it, as of pydantic models."""

    a: int

    def __iter__(self) -> Iterator[tuple[str, int]]:
        yield from vars(self).items()


@pytest.mark.parametrize("value", [MappingProxyType({"a": 1}), UserDict({"a": 1}), Fields(1), [("a", 1)]])
def test_a_value_is_whatever_dict_takes(address: str, value: Any) -> None:
    with Store.open(address) as store:
        store.put(("n",), "k", value)
        assert plain(store.get(("n",), "k")) == (("n",), "k", {"a": 1})


def test_what_was_put_last_comes_first(address: str) -> None:
    """As in LangGraph's stores on databases: who asks for ten memories gets the newest ten."""
    now = itertools.count(1000)
    with Store.open(address, clock=lambda: next(now)) as store:
        for key in "abcd":
            store.put(("n",), key, {"v": key})
        store.put(("n",), "b", {"v": "again"})
        assert [item.key for item in store.search(("n",))] == ["b", "d", "c", "a"]
        assert [item.key for item in store.search(("n",), limit=2, offset=1)] == ["d", "c"]


def test_what_is_of_no_known_kind_is_refused(address: str) -> None:
    infix: Any = MatchCondition(match_type="infix", path=("n",))  # type: ignore[arg-type]
    unknown: Any = "get"
    with Store.open(address) as store:
        for op, error, said in (
            (unknown, ValueError, "unknown operation of type str"),
            (ListNamespacesOp((infix,)), ValueError, "unknown match type 'infix'"),
            (PutOp(("n",), "k", {}, ttl=math.nan), ValueError, "not a finite number"),
            (PutOp(("n",), "k", {}, ttl=math.inf), ValueError, "use None"),
            (PutOp(("n",), "k", {}, ttl=cast(float, "5")), TypeError, "not a number of minutes"),
        ):
            with pytest.raises(error, match=said):
                store.batch([PutOp(("n",), "first", {}), op])
        assert store.search(()) == []
        odd: Any = {1: 2}
        assert store.search((), filter=odd) == []


def test_what_langgraphs_stores_refuse_is_refused(address: str) -> None:
    with Store.open(address) as store:
        for value, kind in (([1], TypeError), ("text", ValueError), (7, TypeError)):
            with pytest.raises(kind, match="JSON objects"):
                store.put(("n",), "k", value)  # type: ignore[arg-type]
        for space in (("a.b",), ("a", ""), ("a\0",), ("a", 1)):
            bad: Any = space
            condition = MatchCondition(match_type="prefix", path=bad)
            for op in (PutOp(bad, "k", {}), GetOp(bad, "k"), SearchOp(bad), ListNamespacesOp((condition,))):
                with pytest.raises(InvalidNamespaceError, match="without dots"):
                    store.batch([PutOp(("n",), "k", {}), op])
        assert store.search(()) == []
    with pytest.raises(ValueError, match="no vector index"):
        Store.from_conn_string(address, index={"dims": 2, "embed": lambda texts: [[0.0, 1.0] for _ in texts]})


def test_what_has_no_order_is_passed_over(address: str) -> None:
    with Store.open(address) as store:
        for key, value in {"none": None, "list": [1], "word": "x", "old": "2025-01-02", "new": "2026-01-02"}.items():
            store.put(("n",), key, {"at": value})
        store.put(("n",), "missing", {})
        store.put(("n",), "number", {"at": 7})
        for wanted, found in (({"$gt": 5}, ["number"]), ({"$lte": 5}, []), ({"$lt": "2026-01-01"}, ["old"])):
            assert [item.key for item in store.search(("n",), filter={"at": wanted})] == found


def test_a_dotted_filter_key_is_a_key_or_a_path(address: str) -> None:
    with Store.open(address) as store:
        store.put(("n",), "path", {"a": {"b": {"c": 2}}})
        store.put(("n",), "key", {"a.b": {"c": 3}})
        assert [item.key for item in store.search(("n",), filter={"a.b.c": 2})] == ["path"]
        assert [item.key for item in store.search(("n",), filter={"a.b": {"c": {"$gt": 1}}})] == ["key", "path"]
        assert store.search(("n",), filter={"a.x": 2}) == []


async def test_a_sweeper_deletes_expired_items(address: str) -> None:
    swept, now = threading.Event(), [1000.0]
    with Store.from_conn_string(address, ttl={"default_ttl": 1}) as store:
        store._clock = lambda: now[0]
        sweep = store._sweeper._sweep
        store._sweeper._sweep = lambda: (sweep(), swept.set())[0]  # type: ignore[func-returns-value]
        store.put(("n",), "k", {})
        now[0] += 61
        sweeping = await store.start_ttl_sweeper(sweep_interval_minutes=0.0001)
        assert store.start_ttl_sweeper() is sweeping
        assert swept.wait(30)
        assert (await store.sweep_ttl(), store.sweep_ttl()) == (0, 0)
        assert await store.stop_ttl_sweeper()
        assert sweeping.done()
        store.start_ttl_sweeper().cancel()
        assert store.stop_ttl_sweeper(timeout=30)
        store.start_ttl_sweeper()
    assert store.stop_ttl_sweeper()
    with Store.open(address) as store:
        assert store.start_ttl_sweeper().done()


def test_an_unknown_operator_is_named(address: str) -> None:
    with Store.open(address) as store:
        fill(store)
        with pytest.raises(ValueError, match=r"\$near"):
            store.search(("users",), filter={"rank": {"$near": 3}})


def test_a_condition_longer_than_the_namespace_does_not_fit(address: str) -> None:
    with Store.open(address) as store:
        store.put(("a",), "k", {})
        deep = MatchCondition(match_type="prefix", path=("a", "b"))
        assert store.batch([ListNamespacesOp(match_conditions=(deep,))]) == [[]]


def test_a_search_returns_only_its_namespace(address: str) -> None:
    """A prefix matches exactly: on SQLite, LIKE would match `Ann` and `ann`."""
    spaces = [("ann",), ("ann", "x"), ("ann", "é\ud800"), ("Ann", "x"), ("anna",), ("an_",), ("100%", "x"), ("é",)]
    with Store.open(address) as store:
        for space in spaces:
            store.put(space, "k", {"v": 1})
        found = {start: [item.namespace for item in store.search((start,))] for start in ("ann", "an_", "100%", "é")}
        assert len(store.search(())) == len(spaces)
    assert {start: set(spaces) for start, spaces in found.items()} == {
        "ann": {("ann",), ("ann", "x"), ("ann", "é\ud800")},
        "an_": {("an_",)},
        "100%": {("100%", "x")},
        "é": {("é",)},
    }


def test_threads_that_write_take_turns(tmp_path: Path) -> None:
    """Otherwise each would poll for SQLite's lock with a connection of its own, and some for seconds."""
    with Store.open(tmp_path / "store.db") as store, ThreadPoolExecutor(8) as threads:
        connected, pool = [], cast(QueuePool, store._engine.pool)

        def work(connection: Connection) -> None:
            time.sleep(0.002)  # the others come
            connected.append(pool.checkedout())

        for done in [threads.submit(store._written, work) for _ in range(32)]:
            done.result(60)
    assert connected == [1] * 32


def test_a_forked_child_writes_though_another_thread_was_writing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store.db") as store:
        with store._turn():
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                with store._turn():
                    os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.postgres
def test_a_refused_transaction_is_retried(postgres_server: str) -> None:
    """Two callers put the same items at once. The one that the server refused is retried and gets no error."""
    address = postgres.new_database(postgres_server)
    with Store.open(address) as store, Store.open(address) as other, ThreadPoolExecutor() as threads:
        store.batch([PutOp(("n",), key, {"by": "nobody"}) for key in "ab"])
        done, barrier = [], threading.Barrier(2, timeout=30)

        def crossing(mine: Store, first: str, second: str) -> None:
            def work(connection: Connection) -> None:
                mine._put(connection, PutOp(("n",), first, {"by": first}))
                if len(done) < 2:
                    done.append(first)
                    barrier.wait()
                mine._put(connection, PutOp(("n",), second, {"by": first}))

            mine._written(work)

        for one in [threads.submit(crossing, store, "a", "b"), threads.submit(crossing, other, "b", "a")]:
            one.result(60)
        both = [store.get(("n",), key) for key in "ab"]
    assert len({item.value["by"] for item in both if item is not None}) == 1


@pytest.mark.parametrize("kind", [Store, Cache, Saver])
def test_a_closed_store_refuses_calls(kind: Any, address: str) -> None:
    use = {
        Store: lambda it: it.get(("n",), "k"),
        Cache: lambda it: it.get([(("n",), "k")]),
        Saver: lambda it: it.get({"configurable": {"thread_id": "t"}}),
    }
    opened = kind.open(address)
    opened.close()
    opened.close()
    with pytest.raises(RuntimeError, match=f"the {kind.__name__.lower()} is closed: open it again"):
        use[kind](opened)
