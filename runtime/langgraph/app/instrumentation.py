"""Replace the nodes of a compiled graph by nodes that act on worlds, and give LangChain tools their sandbox.

A tool takes a sandbox through a parameter annotated `Sandbox`, which the model must not see. A `ToolNode` (also that
of `create_agent`) holds the tool objects that are shown to the model. So these objects are changed once, when their
graph is compiled: the parameter leaves the schema, and the value is passed when the tool runs.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.constants import START
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.types import CachePolicy

from ramify.compiler.plan import Effect
from ramify.runtime.langgraph.compat import (
    ChannelWrite,
    PregelNode,
    RunnableCallable,
    RunnableSeq,
    coerce_to_runnable,
)
from ramify.runtime.langgraph.errors import LangGraphChanged, UnsupportedGraph
from ramify.runtime.langgraph.node.world_node import StartWrite, WorldNode, WorldWrite
from ramify.runtime.langgraph.thread.session import Session
from ramify.runtime.user_code.sandbox import sandbox_parameter
from ramify.runtime.user_code.scope import current_scope


def give_tools_worlds(node: object) -> None:
    """Pass the sandbox of the running node to the tools of a `ToolNode`. Safe to call twice."""
    if isinstance(node, ToolNode):
        for tool in node.tools_by_name.values():
            _give(tool)


def _give(tool: BaseTool) -> None:
    if not isinstance(tool, StructuredTool):
        return
    functions = [function for function in (tool.func, tool.coroutine) if function is not None]
    parameters = {name for function in functions if (name := sandbox_parameter(function)) is not None}
    if not parameters:
        return
    tool.func = tool.func and _given(tool.func)
    tool.coroutine = tool.coroutine and _given(tool.coroutine)
    # set for a pydantic v2 class only; a v1 class or plain JSON schema stays as the user wrote it
    fields = getattr(tool.args_schema, "model_fields", {})
    if parameters & fields.keys():
        made = StructuredTool.from_function(
            tool.func, tool.coroutine, name=tool.name, description=tool.description, infer_schema=True
        )
        tool.args_schema = made.args_schema


def _given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without its sandbox parameter."""
    parameter = sandbox_parameter(function)
    if parameter is None:
        return function

    def world() -> dict[str, Any]:
        return {parameter: current_scope(f"tool {function.__name__!r} was called").sandbox}

    async def arun(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs, **world())

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, **world())

    given: Any = functools.update_wrapper(arun if inspect.iscoroutinefunction(function) else run, function)
    given.__ramify_tool__ = function  # the compiler reads it when the tool is compiled again
    del given.__wrapped__  # otherwise `inspect.signature` would show the parameter again
    signature = inspect.signature(function)
    given.__signature__ = signature.replace(
        parameters=[one for name, one in signature.parameters.items() if name != parameter]
    )
    hints = typing.get_type_hints(function, include_extras=True)
    given.__annotations__ = {name: hint for name, hint in hints.items() if name != parameter}
    made: Callable[..., Any] = given
    return made


def instrumented_nodes(graph: Pregel[Any, Any, Any, Any], session: Session) -> dict[str, PregelNode]:
    starts = START not in graph.nodes  # the graph is an entrypoint: its only node takes the input
    policy = graph.cache_policy
    handlers = {node.error_handler_node for node in graph.nodes.values()}
    return {
        name: _instrumented(name, node, session, starts, policy, handles=name in handlers)
        for name, node in graph.nodes.items()
    }


def _instrumented(
    name: str, node: PregelNode, session: Session, starts: bool, policy: CachePolicy[Any] | None, *, handles: bool
) -> PregelNode:
    if name == START:
        return _start(node, session)
    give_tools_worlds(node.bound)
    bound = WorldNode(
        name,
        _plain(name, node.bound),
        session,
        instrumented_nodes,
        starts=starts,
        handles=handles,
        cache_policy=node.cache_policy or policy,
        graph_policy=policy,
        declared=_declared(node.bound),
    )
    first, rest = _first_write(node)
    made = node.copy({"bound": bound, "writers": [WorldWrite(first), *rest], "cache_policy": None})
    if (places := bound.code.places) and isinstance(made.node, RunnableSeq):
        made.node.steps[1:1] = places
    return made


def _start(node: PregelNode, session: Session) -> PregelNode:
    first, rest = _first_write(node)
    return node.copy({"writers": [StartWrite(first, session), *rest]})


def _first_write(node: PregelNode) -> tuple[ChannelWrite, list[Runnable[Any, Any]]]:
    first, *rest = node.flat_writers or [ChannelWrite([])]  # a node built by hand may write nothing
    if not isinstance(first, ChannelWrite):
        raise LangGraphChanged("first write of a node")
    return first, rest


def _declared(bound: Runnable[Any, Any]) -> Effect | None:
    """Return the effect that a node under `@step` declares."""
    definition = getattr(getattr(bound, "func", None), "definition", None)
    effect = getattr(definition, "effect", None)
    return effect if isinstance(effect, Effect) else None


def _plain(name: str, bound: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """Unwrap a function under `@step`: it is a node like any other, and its declared effect is in the plan."""
    step = getattr(bound, "func", None) if isinstance(bound, RunnableCallable) else None
    definition = getattr(step, "definition", None)
    if definition is None or not hasattr(step, "__ramify_step__"):
        return bound
    if definition.retry or definition.timeout is not None or definition.reuse:
        raise UnsupportedGraph(
            f"node {name!r} is a step that declares retry, timeout or reuse, which only workflows support: give "
            f"add_node "
            "a retry_policy or a timeout"
        )
    if definition.effect in (Effect.IRREVERSIBLE, Effect.READONLY):
        raise UnsupportedGraph(
            f"node {name!r} is a step that is declared {definition.effect.value}, which only workflows support: "
            f"remove "
            "the declaration, and let the node handle its own effects"
        )
    return coerce_to_runnable(step.__wrapped__, name=name, trace=False)  # type: ignore[union-attr]
