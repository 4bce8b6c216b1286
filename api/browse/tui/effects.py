"""The tab Effects: what had been done to the outside by then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramify.browse.tui.styled_lines import Line, Look, fact_lines, json_lines, line, scope_of
from ramify.inspect.text import instant
from ramify.runtime.records import EffectRecord, EffectStatus

if TYPE_CHECKING:
    from ramify.browse.tui.subject import Subject

_LOOKS = {
    EffectStatus.DONE: Look.GOOD,
    EffectStatus.APPROVED: Look.GOOD,
    EffectStatus.INTENDED: Look.NOTE,
    EffectStatus.IN_DOUBT: Look.BAD,
    EffectStatus.FAILED: Look.DIM,
    EffectStatus.AGAIN: Look.NOTE,
    EffectStatus.COMPENSATING: Look.NOTE,
    EffectStatus.COMPENSATED: Look.INFO,
}


def lines(of: Subject) -> Iterator[Line]:
    whole = of.whole_run or of.state is None
    ledger = of.graph.history.effects if whole or of.state is None else of.state.effects
    yield scope_of(whole, "Effects on the outside", "by then")
    if not ledger:
        yield line("None: nothing irreversible was done.")
    here = {moment.op.key for moment in of.node.moments if moment.op is not None}
    last = {one.key: one.attempt for one in ledger}
    for one in ledger:
        yield from _effect(one, of, last[one.key], here=one.key in here)


def _effect(one: EffectRecord, of: Subject, attempts: int, *, here: bool) -> Iterator[Line]:
    yield Line()
    where = "  done here" if here and one.attempt == attempts else ""
    spans = ((f"{one.status.value:<12}", _LOOKS[one.status]), (line(one.step).text, Look.BOLD), (where, Look.INFO))
    yield Line(spans)
    settled = "not yet" if one.settled_at is None else instant(one.settled_at)
    facts = [("key", one.idempotency_key), ("branch", one.branch)]
    facts += [("attempt", f"{one.attempt} of {attempts}")] if attempts > 1 else []
    facts += [("intended", instant(one.intended_at))]
    facts += [("settled", settled), ("known by", one.note)]
    yield from fact_lines((f"  {name}", value) for name, value in facts if value)
    yield line("  arguments", Look.DIM)
    yield from json_lines(one.args_json, of.width, indent="    ")
    if one.result_json is not None:
        yield line("  result", Look.DIM)
        yield from json_lines(one.result_json, of.width, indent="    ")
    if one.status is EffectStatus.IN_DOUBT and one.attempt == attempts:
        yield line(f"  `ramify approve {of.graph.history.run.id}` says whether it happened", Look.NOTE)
