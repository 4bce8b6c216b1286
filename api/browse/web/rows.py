"""Records of the runtime as rows of the page."""

from __future__ import annotations

import json

from ramify.browse.web.responses import CallRow, CheckpointRow, EffectRow, ItemRow, LineRow, MomentRow, RunRow
from ramify.inspect.history import Line, Moment
from ramify.inspect.inbox import Item, Kind
from ramify.runtime.codec import codec
from ramify.runtime.records import CheckpointRecord, EffectRecord, LLMRecord, RunRecord
from ramify.runtime.store import Tally
from ramify.serving.types import ChatResult

_SNAPSHOT = 16  # characters of a snapshot's id: what names it to a person
_LONGEST = 160  # characters of a line that a row shows; the whole of it is one click away


def run_row(run: RunRecord, status: str, tally: Tally) -> RunRow:
    return RunRow(
        id=run.id,
        name=run.name,
        workflow=run.workflow,
        workspace=run.workspace,
        sandbox=run.settings.sandbox,
        status=status,
        created_at=run.created_at,
        updated_at=run.updated_at,
        deadline_s=run.deadline_s,
        consumed_s=run.consumed_s,
        arguments=run.args_json,
        result=run.result_json,
        error=run.error,
        steps=tally.steps,
        forks=tally.forks,
        merges=tally.merges,
        reused=tally.reused,
        failed=tally.failed,
        llm_calls=tally.llm_calls,
    )


def item_row(item: Item) -> ItemRow:
    asked = item.id if item.kind is Kind.QUESTION else None
    said = (
        item.question if isinstance(item.question, str) else json.dumps(item.question, ensure_ascii=False, indent=2)
    )
    return ItemRow(asked, item.kind.value, item.run, item.workflow, item.branch, said, item.since, item.commands)


def moment_row(moment: Moment) -> MomentRow:
    call = moment.times
    return MomentRow(
        seq=moment.seq,
        branch=moment.branch,
        kind=moment.kind.value,
        name=moment.name,
        summary=(moment.summary if moment.llm is None else _answer(moment.llm))[:_LONGEST],
        started_at=moment.started_at,
        ended_at=moment.ended_at,
        status=moment.status.value,
        reused_from=moment.reused_from,
        call=None
        if call is None
        else CallRow(
            queued_s=call.queued_s,
            first_token_s=call.first_token_s,
            end_s=call.end_s,
            deadline_s=call.deadline_s,
            met=call.met,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=call.completion_tokens,
            note=call.tags_line,
        ),
    )


def _answer(row: LLMRecord) -> str:
    result = codec.decode_own(row.result_json, ChatResult)
    return " ".join(result.text[: 4 * _LONGEST].split())


def line_row(line: Line) -> LineRow:
    return LineRow(line.path, line.parent, line.forked_at, line.end.value, line.ended_at_seq)


def is_news(line: Line, since: int) -> bool:
    """Whether a branch began or ended after that sequence number."""
    return line.forked_at > since or (line.ended_at_seq or 0) > since or (since < 0)


def checkpoint_row(one: CheckpointRecord) -> CheckpointRow:
    return CheckpointRow(
        one.id, one.seq, one.branch, one.snapshot_id[:_SNAPSHOT], one.parents, one.created_at, one.label
    )


def effect_row(one: EffectRecord) -> EffectRow:
    return EffectRow(
        one.step,
        one.branch,
        one.attempt,
        one.status.value,
        one.idempotency_key,
        one.intended_at,
        one.settled_at,
        one.note,
    )
