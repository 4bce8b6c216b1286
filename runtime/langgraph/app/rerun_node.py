"""One node of a thread, run again as it ran then, for the files that it leaves.

LangGraph's own loop runs it: on a checkpointer that shows the thread as it was before the node's superstep ended,
with what its other tasks had written and what people had answered, and in a run of which nothing is kept. So the node
finds its input, its task id, and with that its model calls in the journal. When it is done the loop is stopped: no
edge, no reducer and no later node runs. What the node calls is served as a resume would serve it.

Only what may be run twice is: a node that is given its world or declared to be revertible, a graph, an entrypoint.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import re
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import CONF, CONFIG_KEY_CHECKPOINT_NS, CONFIG_KEY_THREAD_ID, NS_END, NS_SEP
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

from ramify.compiler.plan import Effect, OpKind
from ramify.fork_engine.gc_pins import Ground, Pins
from ramify.fork_engine.types import Snapshot, SnapshotId
from ramify.runtime.execution.driver import Services
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.journal.journal import Durable, Journal
from ramify.runtime.langgraph.node.nested_graphs import followed
from ramify.runtime.langgraph.node.task_config import INVOCATION
from ramify.runtime.langgraph.thread.graph_run import REPLAY, GraphRun, Task
from ramify.runtime.langgraph.thread.lost_states import CannotRecompute
from ramify.runtime.langgraph.thread.rewound_checkpointer import (
    RewoundCheckpointer,
    checkpoints_by_task,
    newest_checkpoint,
)
from ramify.runtime.langgraph.thread.session import Invocation
from ramify.runtime.records import BranchPath, LLMRecord, OpRecord, OpStatus, RunRecord
from ramify.runtime.worlds.world_pool import Branch

if TYPE_CHECKING:
    from ramify.runtime.langgraph.app.world_app import WorldApp
    from ramify.runtime.langgraph.node.world_node import WorldNode
    from ramify.runtime.store import RunStore


class DiscardingJournal(Journal):
    """`real` gets the model calls."""

    def __init__(
        self,
        real: Journal,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        services: Services,
        record: RunRecord,
    ) -> None:
        super().__init__(
            cast("RunStore", _DiscardingStore()),
            record,
            ops=ops,
            llm=llm,
            flush=lambda: None,
            clock=services.clock,
            emit=lambda event: None,
        )
        self._real = real

    @contextmanager
    def ending(self, branch: BranchPath) -> Iterator[None]:
        """Nothing waits for what is not committed."""
        yield

    async def record_llm(self, row: LLMRecord) -> None:
        await self._real.record_llm(row)
        self._llm[row.key] = row


class _DiscardingStore:
    """As much of a `RunStore` as a journal writes to."""

    async def commit(self, run: str, **changes: Any) -> None:
        return None

    def commit_soon(self, run: str, **changes: Any) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_TASK = rf"[^|]+:{_UUID}"
_KEY = re.compile(
    rf"^(.*?)\|({_TASK}(?:\|(?:\d+|{_TASK}))*)({re.escape(REPLAY)}[0-9a-f]+)?$",
    re.DOTALL,
)
_LENT = re.compile(r"\|a\d+\|LEND\|(\d+)$")
_MAY_BE = frozenset({Effect.PURE, Effect.READONLY, Effect.REVERTIBLE})


class Enough(BaseException):
    """The node is done, or cannot be: its loop is not needed any more."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task ran, read from its key in the journal. `path`: the tasks that it ran in, itself the last, each
    with the namespace of its graph and its key."""

    thread: str
    path: tuple[tuple[str, str, str], ...]  # namespace, task id, key
    replay: str = ""  # what the last key ends with in the journal, beyond what LangGraph calls the task

    @property
    def node(self) -> str:
        return self.path[-1][2].rpartition(NS_SEP)[2].partition(NS_END)[0]

    @classmethod
    def of(cls, key: str) -> Place | None:
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


class NodeRerunner:
    """A thread as one invocation of its app knows it: `Past` of `lineage.py`."""

    def __init__(
        self,
        app: WorldApp,
        saver: BaseCheckpointSaver[Any],
        thread: str,
        config: RunnableConfig,
        context: Any,
        *,
        is_async: bool,
    ) -> None:
        self._app = weakref.ref(app)  # one that is dropped is closed
        self._saver = saver
        self._thread = thread
        self._config = config
        self._context = context
        self._is_async = is_async
        self._ran: dict[str, dict[str, list[str]]] = {}  # by namespace: what `checkpoints_by_task` said

    async def node_again(
        self, run: GraphRun, rows: Sequence[OpRecord], row: OpRecord, kept: ExitStack
    ) -> SnapshotId | None:
        place, app = Place.of(_LENT.sub("", row.key)), self._app()
        if place is None or app is None:
            return None
        if hasattr(self._saver, "loop"):  # it waits for its own loop, which may wait for the node that asks
            raise CannotRecompute(f"{type(self._saver).__name__} gives its checkpoints on its own event loop only")
        try:
            cuts = await _in_a_thread(lambda: self._cuts(app, place))
        except NotImplementedError as error:
            raise CannotRecompute(
                f"{type(self._saver).__name__} gives its checkpoints to async callers only"
            ) from error
        if cuts is None:
            return None
        undone = frozenset(id for _, id, _ in place.path)
        handled = row.step in {node.error_handler_node for node in app.nodes.values()} - {None}
        lent = row.snapshot_out if row.kind is OpKind.FORK else None
        shown = RewoundCheckpointer(self._saver, self._thread, place.thread, cuts, undone, lent=lent, handled=handled)
        again = await _again_run(run, rows, row, place, kept)
        try:
            await _in_a_thread(lambda: self._run(app, again, shown, place.thread))
        except (Enough, Exception, BaseExceptionGroup) as error:  # the last: of a task group of the node's code
            if again.made is None:
                told = f"node {place.node!r} was run again, and {type(error).__name__} was raised: {error}"
                raise CannotRecompute(again.refused or told) from error
        finally:
            await again.end()
        if again.made is None:
            raise CannotRecompute(
                f"node {place.node!r} would have to be done again, and its checkpoint does not lead to it"
            )
        return again.made

    def _cuts(self, app: WorldApp, place: Place) -> dict[str, str] | None:
        """The checkpoint on which each of the path's tasks ran, by namespace; None where one is not kept."""
        cuts = dict[str, str]()
        caller = ""
        for namespace, id, _ in place.path:
            found = next(iter(self._ran_on(namespace, id)), None)
            if found is None and cuts.get(caller) in self._ran_on(caller, id):  # a @task is of its caller's graph
                namespace, found = caller, cuts[caller]
            if found is None:
                found = self._begun(app, namespace, id)
            if found is None:
                return None
            caller, cuts[namespace] = namespace, found
        return cuts

    def _ran_on(self, namespace: str, id: str) -> list[str]:
        """The checkpoints that hold writes of a task. All are read for the first that is asked for, and again for one
        that was not there by then: a thread may be long, and much of it lost."""
        if id not in self._ran.get(namespace, ()):
            self._ran[namespace] = checkpoints_by_task(self._saver, self._thread, namespace)
        return self._ran[namespace].get(id, [])

    def _begun(self, app: WorldApp, namespace: str, id: str) -> str | None:
        """The newest checkpoint of a graph, where a task of it may have been running when its process ended."""
        if not namespace:
            state = app.get_state({CONF: {CONFIG_KEY_THREAD_ID: self._thread}})
            if id not in {task.id for task in state.tasks}:
                return None
        return newest_checkpoint(self._saver, self._thread, namespace)

    def _run(self, app: WorldApp, again: ScratchRun, shown: RewoundCheckpointer, thread: str) -> None:
        """In a thread without a loop."""
        record, services = replace(again.record, deadline_s=None), again.services
        calls = LLMCalls(record, again.plan, again.journal, services.llm, services.clock)
        invocation = Invocation(thread, addressed=False, calls={again.record.id: calls}, instead=again)
        graph = app._of(invocation)
        graph.checkpointer, graph.cache = shown, None
        graph.interrupt_before_nodes = graph.interrupt_after_nodes = ()
        theirs = {name: value for name, value in self._config.get(CONF, {}).items() if not name.startswith("__")}
        mine = {CONFIG_KEY_THREAD_ID: thread, INVOCATION: invocation}
        config: RunnableConfig = {CONF: {**theirs, **mine}}
        if (most := self._config.get("max_concurrency")) is not None:
            config["max_concurrency"] = most
        for name in ("checkpoint_id", CONFIG_KEY_CHECKPOINT_NS, "checkpoint_map"):
            config[CONF].pop(name, None)
        # not "sync": LangGraph then waits for what a graph without checkpoints, in a node, never puts
        options = {"durability": "async", "context": self._context}
        with followed():
            if self._is_async or app.has_async_nodes:
                asyncio.run(again.drained(graph._arun(None, config, options)))
            else:
                deque(graph._run(None, config, options), maxlen=0)


class ScratchRun(GraphRun):
    """A run in which one node is run again. Its rows are kept nowhere; it ends with the node's own. `kept` keeps the
    states in which its branches stand, which may be for long, and no row names."""

    def __init__(
        self, real: GraphRun, wanted: OpRecord, place: Place, journal: DiscardingJournal, kept: ExitStack
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
        self._grounds: dict[BranchPath, Ground] = {}

    async def snapshot(self, id: str) -> Snapshot:
        """Also made again, if need be, under the lock that who wants the node's state holds."""
        try:
            return await self.lineage.state(SnapshotId(id))
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
        if branch not in self._grounds:
            self._grounds[branch] = Pins(self.services.locks).ground()
            self._kept.callback(self._grounds[branch].close)
        self._grounds[branch].moved(id)

    def note(self, row: OpRecord) -> None:
        if _of_any_attempt(row.key) == self._wanted and row.status is OpStatus.DONE:
            self.made = row.snapshot_out or row.snapshot_in
        if self.made is not None:
            raise Enough

    async def drained(self, chunks: AsyncIterator[Any]) -> None:
        """On a loop of its own, where nobody sees the chunks: until they end, or `end` is called."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine that runs has a task"
        self._driven = asyncio.get_running_loop(), task
        if not self._ended:
            async for _ in chunks:
                pass

    async def end(self) -> None:
        """Also where who wants the node's state was cancelled: then the node is, too."""
        self._ended = True
        if self._driven is not None:
            loop, task = self._driven
            with suppress(RuntimeError):  # the loop is closed: it had ended
                loop.call_soon_threadsafe(task.cancel)
        async with self._stack:
            self.journal.close()
            await self.worlds.close()

    def _allow(self, node: WorldNode, task: Task) -> None:
        if self.made is not None:
            raise Enough
        if task.key not in self._ways and not task.key.startswith(self._below):
            raise self._refuse(f"node {task.node!r} would be run beside it, which has no result that is recorded")
        if not self._may_be(node, task):
            raise self._refuse(
                f"node {task.node!r} would have to be done again, and what it does outside of its world is not known "
                "(a node that does nothing there says so by a parameter annotated Sandbox, or by "
                '@step(effect="revertible"))'
            )

    def _refuse(self, why: str) -> Enough:
        """What ends the loop: no retry policy and no error handler is for it."""
        self.refused = self.refused or why
        return Enough()

    def _may_be(self, node: WorldNode, task: Task) -> bool:
        planned = None if task.inner else self.plan.step(task.node)
        if planned is not None and planned.effect in _MAY_BE:
            return True
        is_graph = isinstance(node.bound, Pregel)  # its nodes are asked about by themselves
        return is_graph or node.starts or node.declared in _MAY_BE or node.parameter is not None


async def _again_run(
    run: GraphRun, rows: Sequence[OpRecord], row: OpRecord, place: Place, kept_until: ExitStack
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
    again.lineage = run.lineage
    return again


def _of_any_attempt(key: str) -> str:
    """What was lent by one attempt at a node is lent by another."""
    return _LENT.sub(r"|LEND|\1", key)


async def _in_a_thread(work: Callable[[], Any]) -> Any:
    """In a thread of its own and a context of its own: its nodes may take long, and one may wait for another."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # who waits for it may be cancelled, and it goes on to its end
        try:
            result = work()
        except asyncio.CancelledError as error:  # of its own loop: the awaiting task was not cancelled
            done.set_exception(RuntimeError(f"cancelled: {error}"))
        except BaseException as error:  # noqa: BLE001  it is the awaiting task's
            done.set_exception(error)
        else:
            done.set_result(result)

    context = contextvars.Context()
    threading.Thread(target=context.run, args=(run,), name="ramify again", daemon=True).start()
    return await asyncio.wrap_future(done)
