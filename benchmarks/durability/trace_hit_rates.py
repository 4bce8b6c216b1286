"""Hit rates of reuse on recorded traces. A tool call consists of a question, a state and an operation.

Ours uses the runtime's own lineage key. In trajectories of tool calls, the state is modelled by the writing tools.
The peer is full-history prefix matching, TVCACHE's rule, implemented here for comparison: a hit requires that the
whole history of calls before it, including reads, was seen before. Every hit of either rule is compared with the
result that the trace recorded for that call; a difference is a wrong hit.

Traces: tau-bench trajectories (sierra-research/tau-bench, MIT) and tree-of-thought logs of the game of 24
(princeton-nlp/tree-of-thought-llm, MIT), as `.json` or `.json.gz`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs.traces import MISSHAPEN, files_of, load
from benchmarks.rows import Row, not_measured
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.reuse.reuse import ReuseQuery
from ramify.runtime.worlds.recovery import stand_in

ENVIRONMENT = "RAMIFY_TRACES"
READS = re.compile(r"(get|list|search|find|look|lookup|read|show|check|view|calculate|think|transfer_to)(_|$)")
"""Names of tools that only read the database. Any other tool counts as writing, which can cost hits, but never cause
a wrong one."""
LINE = re.compile(r"(\S+) ([-+*/]) (\S+) = (\S+) \(left: (.*)\)")


@dataclass(frozen=True)
class Call:
    """A tool call of a trace. `state`: what the writes before it left; `history`: all calls before it."""

    state: object
    history: object
    operation: object
    result: object


@dataclass(frozen=True)
class Rate:
    calls: int
    hits: int
    wrong: int


def rate(calls: list[Call], key: Callable[[Call], str]) -> Rate:
    """Return what a cache under `key` answers for these calls, in their order."""
    known: dict[str, object] = {}
    hits = wrong = 0
    for call in calls:
        name = key(call)
        if name in known:
            hits += 1
            wrong += known[name] != call.result
        else:
            known[name] = call.result
    return Rate(len(calls), hits, wrong)


def by_state(call: Call) -> str:
    """Return the runtime's own key for a state with this content."""
    state = stand_in(SnapshotId("0" * 64), codec.digest(call.state))
    return ReuseQuery(codec.digest(["command", call.operation]), state).lineage_key


def by_history(call: Call) -> str:
    return codec.digest([call.history, call.operation])


def tool_trajectories(trace: Any) -> Iterator[Call]:
    """tau-bench: every task begins with the same database, which only some tools write to."""
    for trajectory in trace:
        writes: list[object] = []
        history: list[object] = []
        asked: dict[str, tuple[str, Any]] = {}
        for message in trajectory.get("traj") or ():
            if message.get("tool_calls"):  # ids are not unique in a trajectory: those of the latest message count
                functions = [(call["id"], call["function"]) for call in message["tool_calls"] if call.get("id")]
                asked = {id: (function["name"], function.get("arguments")) for id, function in functions}
            if message.get("role") != "tool":
                continue
            known = asked.pop(message.get("tool_call_id") or "", None)
            if known is None:  # a result without a call: what it did is unknown
                strange = ["?", trajectory.get("task_id"), trajectory.get("trial"), len(history)]
                writes.append(strange)
                history.append(strange)
                continue
            name, operation, result = known[0], [known[0], _arguments(known[1])], message.get("content")
            yield Call(list(writes), list(history), operation, result)
            history.append(operation)
            if not READS.match(name) and not str(result).startswith("Error"):
                writes.append(operation)


def _arguments(given: Any) -> object:
    """Return the arguments by value if they are JSON, so that key order and blanks do not matter."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return given


def tree_search(trace: Any) -> Iterator[Call]:
    """Game of 24: the state is the remaining numbers, the tool applies one operation to two of them.

    The recorded result is what the proposal says. A proposal that the tool would refuse, or with wrong arithmetic, is
    not a recorded call, and neither is what follows from it.
    """
    for game in trace:
        for stage in game.get("steps") or ():
            for leaf in filter(None, stage.get("new_ys") or ()):  # a step that failed has none
                *before, last = leaf.strip().split("\n")
                left = _numbers(stage["x"])
                for line in before:
                    left = None if left is None else _recorded(line, left)
                found = LINE.fullmatch(last)
                after = None if left is None else _recorded(last, left)
                if found is not None and after is not None:
                    recorded = [_numbers(found[4]), _numbers(found[5])]  # numerically: 20 4 and 4 20 are the same
                    yield Call(left, [stage["x"], before], [found[1], found[2], found[3]], recorded)


def _numbers(text: str) -> list[str] | None:
    """Return the numbers sorted by size, each in one spelling."""
    try:
        return [str(number) for number in sorted(map(Fraction, text.split()))]
    except (ValueError, ZeroDivisionError):
        return None


def _recorded(line: str, numbers: list[str]) -> list[str] | None:
    """Return what a proposal leaves of these numbers; None if it is malformed or not the result of the operation."""
    found = LINE.fullmatch(line.strip())
    if found is None:
        return None
    left = [Fraction(number) for number in numbers]
    try:
        a, b = Fraction(found[1]), Fraction(found[3])
        for operand in (a, b):
            left.remove(operand)
        value = a / b if found[2] == "/" else {"+": a + b, "-": a - b, "*": a * b}[found[2]]
        right = Fraction(found[4]) == value
    except (ValueError, ZeroDivisionError):
        return None
    after = [str(number) for number in sorted([*left, value])]
    return after if right and after == _numbers(found[5]) else None


READERS: dict[str, Callable[[Any], Iterator[Call]]] = {
    "tool_trajectories": tool_trajectories,
    "tree_search": tree_search,
}
SHAPES = {"traj": "tool_trajectories", "steps": "tree_search"}
"""What entries of a trace of that kind have."""


def files(paths: Iterable[Path]) -> list[Path]:
    """Return the files; of a folder, the files in it or in its subfolders of these names."""
    found: list[Path] = []
    for path in paths:
        folders = [path, *(path / kind for kind in READERS)] if path.is_dir() else []
        found += [one for folder in folders for one in files_of(folder, ".json")] or [path]
    return found


def rows(paths: Iterable[Path]) -> list[Row]:
    made: dict[str, list[Row]] = {kind: [] for kind in READERS}
    for path in files(paths):
        trace = load(path)
        kind = _kind(trace)
        if kind is None:
            raise BadTrace(path, f"is no trace of a kind that is known here: {', '.join(READERS)}")
        try:
            made[kind].append(_rate_row(f"hit rate, {kind}, {path.name}", list(READERS[kind](filter(None, trace)))))
        except MISSHAPEN as error:
            raise BadTrace(path, f"is not as traces of the kind {kind} are: {error!r}") from error
    return [row for kind in READERS for row in made[kind] or [_absent(kind)]]


def _kind(trace: Any) -> str | None:
    """Return the kind of the first entry that tells it: one that failed may be empty."""
    entries = [one for one in trace if isinstance(one, dict)] if isinstance(trace, list) else []
    return next((kind for one in entries for name, kind in SHAPES.items() if name in one), None)


def _rate_row(name: str, calls: list[Call]) -> Row:
    if not calls:
        return not_measured(name, "share of calls", "the trace has no tool call with a result")
    ours, theirs = rate(calls, by_state), rate(calls, by_history)
    mine, peer = ours.hits / max(1, ours.calls), theirs.hits / max(1, theirs.calls)
    return {
        "name": name,
        "ours": round(mine, 4),
        "unit": "share of calls",
        "peer": "full-history prefix (TVCACHE's rule)",
        "peer_value": round(peer, 4),
        "ratio": round(mine / peer, 2) if peer else None,
        "target": "above",
        "met": mine > peer and ours.wrong == 0,
        "wrong": ours.wrong,
        "peer_wrong": theirs.wrong,
        "calls": ours.calls,
    }


def _absent(kind: str) -> Row:
    row: Row = dict.fromkeys(("ours", "peer_value", "ratio", "target", "met"))
    return row | {"name": f"hit rate, {kind}", "unit": "share", "peer": f"no trace given: --trace, ${ENVIRONMENT}"}
