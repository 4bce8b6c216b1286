"""`ramify.compile`: any LangGraph graph, its nodes on copy-on-write worlds.

app = ramify.compile(state_graph, workspace="./repo", deadline="90s", checkpointer=Saver())
app.invoke(inputs, config)                       # the same interface as before
app.invoke(None, older.config)                   # going back brings the files back; running on is a branch
ramify.graph.changes(app, before.config, after.config)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore

from ramify.compiler.plan import Plan
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, SnapshotId
from ramify.runtime.driver import Services
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.events import Observer
from ramify.runtime.langgraph.app import WorldGraph, env_at, instrument
from ramify.runtime.langgraph.errors import UnsupportedGraph
from ramify.runtime.langgraph.saver import Saver
from ramify.runtime.langgraph.session import Session
from ramify.sandboxes.contract import Backend
from ramify.serving.client import LLMClient
from ramify.session import Runtime

__all__ = ["Saver", "WorldGraph", "changes", "compile", "read", "snapshot_of"]

Names = Literal["*"] | list[str] | None


def compile(
    graph: StateGraph[Any, Any, Any, Any] | CompiledStateGraph[Any, Any, Any, Any],
    workspace: str | Path | None = None,
    deadline: Duration | None = None,
    *,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    store: BaseStore | None = None,
    cache: BaseCache[Any] | None = None,
    interrupt_before: Names = None,
    interrupt_after: Names = None,
    name: str | None = None,
    plan: Plan | None = None,
    home: Path | None = None,
    sandbox: str | Backend | Callable[[SnapshotStore, Path], Backend] = "namespaces",
    base_url: str | None = None,
    api_key: str | None = None,
    model: str | None = None,
    llm: LLMClient | None = None,
    observer: Observer | None = None,
) -> WorldGraph:
    """A graph whose nodes act on worlds that start as `workspace` (never written to).

    What a node asks for by a parameter annotated `Sandbox`, or by `ramify.current_sandbox()`, follows LangGraph's
    checkpoints: history, time travel, retries, interrupts and parallel nodes. `deadline`: of each invocation, carried
    by its model calls. `checkpointer`, `store`, `cache`, `interrupt_*`: as in LangGraph's own `compile`; `Saver()` is
    a checkpointer on disk. `plan`: run under this one instead of compiling one. The rest as in `Runtime`.
    Raises `CompileError`, and `UnsupportedGraph` for what would lose files.
    """
    compiled = _compiled(graph, checkpointer, store, cache, interrupt_before, interrupt_after, name)
    limit = None if deadline is None else seconds(deadline)
    if plan is None:
        from ramify.compiler.pipeline import compile_graph

        title = name or compiled.name
        plan = compile_graph(compiled, name=title, ref=title, deadline_s=limit).plan

    @asynccontextmanager
    async def services() -> AsyncIterator[Services]:
        async with Runtime(
            home=home,
            sandbox=sandbox,
            base_url=base_url,
            api_key=api_key,
            model=model,
            llm=llm,
            observer=observer,
        ) as runtime:
            yield runtime.services()

    folder = None if workspace is None else Path(workspace)
    session = Session(services, plan, folder, limit if limit is not None else plan.deadline_s)
    return instrument(compiled, session)


def _compiled(
    graph: StateGraph[Any, Any, Any, Any] | CompiledStateGraph[Any, Any, Any, Any],
    checkpointer: BaseCheckpointSaver[Any] | None,
    store: BaseStore | None,
    cache: BaseCache[Any] | None,
    interrupt_before: Names,
    interrupt_after: Names,
    name: str | None,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    if isinstance(graph, WorldGraph):
        raise UnsupportedGraph("this graph is over worlds already: compile the StateGraph that it was made from")
    if isinstance(graph, CompiledStateGraph):
        given = {
            "checkpointer": checkpointer,
            "store": store,
            "cache": cache,
            "interrupt_before_nodes": interrupt_before,
            "interrupt_after_nodes": interrupt_after,
            "name": name,
        }
        return graph.copy({key: value for key, value in given.items() if value is not None})
    return graph.compile(
        checkpointer=checkpointer,
        store=store,
        cache=cache,
        interrupt_before=interrupt_before,
        interrupt_after=interrupt_after,
        name=name,
    )


def snapshot_of(app: WorldGraph, config: RunnableConfig) -> SnapshotId | None:
    """The snapshot at a checkpoint of a thread (the newest, where the config names none), for `ramify checkout`.

    None before the thread's first node. Siblings that wait to be merged are merged: raises `NodesConflict`.
    """
    env = env_at(app, config)
    return None if env is None else app.session.portal.wait(app.session.snapshot(env))


def changes(app: WorldGraph, before: RunnableConfig, after: RunnableConfig) -> list[Change]:
    """Which files differ between two checkpoints, by path. A checkpoint before the first node has none."""
    first, second = snapshot_of(app, before), snapshot_of(app, after)
    if first is None or second is None:
        return []
    snapshots = app.session.portal.wait(app.session.services()).snapshots
    return snapshots.changes(snapshots.get(first), snapshots.get(second))


def read(app: WorldGraph, config: RunnableConfig, path: str) -> bytes:
    """A file as it is at a checkpoint. Raises `PathNotFound`."""
    snapshots = app.session.portal.wait(app.session.services()).snapshots
    found = snapshot_of(app, config)
    if found is None:
        raise UnsupportedGraph("the thread has no world before its first node")
    return snapshots.read(snapshots.get(found), path)
