"""The user's own code: find a workflow or a graph, convert its arguments and its result."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import click

from ramify.compiler.declarations import WorkflowInfo
from ramify.inspect.values import parse_value

if TYPE_CHECKING:
    from ramify.decorators import Workflow


def load(target: str) -> Any:
    """The object that FILE.py:NAME or MODULE:NAME names. Raises `TargetNotFound`, `TargetBroken`."""
    from ramify.runtime.user_code.workflow_loader import load_target

    return load_target(target)


def workflow_info(found: object) -> WorkflowInfo | None:
    info = getattr(found, "__ramify_workflow__", None)
    return info if isinstance(info, WorkflowInfo) else None


def load_graph(target: str, found: object) -> object:
    """The graph that a target is, or that its function returns: a function annotated to return a StateGraph."""
    if not inspect.isfunction(found) or "StateGraph" not in str(found.__annotations__.get("return")):
        return found
    try:
        return found()
    except Exception as error:
        from ramify.runtime.errors import TargetBroken

        raise TargetBroken(f"{target} could not make its graph: {error}") from error


def load_workflow(target: str) -> Workflow[..., Any]:
    """As `load`; also raises `TargetNotFound` if the object is not a workflow."""
    from ramify.runtime.errors import TargetNotFound

    found = load(target)
    if workflow_info(found) is None:
        hint = "put @workflow on it"
        kinds = type(found).__mro__
        if any(kind.__name__ == "WorldGraph" and kind.__module__.startswith("ramify.") for kind in kinds):
            hint = "call its invoke in Python; `ramify resume` continues its threads"
        elif type(found).__module__.startswith("langgraph."):
            hint = "a LangGraph graph is run by `ramify.compile(graph).invoke(…)` in Python"
        raise TargetNotFound(f"{target} is a {type(found).__name__}, not a workflow: {hint}")
    workflow: Workflow[..., Any] = found
    return workflow


def arguments(
    workflow: Workflow[..., Any], given: Sequence[str], keywords: Mapping[str, str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a workflow from words of the command line: as `parse_value`, but text if the parameter is a
    `str`.

    Raises `click.UsageError` for text that is not JSON if the parameter does not accept text: otherwise a list with a
    comma too many would become a list of characters.
    """
    function: Callable[..., Any] = workflow.__wrapped__
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # names that exist only for type checkers
        hints = {}
    places = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    names = [*places, *[""] * len(given)][: len(given)]
    args = tuple(_wanted(name, text, hints.get(name, Any)) for name, text in zip(names, given, strict=True))
    return args, {name: _wanted(name, text, hints.get(name, Any)) for name, text in keywords.items()}


_NO_TEXT = (bool, int, float, list, dict, tuple, set, frozenset, type(None))


def _wanted(name: str, text: str, hint: Any) -> Any:
    value = parse_value(text)
    if hint is str and not isinstance(value, str):
        return text  # a str parameter takes 42 and true as text
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value == text and all((get_origin(one) or one) in _NO_TEXT for one in members):
        wanted = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        raise click.UsageError(f"{name}: {text!r} is not JSON, and must be {wanted}")
    return value


def plain(value: object) -> Any:
    """A workflow's result as JSON values, for printing: Python's types are lost."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json"))
    return str(value)
