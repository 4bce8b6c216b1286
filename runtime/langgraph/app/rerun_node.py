"""Run one node of a thread again, exactly as it ran before, to get back the files that it left.

LangGraph's own loop runs the node. Its checkpointer (`RewoundCheckpointer`) shows the thread as it was before the
node's superstep ended, with the writes of the other tasks and with people's answers; nothing of the run is recorded.
So the node gets the same input and the same task id, and through that finds its model calls in the journal. When the
node is done, the loop is stopped: no edge, reducer or later node runs.

Only nodes that may run twice are run again: nodes that take their sandbox as a parameter, nodes declared revertible,
graphs and entrypoints.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import re
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot

from ramify.compiler.plan import HARMLESS, OpKind
from ramify.fork_engine.gc_pins import Pins, WorldPins
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.journal.journal import Durable
from ramify.runtime.langgraph.app.discarding_journal import DiscardingJournal
from ramify.runtime.langgraph.compat import CONF, CONFIG_KEY_CHECKPOINT_NS, CONFIG_KEY_THREAD_ID, NS_END, NS_SEP
from ramify.runtime.langgraph.node.nested_graphs import intercepted_graphs
from ramify.runtime.langgraph.node.task_config import INVOCATION
from ramify.runtime.langgraph.node.world_node import WorldNode
from ramify.runtime.langgraph.thread.graph_run import GraphRun
from ramify.runtime.langgraph.thread.lost_states import CannotRecompute
from ramify.runtime.langgraph.thread.rewound_checkpointer import (
    RewoundCheckpointer,
    checkpoints_by_task,
    newest_checkpoint,
)
from ramify.runtime.langgraph.thread.session import Invocation
from ramify.runtime.langgraph.thread.supersteps import REPLAY, Task
from ramify.runtime.records import BranchPath, OpRecord, OpStatus
from ramify.runtime.worlds.world_pool import Branch

if TYPE_CHECKING:
    pass


_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_TASK = rf"[^|]+:{_UUID}"
_KEY = re.compile(
    rf"^(.*?)\|({_TASK}(?:\|(?:\d+|{_TASK}))*)({re.escape(REPLAY)}[0-9a-f]+)?$",
    re.DOTALL,
)
_FORK_KEY = re.compile(r"\|a\d+\|LEND\|(\d+)$")


class RerunFinished(BaseException):
    """Stops the loop: the node is done, or cannot be run."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task ran, as its journal key tells. `path` lists the tasks that enclose it, from the outermost to the
    task itself, each as (namespace of its graph, task id, journal key)."""

    thread: str
    path: tuple[tuple[str, str, str], ...]  # namespace, task id, key
    replay: str = ""  # suffix of the last key in the journal that LangGraph's task key does not have

    @property
    def node(self) -> str:
        return self.path[-1][2].rpartition(NS_SEP)[2].partition(NS_END)[0]

    @classmethod
    def of(cls, key: str) -> TaskPlace | None:
        found = _KEY.match(key)
        if found is None:
            return None
        thread, parts = found[1], found[2].split(NS_SEP)
        steps = [
            (NS_SEP.join(parts[:at]), part.rpartition(NS_END)[2], f"{thread}|{NS_SEP.join(parts[: at + 1])}")
            for at, part in enumerate(parts)
            if not part.isdigit()
        ]
        return cls(thread, tuple(steps), found[3] or "")


class RerunnableApp(Protocol):
    """What a rerun needs of a compiled app."""

    nodes: Any
    checkpointer: Any
    cache: Any
    interrupt_before_nodes: Any
    interrupt_after_nodes: Any

    @property
    def has_async_nodes(self) -> bool: ...
    def get_state(self, config: RunnableConfig) -> StateSnapshot: ...
    def for_invocation(self, invocation: Invocation) -> Self: ...
    def langgraph_stream(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> Iterator[Any]: ...
    def langgraph_astream(
        self, input: Any, config: RunnableConfig | None, options: dict[str, Any]
    ) -> AsyncGenerator[Any]: ...


class NodeRerunner:
    """Runs nodes of one thread again, with the checkpointer, config and context of an invocation. Implements
    `RerunsNodes` of `lost_states.py`."""

    def __init__(
        self,
        app: RerunnableApp,
        saver: BaseCheckpointSaver[Any],
        thread: str,
        config: RunnableConfig,
        context: Any,
        *,
        is_async: bool,
    ) -> None:
        self._app = weakref.ref(app)  # weak: an app that nobody holds is closed
        self._saver = saver
        self._thread = thread
        self._config = config
        self._context = context
        self._is_async = is_async
        self._ran: dict[str, dict[str, list[str]]] = {}  # by namespace: result of `checkpoints_by_task`

    async def rerun_node(
        self, run: GraphRun, rows: Sequence[OpRecord], row: OpRecord, kept: ExitStack
    ) -> SnapshotId | None:
        place, app = TaskPlace.of(_FORK_KEY.sub("", row.key)), self._app()
        if place is None or app is None:
            return None
        # such a saver waits for its own loop, and that loop may wait for the node that asks
        if hasattr(self._saver, "loop"):
            raise CannotRecompute(f"{type(self._saver).__name__} returns checkpoints on its own event loop only")
        try:
            cuts = await _in_a_thread(lambda: self._cuts(app, place))
        except NotImplementedError as error:
            raise CannotRecompute(
                f"{type(self._saver).__name__} returns checkpoints to async callers only"
            ) from error
        if cuts is None:
            return None
        undone = frozenset(id for _, id, _ in place.path)
        handled = row.step in {node.error_handler_node for node in app.nodes.values()} - {None}
        forked_from = row.snapshot_out if row.kind is OpKind.FORK else None
        shown = RewoundCheckpointer(
            self._saver, self._thread, place.thread, cuts, undone, forked_from=forked_from, handled=handled
        )
        again = await _again_run(run, rows, row, place, kept)
        try:
            await _in_a_thread(lambda: self._run(app, again, shown, place.thread))
        # BaseExceptionGroup: raised by a task group in the node's code
        except (RerunFinished, Exception, BaseExceptionGroup) as error:
            if again.made is None:
                told = f"node {place.node!r} was run again, and {type(error).__name__} was raised: {error}"
                raise CannotRecompute(again.refused or told) from error
        finally:
            await again.end()
        if again.made is None:
            raise CannotRecompute(
                f"node {place.node!r} would have to run again, and its checkpoint does not lead to it"
            )
        return again.made

    def _cuts(self, app: RerunnableApp, place: TaskPlace) -> dict[str, str] | None:
        """Return, by namespace, the checkpoint on which each task of the path ran; None if one of them was not
        kept."""
        cuts = dict[str, str]()
        caller = ""
        for namespace, id, _ in place.path:
            found = next(iter(self._ran_on(namespace, id)), None)
            # a @task belongs to the graph of its caller
            if found is None and cuts.get(caller) in self._ran_on(caller, id):
                namespace, found = caller, cuts[caller]
            if found is None:
                found = self._begun(app, namespace, id)
            if found is None:
                return None
            caller, cuts[namespace] = namespace, found
        return cuts

    def _ran_on(self, namespace: str, id: str) -> list[str]:
        """Return the ids of the checkpoints that hold writes of a task. All checkpoints of the namespace are read at
        the first call, and read again for a task that is not found: a thread may be long, and many of its states
        lost."""
        if id not in self._ran.get(namespace, ()):
            self._ran[namespace] = checkpoints_by_task(self._saver, self._thread, namespace)
        return self._ran[namespace].get(id, [])

    def _begun(self, app: RerunnableApp, namespace: str, id: str) -> str | None:
        """Return the newest checkpoint of a graph whose task may have been running when its process ended."""
        if not namespace:
            state = app.get_state({CONF: {CONFIG_KEY_THREAD_ID: self._thread}})
            if id not in {task.id for task in state.tasks}:
                return None
        return newest_checkpoint(self._saver, self._thread, namespace)

    def _run(self, app: RerunnableApp, again: ScratchRun, shown: RewoundCheckpointer, thread: str) -> None:
        """Run the node; call this in a thread that has no event loop."""
        record, services = replace(again.record, deadline_s=None), again.services
        calls = LLMCalls(record, again.plan, again.journal, services.llm, services.clock)
        invocation = Invocation(thread, addressed=False, calls={again.record.id: calls}, instead=again)
        graph = app.for_invocation(invocation)
        graph.checkpointer, graph.cache = shown, None
        graph.interrupt_before_nodes = graph.interrupt_after_nodes = ()
        theirs = {name: value for name, value in self._config.get(CONF, {}).items() if not name.startswith("__")}
        mine = {CONFIG_KEY_THREAD_ID: thread, INVOCATION: invocation}
        config: RunnableConfig = {CONF: {**theirs, **mine}}
        if (most := self._config.get("max_concurrency")) is not None:
            config["max_concurrency"] = most
        for name in ("checkpoint_id", CONFIG_KEY_CHECKPOINT_NS, "checkpoint_map"):
            config[CONF].pop(name, None)
        # not "sync": LangGraph would wait for checkpoints that a nested graph without checkpointer never writes
        options = {"durability": "async", "context": self._context}
        with intercepted_graphs():
            if self._is_async or app.has_async_nodes:
                asyncio.run(again.drained(graph.langgraph_astream(None, config, options)))
            else:
                deque(graph.langgraph_stream(None, config, options), maxlen=0)


class ScratchRun(GraphRun):
    """A run in which one node is run again. Its rows are not recorded, and it ends with the node. `kept` protects
    from garbage collection the states on which its branches stand: no journal row names them."""

    def __init__(
        self, real: GraphRun, wanted: OpRecord, place: TaskPlace, journal: DiscardingJournal, kept: ExitStack
    ) -> None:
        quiet = replace(real.services, emit=lambda event: None)
        super().__init__(quiet, real.record, real.plan, journal)
        self.again = self._allow
        self.made: SnapshotId | None = None
        self.refused = ""
        self._wanted = _of_any_attempt(wanted.key)
        last = place.path[-1][2]
        self.recorded_keys = {last: f"{last}{place.replay}"} if place.replay else {}
        self._below = f"{last}{NS_SEP}"
        self._ways = frozenset(self.recorded_keys.get(key, key) for _, _, key in place.path)
        self._driven: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self._ended = False
        self._kept = kept
        self._world_pins: dict[BranchPath, WorldPins] = {}

    async def snapshot(self, id: str) -> Snapshot:
        """Return the snapshot; recompute it first if it is lost too, under the lock that the outer recomputation
        holds."""
        try:
            return await self.lost_states.state(SnapshotId(id))
        except CannotRecompute as error:
            raise self._refuse(str(error)) from error

    async def record_rows(
        self,
        *rows: OpRecord,
        checkpoint: tuple[Branch, Snapshot, str] | None = None,
        durable: Durable = Durable.NOW,
    ) -> None:
        await super().record_rows(*rows, checkpoint=checkpoint, durable=durable)
        for branch, id in [(row.branch, row.snapshot_out) for row in rows if row.snapshot_out is not None]:
            self._stands(branch, id)
        if checkpoint is not None:
            self._stands(checkpoint[0].path, checkpoint[1].id)
        for row in rows:
            self.note(row)

    def _stands(self, branch: BranchPath, id: SnapshotId) -> None:
        if branch not in self._world_pins:
            self._world_pins[branch] = Pins(self.services.locks).of_world()
            self._kept.callback(self._world_pins[branch].close)
        self._world_pins[branch].moved(id)

    def note(self, row: OpRecord) -> None:
        if _of_any_attempt(row.key) == self._wanted and row.status is OpStatus.DONE:
            self.made = row.snapshot_out or row.snapshot_in
        if self.made is not None:
            raise RerunFinished

    async def drained(self, chunks: AsyncIterator[Any]) -> None:
        """Consume the chunks on a separate event loop until they end or `end` is called."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs has a task"
        self._driven = asyncio.get_running_loop(), task
        if not self._ended:
            async for _ in chunks:
                pass

    async def end(self) -> None:
        """End the run. If the caller waiting for this state is cancelled, cancel the node as well."""
        self._ended = True
        if self._driven is not None:
            loop, task = self._driven
            with suppress(RuntimeError):  # the loop is closed: the node had ended
                loop.call_soon_threadsafe(task.cancel)
        async with self._stack:
            self.journal.close()
            await self.worlds.close()

    def _allow(self, node: WorldNode, task: Task) -> None:
        if self.made is not None:
            raise RerunFinished
        if task.key not in self._ways and not task.key.startswith(self._below):
            raise self._refuse(f"node {task.node!r} would run too, because its result is not recorded")
        if not self._may_be(node, task):
            raise self._refuse(
                f"node {task.node!r} would have to run again, and what it does outside its world is not known "
                "(a node that does nothing there takes a parameter annotated Sandbox, or is declared by "
                '@step(effect="revertible"))'
            )

    def _refuse(self, why: str) -> RerunFinished:
        """Return the exception that ends the loop. It is a `BaseException`: retry policies and error handlers ignore
        it."""
        self.refused = self.refused or why
        return RerunFinished()

    def _may_be(self, node: WorldNode, task: Task) -> bool:
        planned = None if task.inner else self.plan.step(task.node)
        if planned is not None and planned.effect in HARMLESS:
            return True
        is_graph = isinstance(node.bound, Pregel)  # each node of the graph is checked by itself
        return is_graph or node.starts or node.declared in HARMLESS or node.parameter is not None


async def _again_run(
    run: GraphRun, rows: Sequence[OpRecord], row: OpRecord, place: TaskPlace, kept_until: ExitStack
) -> ScratchRun:
    keys = [*(key for _, _, key in place.path[:-1]), f"{place.path[-1][2]}{place.replay}"]
    own = re.compile("|".join(rf"{re.escape(key)}(\|SEAL|\|a\d+\|.*)?" for key in keys), re.DOTALL)
    kept = [one for one in rows if not own.fullmatch(one.key)]
    journal = DiscardingJournal(
        run.journal, kept, await run.services.store.llm(run.record.id), run.services, run.record
    )
    again = ScratchRun(run, row, place, journal, kept_until)
    for one in kept:
        again._remember(one)
    again.lost_states = run.lost_states
    return again


def _of_any_attempt(key: str) -> str:
    """Remove the attempt number of a nested fork's key: a fork of one attempt equals that of another attempt."""
    return _FORK_KEY.sub(r"|LEND|\1", key)


async def _in_a_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a new thread with an empty context: a node may run for long, and one may wait for another."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # the waiting caller may be cancelled; the work goes on to its end
        try:
            result = work()
        except asyncio.CancelledError as error:  # cancelled by its own loop: the awaiting task was not cancelled
            done.set_exception(RuntimeError(f"cancelled: {error}"))
        except BaseException as error:  # noqa: BLE001  it is the awaiting task's
            done.set_exception(error)
        else:
            done.set_result(result)

    context = contextvars.Context()
    threading.Thread(target=context.run, args=(run,), name="ramify again", daemon=True).start()
    return await asyncio.wrap_future(done)
