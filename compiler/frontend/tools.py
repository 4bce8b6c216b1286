"""What a node's tools may do, by what they say of themselves: a parameter for a world, and the hints of MCP, which
LangChain's tools carry in their `metadata` (readOnlyHint, destructiveHint, idempotentHint).

Hints are what the tool's maker says. One that lies about reading only changes files that nothing seals, which the run
says loudly; so a hint may save a snapshot, never make one step run over another.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.code import digest_of
from ramify.compiler.frontend.resolve import plain_function
from ramify.compiler.frontend.sources import Sources
from ramify.compiler.plan import Effect
from ramify.compiler.spec import ToolSpec

_WORLDS = ("Sandbox", "SyncSandbox")
_WEAKEST_FIRST = (Effect.PURE, Effect.READONLY, Effect.REVERTIBLE, Effect.UNKNOWN, Effect.IRREVERSIBLE)


def tools_of(node: str, runnable: object, sources: Sources) -> tuple[ToolSpec, ...]:
    """The tools of a `ToolNode`, by name; none for another node."""
    found = getattr(runnable, "tools_by_name", None)
    if not isinstance(found, Mapping):
        return ()
    return tuple(_tool(node, str(name), tool, sources) for name, tool in sorted(found.items()))


def strongest(tools: tuple[ToolSpec, ...]) -> ToolSpec:
    """The tool that may do most: it decides what the node may do."""
    return max(tools, key=lambda tool: _WEAKEST_FIRST.index(tool.effect))


def _tool(node: str, name: str, tool: object, sources: Sources) -> ToolSpec:
    code = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    function = plain_function(getattr(code, "__ramify_tool__", code))
    metadata = getattr(tool, "metadata", None)
    hints = metadata if isinstance(metadata, Mapping) else {}
    takes_world = function is not None and any(
        part.strip().rpartition(".")[2] in _WORLDS
        for parameter, hint in inspect.get_annotations(function).items()
        if parameter != "return"
        for part in (hint if isinstance(hint, str) else inspect.formatannotation(hint)).split("|")
    )
    effect, why = _effect(hints, takes_world)
    try:
        code_digest = "" if function is None else digest_of([sources.function(function)], sources, [node])
    except SourceError:  # made in a shell, or by a client: "" says that the code cannot be told apart
        code_digest = ""
    return ToolSpec(name, effect, why, code_digest)


def _effect(hints: Mapping[object, object], takes_world: bool) -> tuple[Effect, str]:
    """MCP's own defaults hold for a tool that gives some hint: one that does not only read may destroy."""
    if hints.get("readOnlyHint") is True:
        return Effect.READONLY, "readOnlyHint"
    if takes_world:
        return Effect.REVERTIBLE, "takes a Sandbox"
    if hints.get("readOnlyHint") is not False and "destructiveHint" not in hints:
        return Effect.UNKNOWN, "no hint"
    again = ", idempotentHint" if hints.get("idempotentHint") is True else ""
    if hints.get("destructiveHint", True) is not False:
        return Effect.IRREVERSIBLE, f"destructiveHint{again}"
    return Effect.IRREVERSIBLE, f"adds to what is outside{again}"
