"""How long compiling takes, and what the instrumented interpreter adds to a superstep."""

from __future__ import annotations

import gc
import importlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

import ramify
from benchmarks.rows import Row, median_row, row
from ramify import step
from ramify.compiler.pipeline import compile_graph, compile_workflow
from tests.compiler.frontend.python.projects import write_project


class State(TypedDict):
    n: int


def node(state: State) -> State:
    return {"n": 1}


def chain(nodes: int, action: Any = node) -> Any:
    """A chain in which every tenth node may go back five: about 1.1 edges per node."""
    graph: Any = StateGraph(State)
    for i in range(nodes):
        graph.add_node(f"n{i}", action)
        graph.add_edge(START if i == 0 else f"n{i - 1}", f"n{i}")
    graph.add_edge(f"n{nodes - 1}", END)
    for i in range(10, nodes, 10):
        graph.add_conditional_edges(f"n{i}", lambda state: "on", {"on": f"n{i - 5}"})
    return graph


def compile_rows(quick: bool) -> list[Row]:
    times: dict[int, list[float]] = {}
    for nodes, often in ((1_000, 3 if quick else 20), (10_000, 1 if quick else 5)):
        graph = chain(nodes)
        times[nodes] = []
        for _ in range(often):
            gc.collect()
            begun = time.process_time()
            compile_graph(graph, name="chain", ref="benchmark")
            times[nodes].append(time.process_time() - begun)
    growth = median(times[10_000]) / median(times[1_000])
    return [
        *project_rows(quick),
        median_row("compile a graph of 1,000 nodes", times[1_000], "s CPU", target=1.0),
        median_row("compile a graph of 10,000 nodes", times[10_000], "s CPU", target=15.0),
        row(
            "time for ten times the nodes and edges",
            growth,
            "times",
            target=15.0,
            note="10 is linear; the target leaves room for caches",
        ),
    ]


def project_rows(quick: bool) -> list[Row]:
    """Compile a workflow whose steps and helpers are in all modules of a project. Each file is read anew, as in a
    new process."""
    found = []
    for modules, often in ((100, 3), (300, 1 if quick else 5)):
        with tempfile.TemporaryDirectory() as folder:
            name, times = f"project_of_{modules}", list[float]()
            write_project(Path(folder), name, modules)
            sys.path.insert(0, folder)
            flow = importlib.import_module(f"{name}.flow").flow
            sys.path.remove(folder)
            for _ in range(often):
                gc.collect()
                begun = time.process_time()
                compile_workflow(flow, ref=f"{name}.flow:flow")
                times.append(time.process_time() - begun)
        target = 2.0 if modules == 300 else None
        found.append(median_row(f"compile a workflow that uses {modules} modules", times, "s CPU", target=target))
    return found


@step(effect="pure")
def pure(state: State) -> State:
    return {"n": state["n"] + 1}


def plain(state: State) -> State:
    return {"n": state["n"] + 1}


SHORT, LONG = 20, 120
SAVERS: dict[str, Callable[[Path], Any]] = {
    "in memory": lambda file: InMemorySaver(),
    "SqliteSaver, durability sync": lambda file: SqliteSaver(sqlite3.connect(file, check_same_thread=False)),
}


def superstep_rows(quick: bool) -> list[Row]:
    """Chains of nodes that use no world, in plain LangGraph and under Ramify, with the same kind and durability of
    checkpointer.

    The cost of a superstep is a hundredth of the difference between a long chain and a short one. The rest of the
    short chain's time is the invocation's: the rows of a run, opened and finished durably. The minimum of each chain
    counts, because a busy machine or a slow fsync can only add to it.
    """
    often = 4 if quick else 25
    rows = []
    for saver, options in (("in memory", {}), ("SqliteSaver, durability sync", {"durability": "sync"})):
        for name, action in (("declared pure", pure), ("undeclared", plain)):
            with tempfile.TemporaryDirectory() as folder:
                apps = _Chains(Path(folder), action, SAVERS[saver])
                for i in range(-1, often):  # the first one is a warm-up
                    apps.measure(i, options)
                apps.close()
            (ours, ours_cpu), (peer, peer_cpu) = apps.superstep(apps.ours), apps.superstep(apps.peers)
            each = [one - other for one, other in zip(apps.each(apps.ours), apps.each(apps.peers), strict=True)]
            said = f"with a journal row for each node; {ours_cpu - peer_cpu:.3g} ms of processor time, all threads"
            rows.append(
                row(
                    f"added to a superstep of plain LangGraph, nodes {name}, {saver}",
                    ours - peer,
                    "ms",
                    target=0.3,
                    peer="plain LangGraph, a superstep",
                    peer_value=peer,
                    spread=(min(each), max(each)),
                    note=said,
                )
            )
            if action is plain:
                added = apps.least(apps.ours[SHORT])[0] - apps.least(apps.peers[SHORT])[0] - SHORT * (ours - peer)
                invocations = apps.differences(SHORT)
                rows.append(
                    row(
                        f"added to an invocation on a new thread, {saver}",
                        added,
                        "ms",
                        spread=(min(invocations) - SHORT * (ours - peer), max(invocations) - SHORT * (ours - peer)),
                        note="a run's rows",
                    )
                )
    return rows


class _Chains:
    """A short and a long chain, in plain LangGraph and under Ramify."""

    def __init__(self, folder: Path, action: Any, saver: Callable[[Path], Any]) -> None:
        self._took: dict[int, list[tuple[float, float]]] = {}
        self.peers = {n: _line(plain, n).compile(checkpointer=saver(folder / f"peer{n}.db")) for n in (SHORT, LONG)}
        self.ours = {
            n: ramify.compile(
                _line(action, n),
                home=folder / "home",
                sandbox="copy",
                checkpointer=saver(folder / f"ours{n}.db"),
                name="chain",
            )
            for n in (SHORT, LONG)
        }

    def close(self) -> None:
        for app in self.ours.values():
            app.close()

    def measure(self, number: int, options: dict[str, Any]) -> None:
        for length in (SHORT, LONG):
            config = {"configurable": {"thread_id": str(number)}, "recursion_limit": length + 5}
            for app in (self.ours[length], self.peers[length]):
                begun, cpu = time.perf_counter(), time.process_time()
                app.invoke({"n": 0}, config, **options)
                took = (time.perf_counter() - begun) * 1000, (time.process_time() - cpu) * 1000
                if number >= 0:
                    self._took.setdefault(id(app), []).append(took)

    def least(self, app: Any) -> tuple[float, float]:
        """Return the milliseconds of one invocation: wall time and processor time."""
        wall, cpu = zip(*self._took[id(app)], strict=True)
        return min(wall), min(cpu)

    def each(self, apps: dict[int, Any]) -> list[float]:
        """Return the wall time of a superstep for each round, including the noise of the machine."""
        pairs = zip(self._took[id(apps[SHORT])], self._took[id(apps[LONG])], strict=True)
        return [(long[0] - short[0]) / (LONG - SHORT) for short, long in pairs]

    def differences(self, length: int) -> list[float]:
        """Return what was added to each invocation of that length."""
        pairs = zip(self._took[id(self.ours[length])], self._took[id(self.peers[length])], strict=True)
        return [ours[0] - peer[0] for ours, peer in pairs]

    def superstep(self, apps: dict[int, Any]) -> tuple[float, float]:
        (short, short_cpu), (long, long_cpu) = self.least(apps[SHORT]), self.least(apps[LONG])
        return (long - short) / (LONG - SHORT), (long_cpu - short_cpu) / (LONG - SHORT)


def _line(action: Any, nodes: int) -> Any:
    graph: Any = StateGraph(State)
    for i in range(nodes):
        graph.add_node(f"n{i}", action)
        graph.add_edge(START if i == 0 else f"n{i - 1}", f"n{i}")
    return graph
