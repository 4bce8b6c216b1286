"""Each lost snapshot of a thread is recomputed by running the node that made it, and nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

import ramify
import ramify.graph
from ramify import Sandbox, SyncSandbox, paths
from ramify.fork_engine import crash_points
from ramify.fork_engine.store import SnapshotStore
from ramify.runtime.estimates.cost_model import regrets
from ramify.runtime.events import Level
from ramify.serving.testing import ScriptedModel
from tests.runtime.langgraph.lost_snapshots import (
    CONFIG,
    LOG,
    SHAPES,
    Heard,
    State,
    before,
    collected,
    contents,
    fan,
    line,
    look,
    lose,
    maker,
    sides,
    states,
    stopped,
)
from tests.samples import sample

pytestmark = pytest.mark.usefixtures("nothing_ran_again")
AGAIN = RetryPolicy(initial_interval=0, jitter=False, retry_on=OSError)


@pytest.mark.parametrize("build", SHAPES, ids=lambda build: build.__name__)
async def test_each_lost_state_is_recomputed(
    build: Callable[[], Any], compile_graph: Any, saver: Any, home: Path, scripted: ScriptedModel
) -> None:
    """A thread loses a state and all states after it, and ends as one that lost nothing. With `RAMIFY_DEEP=1`, each
    state."""
    app = compile_graph(build(), checkpointer=saver)
    number = len(await stopped(app))
    expected = (await app.ainvoke(None, CONFIG))["seen"]
    assert number > 2
    tails = range(1, number) if "RAMIFY_DEEP" in os.environ else sorted({1, number // 2, number - 1})[: sample(1, 3)]
    for first in tails:
        config = {"configurable": {"thread_id": f"lost {first}"}}
        heard = Heard()
        once = compile_graph(build(), checkpointer=saver)
        known = await stopped(once, config)
        content = contents(once)
        once.close()
        assert len(known) == number
        lose(home, *known[first:])
        before = len(scripted.calls)
        again = compile_graph(build(), checkpointer=saver, observer=heard)
        assert (await again.ainvoke(None, config))["seen"] == expected, first
        assert len(scripted.calls) == before, "a model was asked again"
        assert {one.level for one in heard.recovered} == {Level.LINEAGE}, first
        rows = again.session.portal.wait(again.session.services()).store.ops(again.session.last_run_id)
        for row in again.session.portal.wait(rows):
            if (lost := row.attrs.get("again")) is not None:
                assert row.result_digest == content[lost], row.summary
        again.close()


async def test_only_lost_states_are_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    LOG.clear()
    heard = Heard()
    await compile_graph(line(), checkpointer=saver, observer=heard).ainvoke(None, CONFIG)
    assert LOG == ["c"]
    assert "computed again: node 'c'" in heard.recovered[0].why and "is not in the store" in heard.recovered[0].why


async def test_a_sibling_with_its_files_does_not_run_again(
    compile_graph: Any, saver: Any, home: Path, kept: Any
) -> None:
    app = compile_graph(fan(), checkpointer=saver)
    await stopped(app)
    (lost,) = [one.snapshot_id for one in kept(app).checkpoints if one.label == "m"]
    app.close()
    lose(home, lost)
    LOG.clear()
    seen = (await compile_graph(fan(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "hello.txt", "l", "m", "r"]
    assert LOG == ["m"]


async def test_a_damaged_layer_is_a_lost_state(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    store = SnapshotStore(paths.snapshots(home))
    store.lower_dirs(store.get(known[-1]))[-1].parent.rename(home / "gone")  # type: ignore[arg-type]
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]


async def test_a_recomputed_state_stands_in_for_the_lost_one(
    compile_graph: Any, saver: Any, home: Path, kept: Any
) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[2:])
    again = compile_graph(line(), checkpointer=saver)
    await again.ainvoke(None, CONFIG)
    assert [choice.chose for choice in regrets(kept(again).ops)] == ["compute again"] * 2
    again.close()
    LOG.clear()
    heard = Heard()
    later = compile_graph(line(), checkpointer=saver, observer=heard)
    back = before(later, "c")
    assert b"b? after" in ramify.graph.read(later, back.config, "b")
    await later.ainvoke(None, back.config)
    assert (LOG, heard.recovered) == (["c"], [])


@pytest.mark.parametrize(
    ("point", "times"),
    [("world made", 1), ("world made", 2), ("rows numbered", 1), ("rows durable", 1), ("rows durable", 4)],
)
async def test_a_crash_during_recomputation_leaves_a_thread_that_resumes(
    point: str, times: int, compile_graph: Any, saver: Any, home: Path
) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])

    class Killed(BaseException):
        pass

    passed: list[str] = []

    def die(name: str) -> None:
        passed.append(name)
        if passed.count(point) == times:
            crash_points.at = None
            raise Killed

    crash_points.at = die
    broken = compile_graph(line(), checkpointer=saver)
    with pytest.raises(BaseException):  # noqa: B017  whatever a kill looks like from here
        await broken.ainvoke(None, CONFIG)
    broken.close()
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]


def test_a_thread_in_memory_and_nodes_that_are_not_async(compile_graph: Any, home: Path) -> None:
    def write(state: State, sandbox: Sandbox) -> State:
        LOG.append("write")
        (sandbox.path / "made").write_text("made")
        return {"said": ["write"]}

    def see(state: State, sandbox: Sandbox) -> State:
        return {"seen": sorted(path.name for path in sandbox.path.iterdir())}

    graph = StateGraph(State).add_sequence([("write", write), ("look", see)]).add_edge(START, "write")
    app = compile_graph(graph, checkpointer=InMemorySaver())
    app.invoke({"said": []}, CONFIG, interrupt_before=["look"])
    lose(home, states(app)[-1])
    assert app.invoke(None, CONFIG)["seen"] == ["hello.txt", "made"]
    assert LOG == ["write", "write"]


async def test_a_fork_of_an_old_checkpoint_is_recomputed_through_its_parents(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    app = compile_graph(line(), checkpointer=saver)
    await stopped(app)
    back = before(app, "b")
    await app.ainvoke(None, back.config, interrupt_before=["look"])
    known = states(app)
    app.close()
    lose(home, *known[1:])
    LOG.clear()
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]
    assert LOG == ["a", "b", "c"]


async def test_a_copied_thread_is_recomputed(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    lose(home, *known[1:])
    copied = {"configurable": {"thread_id": "copy"}}
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, copied))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt"]


async def test_garbage_collection_keeps_recomputed_states(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[2:])
    again = compile_graph(line(), checkpointer=saver)
    await again.ainvoke(None, CONFIG)
    again.close()
    await collected(home)
    later = compile_graph(line(), checkpointer=saver)
    assert b"b? after" in ramify.graph.read(later, before(later, "c").config, "b")


async def test_cancelling_the_caller_cancels_the_rerun_node(compile_graph: Any, saver: Any, home: Path) -> None:
    waits = False
    begun, ended = threading.Event(), threading.Event()

    async def slow(state: State, sandbox: Sandbox) -> State:
        (sandbox.path / "slow").write_text("slow")
        if waits:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return {}

    graph = StateGraph(State).add_sequence([("slow", slow), ("look", look)]).add_edge(START, "slow")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, known[-1])
    waits = True
    again = compile_graph(graph, checkpointer=saver)
    asking = asyncio.create_task(again.ainvoke(None, CONFIG))
    await asyncio.to_thread(begun.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, 60), "the node goes on, and nobody wants it"
    waits = False
    assert "slow: slow" in (await again.ainvoke(None, CONFIG))["seen"]


async def test_the_checkpoints_of_a_long_thread_are_read_once(compile_graph: Any, home: Path) -> None:
    class Counted(InMemorySaver):
        listed = 0

        def list(self, *args: Any, **options: Any) -> Any:
            self.listed += 1
            return super().list(*args, **options)

    app = compile_graph(line(), checkpointer=(counted := Counted()))
    lose(home, *(await stopped(app))[1:])
    LOG.clear()
    await app.ainvoke(None, CONFIG)
    assert (LOG, counted.listed) == (["a", "b", "c"], 1)


async def test_damaged_bytes_are_recomputed_once_they_are_found(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    store = SnapshotStore(paths.snapshots(home))
    (damaged,) = [top / "c" for top in store.lower_dirs(store.get(known[-1])) if (top / "c").exists()]
    damaged.chmod(0o600)
    damaged.write_text("damaged")
    assert store.fsck(repair=True).lost == (known[-1],)
    seen = (await compile_graph(line(), checkpointer=saver).ainvoke(None, CONFIG))["seen"]
    assert "c: said c? after ['a', 'b', 'hello.txt']" in seen


async def test_a_thread_is_edited_where_its_files_are_lost(compile_graph: Any, saver: Any, home: Path) -> None:
    app = compile_graph(line(), checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])
    again = compile_graph(line(), checkpointer=saver)
    ramify.graph.edit(again, CONFIG, lambda sandbox: (sandbox.path / "mine").write_text("mine"))
    seen = (await again.ainvoke(None, CONFIG))["seen"]
    assert [line.split(":")[0] for line in seen] == ["a", "b", "c", "hello.txt", "mine"]


async def test_a_node_that_reads_its_threads_history_is_recomputed(
    compile_graph: Any, saver: Any, home: Path
) -> None:
    """The earlier state was a join, and is lost too."""

    async def z(state: State, sandbox: Sandbox) -> State:
        config = (await asyncio.to_thread(before, app, "z")).config
        (sandbox.path / "z").write_bytes(await asyncio.to_thread(ramify.graph.read, app, config, "l"))
        return {"said": ["z"]}

    app: Any = None
    graph = sides().add_node("z", z).add_edge(["l", "m", "r"], "z").add_edge("z", "look")
    app = compile_graph(graph, checkpointer=saver)
    known = await stopped(app)
    app.close()
    lose(home, *known[1:])
    app = compile_graph(graph, checkpointer=saver)
    assert "z: said l? after ['a', 'hello.txt']" in (await app.ainvoke(None, CONFIG))["seen"]


def test_a_thread_with_async_history_continues_without_a_loop(compile_graph: Any, saver: Any, home: Path) -> None:
    def see(state: State, sandbox: SyncSandbox) -> State:
        return {"seen": sorted(path.name for path in sandbox.path.iterdir())}

    graph = StateGraph(State).add_sequence([("a", maker("a")), ("look", see)]).add_edge(START, "a")
    app = compile_graph(graph, checkpointer=saver)
    known = asyncio.run(stopped(app))
    app.close()
    lose(home, known[-1])
    assert compile_graph(graph, checkpointer=saver).invoke(None, CONFIG)["seen"] == ["a", "hello.txt"]


# by which level of recovery


async def test_resuming_an_interrupted_thread_reports_its_restored_state(compile_graph: Any, saver: Any) -> None:
    await stopped(app := compile_graph(line(), checkpointer=saver))
    app.close()
    heard = Heard()
    app = compile_graph(line(), checkpointer=saver, observer=heard)
    await app.ainvoke(None, CONFIG)
    assert [one.level for one in heard.recovered] == [Level.RESTORE]
    assert "is whole" in heard.recovered[0].why
    await app.ainvoke({"said": []}, CONFIG)
    assert len(heard.recovered) == 1, "a thread that was done has not come back"


async def test_a_retried_node_is_reported(compile_graph: Any, home: Path) -> None:
    tried: list[int] = []

    async def flaky(state: State, sandbox: Sandbox) -> State:
        tried.append(len(tried))
        (sandbox.path / "made").write_text("made")
        if len(tried) % 2:
            raise OSError("once more")
        return {}

    graph = StateGraph(State).add_node("flaky", flaky, retry_policy=AGAIN)
    graph.add_node("look", look).add_edge(START, "flaky").add_edge("flaky", "look")
    heard = Heard()
    app = compile_graph(graph, checkpointer=InMemorySaver(), observer=heard)
    known = await stopped(app)
    assert [one.level for one in heard.recovered] == [Level.RETRY]
    lose(home, known[-1])
    assert "made: made" in (await app.ainvoke(None, CONFIG))["seen"]
    assert len(tried) == 4
