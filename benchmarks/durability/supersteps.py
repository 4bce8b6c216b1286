"""Durable supersteps, and what they store: Ramify's Saver next to LangGraph's own savers and DBOS.

All peers run in the same process, in turns, and each superstep is durable before the next one starts: LangGraph with
`durability="sync"`. How each database commits is read from it and part of the row's name (each commit is one fsync).
A superstep is the time from one call of the node, which does nothing, to the next. Its lower bound is LangGraph
itself with a checkpointer that only does one INSERT and COMMIT, in the same kind of database.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import sqlite3
import statistics
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph

from benchmarks import rows as rows_
from benchmarks.fleet_throughput import committing
from benchmarks.rows import Row
from ramify import Runtime, Saver, step, workflow

ROUNDS = 4
MESSAGE = 1000


def rows(quick: bool, postgres: str | None) -> list[Row]:
    steps = 30 if quick else 100
    made = []
    with tempfile.TemporaryDirectory(prefix="ramify-bench-") as folder:
        for size in (100, 10_000):
            made += _sqlite(Path(folder), size, steps)
        made.append(_stored(Path(folder), 200))
        made.append(_stored_by_steps(Path(folder), 200))
        made += (
            [one for size in (100, 10_000) for one in _postgres(postgres, size, steps)] if postgres else [_absent()]
        )
    return made


def _sqlite(folder: Path, size: int, steps: int) -> list[Row]:
    ours: list[float] = []
    theirs: list[float] = []
    floor: list[float] = []
    modes: dict[str, str] = {}
    for turn in range(ROUNDS):
        with Saver.open(f"sqlite:///{folder}/ours{size}{turn}.db") as saver:
            ours += supersteps(saver, size, steps)
            with saver._engine.connect() as connection:
                modes["ours"] = _mode(connection.connection.driver_connection)
        with _sqlite_saver(folder / f"theirs{size}{turn}.db") as saver:
            theirs += supersteps(saver, size, steps)
            modes["theirs"] = _mode(saver.conn)
        floor += supersteps(Floor.in_file(folder / f"floor{size}{turn}.db"), size, steps)
    name = f"durable superstep, SQLite ({modes['ours']}), {size} B"
    sqlite_saver = f"LangGraph SqliteSaver ({modes['theirs']})"
    dbos, took = _dbos_here(folder, size, steps * ROUNDS)
    made = [row(name, ours, "ms", sqlite_saver, theirs, 0.7), row(name, ours, "ms", dbos, took, 0.3)]
    for peer, them in ((sqlite_saver, theirs), (dbos, took)):
        made.append(row(f"{name}: the floor", floor, "ms", peer, them, None))
    nothing = supersteps(None, size, steps * ROUNDS)
    made.append(row(f"{name}: the floor", floor, "ms", "LangGraph with nothing kept", nothing, None))
    alone = _bare(folder / f"bare{size}.db", size, steps * ROUNDS)
    made.append(row(f"{name}: BEGIN, the bytes, COMMIT, and no LangGraph", alone, "ms", dbos, took, None))
    paths = [folder / f"{whose}{size}-logged.db" for whose in ("ours", "theirs")]
    with Saver.open(f"sqlite:///{paths[0]}") as saver:
        mine = _logged(saver, paths[0], size)
    with _sqlite_saver(paths[1]) as saver:
        other = _logged(saver, paths[1], size)
    peer = "LangGraph SqliteSaver, in two commits"
    made.append(row(f"{name}: written to the log", [mine], "pages", peer, [other], None))
    return made


def _logged(saver: Any, database: Path, size: int, steps: int = 25) -> float:
    """Return the pages that a superstep writes to SQLite's write-ahead log. Few enough steps that the log does not
    wrap around."""
    supersteps(saver, size, 1)  # creates the tables
    before = _frames(Path(f"{database}-wal"))
    supersteps(saver, size, steps)
    return (_frames(Path(f"{database}-wal")) - before) / steps


def _frames(log: Path) -> int:
    """Return the frames of the log's current round; what follows them is unused space (decision 017)."""
    data = log.read_bytes()
    page: int = struct.unpack(">I", data[8:12])[0]
    frames = (data[at + 8 : at + 16] for at in range(32, len(data), 24 + page))
    return sum(1 for _ in itertools.takewhile(lambda salts: salts == data[16:24], frames))


def _dbos_here(folder: Path, size: int, steps: int) -> tuple[str, list[float]]:
    if importlib.util.find_spec("dbos") is None:
        return "DBOS: not installed (pip install dbos)", []
    path = folder / f"dbos{size}.db"
    took = _dbos(f"sqlite:///{path}", size, steps)
    with closing(sqlite3.connect(path)) as connection:  # it leaves `synchronous` at SQLite's default
        return f"DBOS ({_mode(connection)})", took


def _bare(path: Path, size: int, steps: int) -> list[float]:
    """Return the milliseconds of a transaction that writes a value of that size and nothing else."""
    floor, took = Floor.in_file(path), []
    for _ in range(steps):
        begun = time.perf_counter()
        floor.write(os.urandom(size))
        took.append((time.perf_counter() - begun) * 1000)
    return took


def _mode(connection: Any) -> str:
    """Return how a connection to SQLite commits, as SQLite reports it."""
    journal, level = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))
    return f"{str(journal).upper()}, synchronous={('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"


class Floor(BaseCheckpointSaver[int]):
    """A checkpointer that stores nothing readable: one row per checkpoint, durable when `put` returns.

    `connection`: to a database with a table t of one column, in which each statement is its own transaction.
    """

    def __init__(self, connection: Any, insert: str = "INSERT INTO t VALUES (?)") -> None:
        super().__init__()
        self._connection, self._insert = connection, insert

    @classmethod
    def in_file(cls, path: Path) -> Floor:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for line in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE t (row BLOB)"):
            connection.execute(line)
        return cls(connection)

    def write(self, data: bytes) -> None:
        self._connection.execute(self._insert, (data,))

    def get_tuple(self, config: Any) -> None:
        return None

    def put_writes(self, *_: Any) -> None:
        pass

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.write(b"x" * 300)
        return {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}


def _postgres(address: str, size: int, steps: int) -> list[Row]:
    if importlib.util.find_spec("langgraph.checkpoint.postgres") is None:
        why = "LangGraph PostgresSaver: not installed (pip install 'ramify[bench]')"
        return [row(f"durable superstep, PostgreSQL, {size} B", [], "ms", why, [], 0.8)]
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    ours: list[float] = []
    theirs: list[float] = []
    floor: list[float] = []
    for _ in range(ROUNDS):
        with Saver.open(address) as saver:
            ours += supersteps(saver, size, steps)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS t (row bytea)")
            floor += supersteps(Floor(connection, "INSERT INTO t VALUES (%s)"), size, steps)
        with PostgresSaver.from_conn_string(address) as saver:
            saver.setup()
            theirs += supersteps(saver, size, steps)
    name = f"durable superstep, PostgreSQL ({committing(address)}), {size} B"
    made = [
        row(name, ours, "ms", "LangGraph PostgresSaver", theirs, 0.8),
        row(f"{name}: the floor", floor, "ms", "LangGraph PostgresSaver", theirs, None),
    ]
    if importlib.util.find_spec("dbos") is None:
        return [*made, row(name, ours, "ms", "DBOS: not installed (pip install dbos)", [], 0.8)]
    took = _dbos(address, size, steps * ROUNDS)
    return [
        *made,
        row(name, ours, "ms", "DBOS", took, 0.8),
        row(f"{name}: the floor", floor, "ms", "DBOS", took, None),
    ]


def _absent() -> Row:
    why = "PostgreSQL is not installed, and no --postgres postgresql://… is given"
    return row("durable superstep, PostgreSQL", [], "ms", why, [], 0.8)


def supersteps(saver: Any, size: int, steps: int) -> list[float]:
    """Return the milliseconds between the calls of the node."""
    calls: list[float] = []

    class State(TypedDict):
        value: str
        left: int

    def node(state: State) -> dict[str, object]:
        calls.append(time.perf_counter())
        return {"value": f"{state['left']:06d}".ljust(size, "x"), "left": state["left"] - 1}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if state["left"] > 0 else "__end__")
    app = graph.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": uuid.uuid4().hex}, "recursion_limit": steps + 10}
    app.invoke({"value": "", "left": steps}, config, **({} if saver is None else {"durability": "sync"}))
    return [(after - before) * 1000 for before, after in itertools.pairwise(calls[2:])]


@contextmanager
def _sqlite_saver(path: Path) -> Iterator[Any]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(os.fspath(path)) as saver:
        yield saver


def _dbos(address: str, size: int, steps: int) -> list[float]:
    from dbos import DBOS

    calls: list[float] = []
    DBOS(config={"name": "bench", "system_database_url": address, "log_level": "ERROR"})

    @DBOS.step()
    def node(left: int) -> str:
        calls.append(time.perf_counter())
        return f"{left:06d}".ljust(size, "x")

    @DBOS.workflow()
    def loop(count: int) -> int:
        for left in range(count):
            node(left)
        return count

    DBOS.launch()
    try:
        loop(steps)
    finally:
        DBOS.destroy(destroy_registry=True)
    return [(after - before) * 1000 for before, after in itertools.pairwise(calls[2:])]


def _stored(folder: Path, steps: int) -> Row:
    """Return the bytes on disk for growing messages, over the bytes that are unique."""

    def size(path: Path) -> int:
        return sum(each.stat().st_size for each in folder.glob(f"{path.name}*"))

    unique = steps * MESSAGE
    with Saver.open(f"sqlite:///{folder}/grown.db") as saver:
        _grow(saver, steps, MESSAGE)
    with _sqlite_saver(folder / "theirs-grown.db") as saver:
        _grow(saver, steps, MESSAGE)
    ours, theirs = size(folder / "grown.db") / unique, size(folder / "theirs-grown.db") / unique
    made = row(
        "stored bytes, 200 steps of growing messages", [ours], "× unique", "LangGraph SqliteSaver", [theirs], None
    )
    return made | {"target": 1.5, "met": ours <= 1.5}


@step
async def say(messages: list[str]) -> list[str]:
    return [*messages, os.urandom(MESSAGE // 2).hex()]


@workflow
async def talk(count: int) -> int:
    messages: list[str] = []
    for _ in range(count):
        messages = await say(messages)
    return len(messages)


def _stored_by_steps(folder: Path, steps: int) -> Row:
    """Return the same for decorated steps that return the messages: the home's whole database over the new bytes."""

    async def stored(count: int) -> float:
        home = folder / f"steps{count}"
        async with Runtime(home=home, sandbox="copy") as runtime:
            await runtime.run(talk, count)
        return sum(each.stat().st_size for each in home.glob("ramify.db*")) / (steps * MESSAGE)

    empty, ours = (asyncio.run(stored(count)) for count in (0, steps))
    name = "stored bytes, 200 steps of growing messages, decorators"
    floor = "floor: the messages, compressed, 0.5 KB a row of digests and names, and a run without steps"
    return row(name, [ours], "× unique", floor, [1.1 + empty], None) | {"target": 1.5, "met": ours <= 1.5}


def _grow(saver: Any, steps: int, size: int) -> None:
    class State(TypedDict):
        messages: Annotated[list[str], add]

    def node(state: State) -> dict[str, list[str]]:
        return {"messages": [os.urandom(size // 2).hex()]}

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_conditional_edges("node", lambda state: "node" if len(state["messages"]) < steps else "__end__")
    config: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": steps + 10}
    graph.compile(checkpointer=saver).invoke({"messages": []}, config, durability="sync")


def row(name: str, ours: list[float], unit: str, peer: str, theirs: list[float], target: float | None) -> Row:
    """Return a row of medians and their spread (5th and 95th percentiles). `target`: the highest ratio to peer."""
    mine = round(statistics.median(ours), 3) if ours else None
    other = round(statistics.median(theirs), 3) if theirs else None
    made = rows_.row(name, mine, unit, peer=peer, peer_value=other, spread=_spread(ours), peer_spread=_spread(theirs))
    met = None if made["ratio"] is None or target is None else made["ratio"] <= target
    return {**made, "target": target, "met": met}


def _spread(values: list[float]) -> list[float] | None:
    if len(values) < 20:
        return None
    ordered = sorted(values)
    return [round(ordered[at * len(ordered) // 100], 3) for at in (5, 95)]
