"""What LangGraph would find while it runs, or never: found in the builder, with the line to mend.

A channel that two nodes of one superstep must write and that no reducer joins; a reducer that cannot join what its
channel holds; a channel that no checkpoint can keep; a node that holds a world, or calls a step or a workflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import getsourcefile, getsourcelines
from itertools import combinations
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.python.modules import dependencies
from ramify.compiler.frontend.python.sources import Sources
from ramify.compiler.frontend.python.step_checks import refuse_step_calls, type_hints_of, unkept
from ramify.compiler.frontend.python.world_access import refuse_held_worlds
from ramify.compiler.plan import site_file

if TYPE_CHECKING:
    from ramify.compiler.frontend.langgraph.nodes import NodeCode

_UNTRACKED = ("UntrackedValue", "EphemeralValue")


def check_schemas(name: str, builder: Any, *, kept: bool) -> None:
    """`kept`: checkpoints are written. Raises WorkflowError."""
    for schema, channels in builder.schemas.items():
        hints = type_hints_of(schema)
        for field, channel in channels.items():
            where = _where(schema, field) or f"{name}, channel {field}"
            _reducer(field, channel, where)
            found = unkept(hints[field]) if field in hints else None
            if found is not None and (kept or found in ("Sandbox", "SyncSandbox")):
                if type(channel).__name__ in _UNTRACKED:
                    continue
                raise WorkflowError(
                    f"channel {field} holds a {found}, which no checkpoint can keep",
                    where=where,
                    mend="keep what it is made from (a path, a name), and make it in the node that uses it",
                )


def _reducer(field: str, channel: Any, where: str) -> None:
    """Builtins are tried on the channel's empty value; the user's own reducers are not run here. One is refused that
    joins that to nothing: an update need not be of the channel's own type (`[] * 2`)."""
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
        said = f"reducer {reducer.__name__} of channel {field} raises on two of {kind.__name__}: {error}"
        raise WorkflowError(said, where=where, mend=f"give it one that joins two of {kind.__name__}") from None


def _joins(reducer: Any, kind: Any, update: Any) -> bool:
    try:
        reducer(kind(), update)
    except (TypeError, ZeroDivisionError):
        return False
    except Exception:  # noqa: BLE001  # it takes the type, and another value might do
        return True
    return True


def check_nodes(
    builder: Any, codes: Mapping[str, NodeCode], sources: Sources, begins_without: Callable[[str], bool]
) -> None:
    """`begins_without`: whether runs begin with nothing at a path. Raises WorkflowError."""
    seen = set[int]()
    for name, code in codes.items():
        if code.function is not None and id(code.code) not in seen:
            seen.add(id(code.code))
            nodes = dependencies(code.function, sources)
            refuse_held_worlds(f"node {name}", code.function, nodes)
            refuse_step_calls(name, code.function)
    for source, together in parallel_successors(builder).items():
        for one, other in combinations(together, 2):
            _conflict(builder, source, codes[one], codes[other])
            if source == "__start__":  # later, one side may find there what it writes
                _meet(codes[one], codes[other], begins_without)


def parallel_successors(builder: Any) -> dict[str, list[str]]:
    """By node, those that always follow it in one superstep: its plain edges."""
    table: dict[str, list[str]] = {}
    for start, end in sorted(builder.edges):
        if end in builder.nodes and not builder.nodes[end].defer:
            table.setdefault(start, []).append(end)
    return {start: ends for start, ends in table.items() if len(ends) > 1}


def _conflict(builder: Any, source: str, one: NodeCode, other: NodeCode) -> None:
    for channel in sorted(one.access.always & other.access.always & set(builder.channels)):
        if type(builder.channels[channel]).__name__ == "LastValue":
            after = "START" if source == "__start__" else source
            raise WorkflowError(
                f"channel {channel} has no reducer, and two nodes of one superstep always write it: "
                f"{after} -> {one.name} ({_at(one)}) and {after} -> {other.name} ({_at(other)})",
                where=_at(other),
                mend=f"give {channel} a reducer, as in `Annotated[list, operator.add]`, or an edge between the nodes",
            )


def _meet(one: NodeCode, other: NodeCode, begins_without: Callable[[str], bool]) -> None:
    """Two that make one new file must conflict. Of one that is there, either may leave it as it is."""
    for path in sorted(_always(one).keys() & _always(other).keys()):
        if _always(one)[path] != _always(other)[path] and begins_without(path):
            raise WorkflowError(
                f"two nodes of one superstep always write {path}, each something else: "
                f"START -> {one.name} ({_at(one)}) and START -> {other.name} ({_at(other)})",
                where=_at(other),
                mend="write different files, or put an edge between the nodes",
            )


def _always(code: NodeCode) -> dict[str, str]:
    return {} if code.files is None else dict(code.files.always)


def _at(code: NodeCode) -> str:
    return code.name if code.function is None else code.function.where()


def _where(schema: Any, field: str) -> str | None:
    """The line of a field in the class that declares it."""
    for kind in getattr(schema, "__mro__", (schema,)):
        for number, line in _lines(kind):
            if line.strip().startswith((f"{field}:", f"{field} :")):
                return f"{site_file(getsourcefile(kind) or '')}:{number}"
    return None


def _lines(kind: Any) -> Iterator[tuple[int, str]]:
    try:
        lines, first = getsourcelines(kind)
    except (OSError, TypeError):  # a builtin, or made in a shell
        return iter(())
    return enumerate(lines, first)
