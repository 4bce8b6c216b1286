"""A node that runs outside of its graph: `app.nodes[name].invoke(state)`, as LangGraph's manual tests nodes.

It runs on a world of its own, which begins as the workspace, and in a run of its own. The runnable that the user gave
gets the call unchanged, so a node that is a graph, a model or a sequence streams what it streams in a plain graph.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.pregel import Pregel

from ramify.runtime.langgraph.compat import ensure_config
from ramify.runtime.langgraph.node.nested_graphs import intercepted_graphs
from ramify.runtime.langgraph.node.node_execution import ExecutableNode, NodeExecution
from ramify.runtime.langgraph.node.task_config import alone
from ramify.runtime.langgraph.thread.session import Session


class Node(ExecutableNode, Protocol):
    """What is needed of the node."""

    bound: Runnable[Any, Any]
    session: Session


@dataclass(slots=True)
class _Running:
    """The node while it runs."""

    execution: NodeExecution
    config: RunnableConfig
    value: Any = None  # what it returned, or streamed last

    def options(self, given: dict[str, Any]) -> dict[str, Any]:
        return given if self.execution.extra is None else {**given, **self.execution.extra}


def invoke(node: Node, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Any:
    with _run(node, input, config) as running:
        with running.execution:
            running.value = node.bound.invoke(input, running.config, **running.options(options))
        return running.value


async def ainvoke(node: Node, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Any:
    async with _arun(node, input, config) as running:
        with running.execution:
            running.value = await node.bound.ainvoke(input, running.config, **running.options(options))
        return running.value


def stream(node: Node, input: Any, config: RunnableConfig | None, options: dict[str, Any]) -> Iterator[Any]:
    # the node's scope is entered for each chunk, so that the caller of the stream is never in it
    with _run(node, input, config) as running, ExitStack() as stack:
        with running.execution:
            chunks = iter(node.bound.stream(input, running.config, **running.options(options)))
        if hasattr(chunks, "close"):
            stack.callback(chunks.close)
        while True:
            with running.execution:
                try:
                    running.value = next(chunks)
                except StopIteration:
                    return
            yield running.value


async def astream(
    node: Node, input: Any, config: RunnableConfig | None, options: dict[str, Any]
) -> AsyncGenerator[Any]:
    async with _arun(node, input, config) as running, AsyncExitStack() as stack:
        with running.execution:
            chunks = aiter(node.bound.astream(input, running.config, **running.options(options)))
        if hasattr(chunks, "aclose"):
            stack.push_async_callback(chunks.aclose)
        while True:
            with running.execution:
                try:
                    running.value = await anext(chunks)
                except StopAsyncIteration:
                    return
            yield running.value


def with_events(node: Node) -> Runnable[Any, Any]:
    """Return what the user gave. If it is a graph, it streams as `stream` does: LangGraph makes the events of version
    3 from that."""
    if not isinstance(node.bound, Pregel):
        return node.bound
    graph: Any = copy(node.bound)
    graph.stream = lambda input, config=None, **options: stream(node, input, config, options)
    graph.astream = lambda input, config=None, **options: astream(node, input, config, options)
    return graph  # type: ignore[no-any-return]


@contextmanager
def _run(node: Node, input: Any, config: RunnableConfig | None) -> Iterator[_Running]:
    wait, reading, failure = node.session.portal.wait, alone(node.name), None
    try:
        with intercepted_graphs():
            execution = NodeExecution(node.session, node, reading, input)
            wait(execution.begin())
            running = _Running(execution, execution.config(ensure_config() if config is None else config))
            try:
                yield running
            except BaseException as error:
                wait(execution.raised(error))
                raise
            wait(execution.done(running.value))
    except BaseException as error:
        failure = error
        _refuse_what_only_a_run_has(node.name, error)
        raise
    finally:
        wait(node.session.end(reading.invocation, failure))


@asynccontextmanager
async def _arun(node: Node, input: Any, config: RunnableConfig | None) -> AsyncIterator[_Running]:
    cross, reading, failure = node.session.portal.cross, alone(node.name), None
    try:
        with intercepted_graphs():
            execution = NodeExecution(node.session, node, reading, input)
            await cross(execution.begin())
            running = _Running(execution, execution.config(ensure_config() if config is None else config))
            try:
                yield running
            except BaseException as error:
                await cross(execution.raised(error))
                raise
            await cross(execution.done(running.value))
    except BaseException as error:
        failure = error
        _refuse_what_only_a_run_has(node.name, error)
        raise
    finally:
        await cross(node.session.end(reading.invocation, failure))


def _refuse_what_only_a_run_has(node: str, error: BaseException) -> None:
    """Raise `RuntimeError`, as LangGraph does, where the node asked its config for what only a run has."""
    if isinstance(error, KeyError) and str(error.args[:1]).startswith("('__pregel_"):
        raise RuntimeError(
            f"node {node!r} runs outside of its graph, where `interrupt`, `get_store` and `get_stream_writer` have "
            "no run: invoke the app"
        ) from error
