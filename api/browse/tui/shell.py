"""The tab Shell: commands with their output, where the journal has them.

A command with `reuse=True` is a row of its own. Of the others the journal keeps what their step returned: every
`RunResult` in there is shown as the command that it came from. What a step threw away is nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramify.browse.tui.styled_lines import Line, Look, heading, line, paragraphs, scope_of
from ramify.compiler.plan import OpKind
from ramify.inspect.text import seconds
from ramify.runtime.codec import codec
from ramify.runtime.records import OpRecord
from ramify.sandboxes.contract import RunResult

if TYPE_CHECKING:
    from ramify.browse.tui.subject import Subject
    from ramify.inspect.history import Moment

_STEPS = {OpKind.RUN, OpKind.CALL_TOOL, OpKind.BREAK, OpKind.COMMAND}


def lines(of: Subject) -> Iterator[Line]:
    yield scope_of(of.whole_run, "Commands and output")
    told = [moment for moment in of.moments if moment.kind in _STEPS]
    if not told:
        yield line("No steps.")
    for moment in told:
        yield from _step(moment)


def _step(moment: Moment) -> Iterator[Line]:
    results = list(_results(json.loads(moment.op.result_json or "null"))) if moment.op is not None else []
    if moment.kind is OpKind.COMMAND:
        yield Line()
    else:
        yield from heading(f"{moment.name}  {seconds(moment.ended_at - moment.started_at)}")
    for result in results:
        yield from command_lines(result)
    if moment.op is not None and moment.op.error:
        yield from paragraphs(moment.op.error.rstrip("\n"), Look.BAD)
    elif not results and moment.summary:
        yield from paragraphs(moment.summary)


def command_lines(result: RunResult) -> Iterator[Line]:
    first, *rest = result.command.rstrip("\n").split("\n")
    yield Line((("$ ", Look.INFO), (line(first).text, Look.BOLD)))
    for one in rest:
        yield line(f"  {one}", Look.BOLD)
    for text, look in ((result.stdout, Look.PLAIN), (result.stderr, Look.BAD)):
        if text:
            yield from paragraphs(text.removesuffix("\n"), look)
    if result.timed_out or result.truncated or result.exit_code:
        told = [f"exit {result.exit_code}"]
        told += ["timed out"] if result.timed_out else []
        told += ["output cut"] if result.truncated else []
        yield line(", ".join(told), Look.NOTE)


def command_result(row: OpRecord) -> RunResult | None:
    """What a step returned, where that is a command's outcome and nothing else."""
    value = json.loads(row.result_json or "null")
    return _result(value) if isinstance(value, dict) and _is_result(value) else None


def _is_result(value: dict[str, object]) -> bool:
    return value.get("$") == "dataclass" and value.get("t") == f"{RunResult.__module__}:{RunResult.__qualname__}"


def _result(value: dict[str, object]) -> RunResult:
    return codec.decode_own(json.dumps(value), RunResult)


def _results(value: object) -> Iterator[RunResult]:
    """Every command's outcome inside a value of the journal. Types of the user's own are not loaded."""
    if isinstance(value, list):
        for one in value:
            yield from _results(one)
    elif isinstance(value, dict):
        if _is_result(value):
            yield _result(value)
        else:
            for one in value.values():
                yield from _results(one)
