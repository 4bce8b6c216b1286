"""`ramify.compile`: run any LangGraph graph with its nodes on copy-on-write worlds.

app = ramify.compile(state_graph, workspace="./repo", deadline="90s", checkpointer=ramify.graph.saver())
app.invoke(inputs, config)                       # the same interface as before
app.invoke(None, older.config)                   # time travel brings the files back; continuing forks the thread
ramify.graph.changes(app, before.config, after.config)
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.cache.base import BaseCache
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from ramify import paths
from ramify.compiler.plan import Plan
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, SnapshotId
from ramify.runtime.durations import Duration, seconds
from ramify.runtime.events import Observer
from ramify.runtime.execution.new_runs import Services
from ramify.runtime.langgraph.app.time_travel import saved_at, with_env
from ramify.runtime.langgraph.app.world_app import WorldApp, WorldGraph, copied, env_at, instrument
from ramify.runtime.langgraph.checkpointer import Cache, Saver, Store
from ramify.runtime.langgraph.checkpointer.serializers import Allowed
from ramify.runtime.langgraph.checkpointer.thread_copies import CopiedThread, copy_threads
from ramify.runtime.langgraph.errors import UnsupportedGraph, WorldLost
from ramify.runtime.langgraph.node.node_execution import current_rerun
from ramify.runtime.langgraph.thread.positions import ENV
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.user_code.sandbox import SyncSandbox
from ramify.sandboxes.contract import Backend
from ramify.serving.client import LLMClient
from ramify.session import Runtime

__all__ = [
    "Cache",
    "CopiedThread",
    "Saver",
    "Store",
    "WorldApp",
    "WorldGraph",
    "changes",
    "compile",
    "copy_threads",
    "edit",
    "read",
    "saver",
    "snapshot_of",
]

Names = Literal["*"] | list[str] | None


def compile(
    graph: StateGraph[Any, Any, Any, Any] | Pregel[Any, Any, Any, Any],
    workspace: str | Path | None = None,
    deadline: Duration | None = None,
    *,
    checkpointer: BaseCheckpointSaver[Any] | None = None,
    store: BaseStore | None = None,
    cache: BaseCache[Any] | None = None,
    interrupt_before: Names = None,
    interrupt_after: Names = None,
    debug: bool = False,
    name: str | None = None,
    transformers: Sequence[Callable[[tuple[str, ...]], Any]] | None = None,
    plan: Plan | None = None,
    home: str | Path | None = None,
    sandbox: str | Backend | Callable[[SnapshotStore, Path], Backend] | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    model: str | None = None,
    llm: LLMClient | None = None,
    observer: Observer | None = None,
) -> WorldApp:
    """Compile a graph whose nodes act on worlds that start as `workspace`, which is never written to.

    `graph`: a `StateGraph`, the result of its `compile()`, or a function under `@entrypoint`. A node gets its world
    through a parameter annotated `Sandbox`, or from `ramify.current_sandbox()`. Worlds follow LangGraph's
    checkpoints: history, time travel, retries, interrupts, parallel nodes, subgraphs and `@task`s.

    - `deadline`: for each invocation, carried by its model calls; `ramify_deadline` in a config's `configurable` sets
      it for one invocation.
    - `checkpointer`, `store`, `cache`, `interrupt_*`, `name`, `debug`, `transformers`: as in LangGraph's own
      `compile`; they override what a compiled graph already has.
    - `plan`: use this plan instead of compiling one.

    The other arguments are those of `Runtime`.

    Any checkpointer works. `saver()` is Ramify's: it stores in the home's own database, with one commit per
    superstep. Other savers store every version of a channel whole, most cannot copy or prune threads, and after a
    crash a node runs again if its saver lost a write that it had confirmed. A saver in memory loses its threads with
    the process. docs/langgraph.md lists the intended differences from a plain graph.

    Returns a `CompiledStateGraph` (a `Pregel` for an entrypoint), which can be a node of another graph. Raises
    `CompileError`, and `UnsupportedGraph` for a graph that would lose files.
    """
    compiled = _compiled(
        graph,
        checkpointer=checkpointer,
        store=store,
        cache=cache,
        interrupt_before=interrupt_before,
        interrupt_after=interrupt_after,
        debug=debug,
        name=name,
        transformers=transformers,
    )
    limit = None if deadline is None else seconds(deadline)
    if plan is None:
        from ramify.compiler.pipeline import compile_graph
        from ramify.runtime.estimates.recorded_runs import RecordedEstimates

        title = name or (compiled.name if START in compiled.nodes else next(iter(compiled.nodes)))
        # the module of the caller, where `ramify resume` finds the app again
        file = sys._getframe(1).f_globals.get("__file__")
        ref = title if file is None else f"{Path(file).resolve()}:{title}"
        seen = RecordedEstimates(()).on(workspace)
        plan = compile_graph(compiled, name=title, ref=ref, deadline_s=limit, estimates=seen).plan

    @asynccontextmanager
    async def services(observer: Observer | None) -> AsyncIterator[Services]:
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
    limit = limit if limit is not None else plan.deadline_s
    return instrument(compiled, Session(services, plan, folder, limit, observer))


def _compiled(
    graph: StateGraph[Any, Any, Any, Any] | Pregel[Any, Any, Any, Any], **given: Any
) -> Pregel[Any, Any, Any, Any]:
    """The compiled graph. `given`: arguments of `StateGraph.compile`."""
    if isinstance(graph, WorldApp):
        raise UnsupportedGraph(
            "this graph was compiled by Ramify already: compile the StateGraph that it was made from"
        )
    if isinstance(graph, StateGraph):
        return graph.compile(**given)
    if not isinstance(graph, Pregel):
        raise TypeError(
            f"{graph!r} is not a graph: pass a StateGraph, the result of its compile(), or a function under "
            "LangGraph's @entrypoint"
        )
    names = {
        "interrupt_before": "interrupt_before_nodes",
        "interrupt_after": "interrupt_after_nodes",
        "transformers": "stream_transformers",
    }
    changes = {
        names.get(key, key): value
        for key, value in given.items()
        if value is not None and (key, value) != ("debug", False)
    }
    return copied(graph, type(graph), changes)


def saver(home: str | Path | None = None, *, allow: Iterable[Allowed] = ()) -> Saver:
    """A checkpointer in the home's database, where a superstep of a graph over worlds is one commit.

    Close it after the apps that use it. `allow`: types that it may load besides those that `Saver` always loads.
    `Saver.open(address)` stores checkpoints in another database, with two commits per superstep.
    """
    address = paths.database(paths.home(home))
    if isinstance(address, Path):
        paths.make_private(address.parent)
    return Saver(address, allow=allow)


def snapshot_of(app: WorldApp, config: RunnableConfig) -> SnapshotId | None:
    """The snapshot at a checkpoint of a thread, for `ramify checkout`; at the newest one if the config names none.

    None before the thread's first node. Parallel nodes that are not merged yet are merged: raises `NodesConflict`. A
    lost snapshot is made again by running its nodes: raises `StateGone` if they cannot run.
    """
    env = env_at(app, config)
    if env is None:
        return None
    return app.session.portal.wait(app.session.snapshot(env, app.rerunner(config), current_rerun()))


def changes(app: WorldApp, before: RunnableConfig, after: RunnableConfig) -> list[Change]:
    """The files that differ between two checkpoints, by path. A checkpoint before the first node has none."""
    first, second = snapshot_of(app, before), snapshot_of(app, after)
    if first is None or second is None:
        return []
    snapshots = app.session.portal.wait(app.session.services()).snapshots
    return snapshots.changes(snapshots.get(first), snapshots.get(second))


def edit(app: WorldApp, config: RunnableConfig, change: Callable[[SyncSandbox], object]) -> RunnableConfig:
    """Fork a thread at a checkpoint with other files; `change` gets the fork's world.

    Returns the config of the new checkpoint, which becomes the thread's newest; the same nodes come next. Raises what
    `change` raises (nothing is forked then), and `NodesConflict` and `WorldLost` as `snapshot_of`.
    """
    saver, saved = saved_at(app, config)
    env = saved.checkpoint["channel_values"].get(ENV)
    if env is None:
        raise UnsupportedGraph("the thread has no world before its first node")
    if env.get("unsealed"):
        raise WorldLost(env["branch"])
    return with_env(saver, saved, app.session.portal.wait(app.session.edit(env, change, app.rerunner(config))))


def read(app: WorldApp, config: RunnableConfig, path: str) -> bytes:
    """The contents of a file at a checkpoint. Raises `PathNotFound`, and the errors of `snapshot_of`."""
    snapshots = app.session.portal.wait(app.session.services()).snapshots
    found = snapshot_of(app, config)
    if found is None:
        raise UnsupportedGraph("the thread has no world before its first node")
    return snapshots.read(snapshots.get(found), path)
