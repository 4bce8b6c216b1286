"""Refuses graphs that LangGraph would fail on at run time, or that would lose data without an error.

- two nodes of one superstep always write a channel that has no reducer
- a reducer cannot join values of its channel's type
- a channel holds a type that no checkpoint can store
- a node keeps a world, or calls a step or a workflow
- two first nodes always create the same file with different contents

Every error names the line to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import getsourcefile, getsourcelines
from itertools import combinations
from types import BuiltinFunctionType
from typing import Annotated, Any, get_args, get_origin

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.langgraph.nodes import NodeCode
from ramify.compiler.frontend.python.modules import dependencies
from ramify.compiler.frontend.python.sources import Sources
from ramify.compiler.frontend.python.step_checks import refuse_step_calls, type_hints_of, unstorable_type
from ramify.compiler.frontend.python.world_access import refuse_held_worlds
from ramify.compiler.parsing import parsed
from ramify.compiler.plan import site_file

_UNTRACKED = ("UntrackedValue", "EphemeralValue")


def check_schemas(name: str, builder: Any, *, stored: bool) -> None:
    """Check the channels and reducers of a graph.

    Args:
        name: The graph's name, for messages.
        builder: The `StateGraph`.
        stored: Checkpoints are written.

    Raises:
        WorkflowError: A channel cannot be stored, or its reducer cannot work.
    """
    for schema, channels in builder.schemas.items():
        hints = type_hints_of(schema)
        for field, channel in channels.items():

            def where(schema: Any = schema, field: str = field) -> str:
                return _where(schema, field) or f"{name}, channel {field}"

            _check_reducer(field, channel, where)
            found = unstorable_type(hints[field]) if field in hints else None
            if found is not None and (stored or found in ("Sandbox", "SyncSandbox")):
                if type(channel).__name__ in _UNTRACKED:
                    continue
                raise WorkflowError(
                    f"channel {field} holds a {found}, which no checkpoint can store",
                    where=where(),
                    mend="store what it is made from (a path, a name), and make it in the node that uses it",
                )


def _check_reducer(field: str, channel: Any, where: Callable[[], str]) -> None:
    """Try a builtin reducer on the empty value of its channel's type. Reducers of the user are not run.

    A reducer is refused only if it can join that value to nothing, since an update may be of another type (`[] * 2`).
    """
    reducer, typ = getattr(channel, "operator", None), getattr(channel, "typ", None)
    bare = get_args(typ)[0] if get_origin(typ) is Annotated else typ
    kind = get_origin(bare) or bare
    if not isinstance(reducer, BuiltinFunctionType) or kind not in (int, float, str, list, dict, set, tuple, bool):
        return
    try:
        reducer(kind(), kind())
    except (TypeError, ZeroDivisionError) as error:
        if any(
            _joins(reducer, kind, update) for update in (1, 1.0, True, None, "x", b"x", [1], (), (1,), {1: 1}, {1})
        ):
            return
        what = f"reducer {reducer.__name__} of channel {field} raises on two of {kind.__name__}: {error}"
        raise WorkflowError(what, where=where(), mend=f"give it one that joins two of {kind.__name__}") from None


def _joins(reducer: Any, kind: Any, update: Any) -> bool:
    try:
        reducer(kind(), update)
    except (TypeError, ZeroDivisionError):
        return False
    except Exception:  # noqa: BLE001  # it accepts the type, and may accept another value
        return True
    return True


def check_nodes(
    builder: Any, codes: Mapping[str, NodeCode], sources: Sources, begins_without: Callable[[str], bool]
) -> None:
    """Check the code of a graph's nodes.

    Args:
        builder: The `StateGraph`.
        codes: The code of each node.
        sources: The sources of the compilation.
        begins_without: Whether runs begin without a file at a path.

    Raises:
        WorkflowError: A node cannot work, or two nodes of one superstep must conflict.
    """
    checked = set[int]()
    for name, code in codes.items():
        if code.function is not None and id(code.code) not in checked:
            checked.add(id(code.code))
            nodes = dependencies(code.function, sources)
            refuse_held_worlds(f"node {name}", code.function, nodes)
            refuse_step_calls(name, code.function)
    for source, successors in parallel_successors(builder).items():
        for one, other in combinations(successors, 2):
            _refuse_channel_conflict(builder, source, codes[one], codes[other])
            if source == "__start__":  # later, the file may exist already
                _refuse_file_conflict(codes[one], codes[other], begins_without)


def parallel_successors(builder: Any) -> dict[str, list[str]]:
    """Return, by node, the nodes that always follow it in one superstep: those of its plain edges."""
    table: dict[str, list[str]] = {}
    for start, end in sorted(builder.edges):
        if end in builder.nodes and not builder.nodes[end].defer:
            table.setdefault(start, []).append(end)
    return {start: ends for start, ends in table.items() if len(ends) > 1}


def _refuse_channel_conflict(builder: Any, source: str, one: NodeCode, other: NodeCode) -> None:
    for channel in sorted(one.access.always & other.access.always & set(builder.channels)):
        if type(builder.channels[channel]).__name__ == "LastValue":
            after = "START" if source == "__start__" else source
            raise WorkflowError(
                f"channel {channel} has no reducer, and two nodes of one superstep always write it: "
                f"{after} -> {one.name} ({_at(one)}) and {after} -> {other.name} ({_at(other)})",
                where=_at(other),
                mend=f"give {channel} a reducer, as in `Annotated[list, operator.add]`, or an edge between the nodes",
            )


def _refuse_file_conflict(one: NodeCode, other: NodeCode, begins_without: Callable[[str], bool]) -> None:
    """Refuse two nodes that create the same file. If the file exists already, either may leave it unchanged."""
    for path in sorted(_always(one).keys() & _always(other).keys()):
        if _always(one)[path] != _always(other)[path] and begins_without(path):
            raise WorkflowError(
                f"two nodes of one superstep always write {path}, with different contents: "
                f"START -> {one.name} ({_at(one)}) and START -> {other.name} ({_at(other)})",
                where=_at(other),
                mend="write different files, or put an edge between the nodes",
            )


def _always(code: NodeCode) -> dict[str, str]:
    return {} if code.files is None else dict(code.files.always)


def _at(code: NodeCode) -> str:
    return code.name if code.function is None else code.function.where()


def _where(schema: Any, field: str) -> str | None:
    """Return `file:line` of a field in the class that declares it."""
    for kind in getattr(schema, "__mro__", (schema,)):
        for number, line in _lines(kind):
            if line.strip().startswith((f"{field}:", f"{field} :")):
                return f"{site_file(getsourcefile(kind) or '')}:{number}"
    return None


def _lines(kind: Any) -> Iterator[tuple[int, str]]:
    try:
        lines, first = parsed(lambda: getsourcelines(kind))
    except (OSError, TypeError):  # a builtin, or made in a shell
        return iter(())
    return enumerate(lines, first)
