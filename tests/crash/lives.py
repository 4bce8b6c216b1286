"""What a process of a trial does: it begins, or continues where the previous one ended, and reports what it leaves.

At the points that it passes it may be killed (`harness.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import scenarios

import ramify.graph
from ramify import Runtime, paths
from ramify.compiler.plan import OpKind
from ramify.fork_engine import crash_points
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import EffectInDoubt, RunError, RunFailed
from ramify.runtime.langgraph.app.world_app import env_at
from ramify.runtime.records import EffectStatus, OpStatus, RunRecord, RunStatus
from ramify.runtime.store import RunStore
from ramify.runtime.worlds.garbage_collection import EvictionMarks, collect
from ramify.sandboxes.testing import ScriptedBackend
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

NAMES = ["ann", "bob"]
_APPROVALS = 4
_APART = "application_name=apart"  # makes the same database another address, so that the saver commits for itself
_KEPT = (OpKind.RUN, OpKind.SEAL)
"""Of an entrypoint: its body is run again from its start, its tasks' results are served, their forks made anew."""


class Scenario(StrEnum):
    WITH_KEYS = "with keys"  # decorators; the receiver honours idempotency keys
    WITHOUT_KEYS = "without keys"  # decorators; it does not
    GRAPH = "graph"  # StateGraph through ramify.compile, with a Saver
    ENTRYPOINT = "entrypoint"  # a function under @entrypoint, the same way
    LOST = "lost"  # decorators; a stopped run whose snapshots were lost
    LOST_GRAPH = "lost graph"  # the same for a thread


LANGGRAPH = (Scenario.GRAPH, Scenario.ENTRYPOINT, Scenario.LOST_GRAPH)
MADE_AGAIN = (Scenario.LOST, Scenario.LOST_GRAPH)


@dataclass(frozen=True)
class Left:
    """What exists at the end, in a form in which two runs can be compared."""

    result: Any
    rows: dict[str, int]  # DONE journal rows that were not reused: how often each occurs
    tree: str
    outbox: dict[str, int]
    effects: dict[str, int]  # the ledger: the status of each effect
    states: dict[str, int]  # the run's checkpoints, with the content of their files
    history: list[Any]  # LangGraph's checkpoints of a thread, with their values and files
    status: str
    problems: list[str]  # of the store, after a collection


def live(scenario: Scenario, folder: Path, database: str) -> tuple[Left, int]:
    """Begin, or continue where the previous process ended. Returns what exists at the end, and the number of
    doubts."""
    if scenario in LANGGRAPH:
        return _graph(scenario, folder, database)
    return asyncio.run(_run_workflow(scenario, folder, database))


def lose(scenario: Scenario, folder: Path, database: str) -> None:
    """Stop before the last step, and lose all snapshots made by then."""
    scenarios.STOPS = True
    if scenario is Scenario.LOST:
        with contextlib.suppress(RunFailed):
            asyncio.run(_run_workflow(scenario, folder, database))
    else:
        with _app(scenario, folder, database) as app:
            asyncio.run(app.ainvoke({"said": []}, _config(folder), interrupt_before=["z"]))
    asyncio.run(_lost(folder, database))
    scenarios.STOPS = False


_FUNCTIONS = {
    Scenario.WITH_KEYS: scenarios.with_keys,
    Scenario.WITHOUT_KEYS: scenarios.without_keys,
    Scenario.LOST: scenarios.stopping,
}


async def _run_workflow(scenario: Scenario, folder: Path, database: str) -> tuple[Left, int]:
    function = _FUNCTIONS[scenario]
    doubts = 0
    async with (
        _model() as client,
        Runtime(home=folder / "home", database=database, sandbox=_backend, llm=client) as runtime,
    ):
        begun = await _known(runtime.store, folder)
        if begun is None:
            result = await runtime.run(function, NAMES, workspace=folder / "workspace")
        else:
            result, doubts = await _resumed(runtime, begun.id)
        run = await runtime.record()
        known = await runtime.store.checkpoints(run.id)
        states = Counter(f"{one.branch} {one.label} {one.content_key}" for one in known)
        effects = Counter(f"{one.step} {one.args_json} {one.status}" for one in await runtime.effects())
        rows = Counter(
            f"{row.key} {row.result_digest}"
            for row in await runtime.journal()
            if row.status is OpStatus.DONE and row.reused_from is None
        )
        rows.update(f"{call.key} {call.result_digest}" for call in await runtime.llm_calls())
        outbox = Counter(text for _, text in scenarios.sent())
        tree = [one for one in known if one.branch == "root"][-1].content_key
        problems = await _problems(runtime.store, run, folder)
        kept = dict(rows), tree, dict(outbox), dict(effects), dict(states)
        return Left(result, *kept, [], run.status.value, problems), doubts


async def _resumed(runtime: Runtime, run_id: str) -> tuple[Any, int]:
    """Resume, and resolve each reported doubt by asking the receiver."""
    doubts = 0
    while True:
        try:
            return await runtime.resume(run_id), doubts
        except RunError as error:
            if not isinstance(error.__cause__, EffectInDoubt) or doubts == _APPROVALS:
                raise
        doubts += 1
        doubtful = next(e for e in await runtime.effects(run_id) if e.status is EffectStatus.IN_DOUBT)
        got = dict(scenarios.sent()).get(doubtful.idempotency_key)
        await runtime.approve(
            run_id,
            doubtful.idempotency_key[:12],
            happened=got is not None,
            result=None if got is None else f"receipt for {got}",
        )


async def _lost(folder: Path, database: str) -> None:
    async with RunStore(database, clock=time.time) as store:
        run = await _known(store, folder)
        assert run is not None
        named = {one.snapshot_id for one in await store.checkpoints(run.id)} - {run.base_snapshot}
    assert len(named) > 2, named
    for id in named:
        (paths.snapshots(folder / "home") / "snapshots" / f"{id}.json").unlink()
    (folder / "lost").write_text("\n".join(named))


def _graph(scenario: Scenario, folder: Path, database: str) -> tuple[Left, int]:
    config = _config(folder)
    with _app(scenario, folder, database) as app:
        begun = app.checkpointer.get_tuple(config) is not None
        # a task of which only the writes were stored is not in `next` any more, but the thread is not done
        if begun and not app.get_state(config).tasks:
            state = app.get_state(config).values  # it had ended
        else:
            fresh: Any = NAMES if scenario is Scenario.ENTRYPOINT else {"said": []}
            given = None if begun else fresh
            if scenario is Scenario.ENTRYPOINT:  # the waiting thread commits
                state = app.invoke(given, config, durability="sync")
            else:  # the event loop must not block: the saver's thread commits
                state = asyncio.run(app.ainvoke(given, config))
        snapshot = ramify.graph.snapshot_of(app, config)
        history = [
            (one.metadata, one.next, one.values, env_at(app, one.config)) for one in app.get_state_history(config)
        ]
    return asyncio.run(_left_of_graph(scenario, folder, database, state, snapshot, history)), 0


@contextlib.contextmanager
def _app(scenario: Scenario, folder: Path, database: str) -> Iterator[Any]:
    os.environ["RAMIFY_DATABASE"] = database
    threads = database
    if scenario is Scenario.ENTRYPOINT:  # two commits per superstep: the saver commits for itself
        threads = f"sqlite:///{folder}/threads.db" if database.startswith("sqlite") else f"{database}?{_APART}"
    with (
        ramify.graph.Saver(threads) as saver,
        ramify.compile(
            scenarios.flow if scenario is Scenario.ENTRYPOINT else scenarios.graph(),
            folder / "workspace",
            checkpointer=saver,
            home=folder / "home",
            sandbox=_backend,
            llm=_model(),
            name="crash",
        ) as app,
    ):
        yield app


async def _left_of_graph(
    scenario: Scenario, folder: Path, database: str, state: Any, snapshot: str, history: list[Any]
) -> Left:
    tree = SnapshotStore(folder / "home" / "store").get(SnapshotId(snapshot)).content_key
    async with RunStore(database, clock=time.time) as store:
        run = await _known(store, folder)
        assert run is not None
        rows = Counter(  # LangGraph's task ids contain the time: identify a row by what it did
            f"{row.kind} {row.step or row.summary} {row.snapshot_out and row.result_digest}"
            for row in await store.ops(run.id)
            if row.status is OpStatus.DONE and (scenario is not Scenario.ENTRYPOINT or row.kind in _KEPT)
        )
        rows.update(f"{call.request_digest} {call.result_digest}" for call in await store.llm(run.id))
        known = await store.checkpoints(run.id)
        states = {
            f"{one.label} {one.content_key}": 1 for one in known
        }  # of an entrypoint: made anew, under other names
        problems = await _problems(store, run, folder)
    # a thread that had ended when it was killed is not run again: LangGraph's checkpoint says so
    status = RunStatus.DONE if run.status is RunStatus.RUNNING and not history[0][1] else run.status
    result = state["said"] if isinstance(state, dict) else state
    return Left(result, dict(rows), tree, {}, {}, states, _told(history, folder), status.value, problems)


def _told(history: list[Any], folder: Path) -> list[Any]:
    """After the collection: the state of a checkpoint of the thread must still exist."""
    snapshots = SnapshotStore(paths.snapshots(folder / "home"))

    def content(id: str) -> str:
        try:
            return snapshots.get(SnapshotId(id)).content_key
        except SnapshotNotFound:  # only in the scenarios that lose states
            return "gone"

    def world(env: Any) -> list[str]:
        return (
            [] if env is None else [content(id) for id in (env["snapshot"], *(one[0] for one in env.get("join", ())))]
        )

    return [[m["step"], m["source"], list(next), values, world(env)] for m, next, values, env in history]


async def _problems(store: RunStore, run: RunRecord, folder: Path) -> list[str]:
    """Return the inconsistencies that a collection leaves. Lost snapshots have stand-ins."""
    crash_points.at = None  # the trial is over
    home = folder / "home"
    snapshots = SnapshotStore(paths.snapshots(home))
    lost = (folder / "lost").read_text().split() if (folder / "lost").exists() else []
    named = {one.snapshot_id for one in await store.checkpoints(run.id)}
    named |= {id for row in await store.ops(run.id) for id in (row.snapshot_in, row.snapshot_out) if id is not None}
    if store.address.on_server:  # trials share the database, but not their snapshot stores
        snapshots.delete_unreachable(named)
    else:
        await collect(store, snapshots, Pins(paths.locks(home)), EvictionMarks(paths.evicted(home)), grace_s=0.0)
    expected = named - {SnapshotId(id) for id in lost}
    return [str(problem) for problem in snapshots.fsck(expected=expected).problems]


def _config(folder: Path) -> Any:
    return {"configurable": {"thread_id": str(folder)}}


def _backend(store: SnapshotStore, scratch: Path) -> ScriptedBackend:
    return ScriptedBackend(store, scratch, scenarios.answer)


def _model() -> LLMClient:
    return LLMClient("http://model.test/v1", transport=ScriptedModel(lambda r: r.messages[-1].content.upper()))


async def _known(store: RunStore, folder: Path) -> RunRecord | None:
    """The trial's run, where its first row was committed before the kill. Of all: where trials share a database, any
    number of others may have begun since."""
    runs = [run for run in await store.runs() if run.workspace == str(folder / "workspace")]
    return runs[0] if runs else None
