"""LangChain tools that take a world: a parameter annotated `Sandbox`, which no model sees.

A `ToolNode` (that of `create_agent`, too) holds the tool objects that are shown to the model, so it is these that are
changed, once, when their graph is compiled: the parameter leaves the schema, and is given when the tool runs.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.prebuilt import ToolNode

from ramify.runtime.user_code.sandbox import sandbox_parameter
from ramify.runtime.user_code.scope import current_scope


def give_tools_worlds(node: object) -> None:
    """Let the tools of a `ToolNode` have the world of the node that runs them. Safe to call twice."""
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
    fields = getattr(
        tool.args_schema, "model_fields", {}
    )  # a class's; of pydantic v1 and plain JSON it is the user's
    if parameters & fields.keys():
        made = StructuredTool.from_function(
            tool.func, tool.coroutine, name=tool.name, description=tool.description, infer_schema=True
        )
        tool.args_schema = made.args_schema


def _given(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its world's parameter."""
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
    given.__ramify_tool__ = function  # for the compiler, which reads it again when the tool is compiled again
    del given.__wrapped__  # or whoever reads the signature finds the parameter again
    signature = inspect.signature(function)
    given.__signature__ = signature.replace(
        parameters=[one for name, one in signature.parameters.items() if name != parameter]
    )
    hints = typing.get_type_hints(function, include_extras=True)
    given.__annotations__ = {name: hint for name, hint in hints.items() if name != parameter}
    made: Callable[..., Any] = given
    return made
