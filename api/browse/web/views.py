"""The answers to the page: records as rows, and the views of a state, a diff, a model call, a step and the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from ramify.browse.web.responses import (
    CallRow,
    CallView,
    Changes,
    CheckpointRow,
    DiffView,
    EffectRow,
    FileRow,
    ItemRow,
    KeyRow,
    LineRow,
    MessageRow,
    MomentRow,
    MomentView,
    NotThere,
    PlanOpRow,
    PlanView,
    Processes,
    RunRow,
    StateView,
    TokenRow,
    VariableRow,
)
from ramify.compiler.pass_effects import with_effect
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, Entry, EntryKind
from ramify.inspect.history import BranchHistory, History, Moment
from ramify.inspect.inbox import Item, Kind
from ramify.inspect.model_calls import chat_request
from ramify.inspect.patch import FilePatch, patches
from ramify.inspect.plan_outcomes import stage_error, story
from ramify.inspect.state import MISSING, StateDiff, changed_channels, state_at
from ramify.runtime.codec import codec
from ramify.runtime.estimates.recorded_runs import RecordedEstimates
from ramify.runtime.records import CheckpointId, CheckpointRecord, EffectRecord, LLMRecord, RunRecord
from ramify.runtime.store import Tally
from ramify.serving.types import ChatResult

_SNAPSHOT = 16  # characters of a snapshot's id that people see
_LONGEST = 160  # characters of a row's line; a click shows all of it


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
            qoe=call.qoe,
            prompt_tokens=call.prompt_tokens,
            completion_tokens=call.completion_tokens,
            note=call.tags_line,
        ),
    )


def _answer(row: LLMRecord) -> str:
    result = codec.decode_own(row.result_json, ChatResult)
    return " ".join(result.text[: 4 * _LONGEST].split())


def line_row(line: BranchHistory) -> LineRow:
    return LineRow(line.path, line.parent, line.forked_at, line.end.value, line.ended_at_seq)


def is_news(line: BranchHistory, since: int) -> bool:
    """Whether a branch started or ended after that sequence number."""
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


_FILES = 400  # files with patches; further files are only named
_OUTSIDE = 1000  # files outside the workspace that are named
_PATCH = 400_000  # characters of one patch
_TOKENS = 400


def checkpoint(history: History, checkpoint_id: str) -> CheckpointRecord:
    """Raises `NotThere`."""
    found = history.by_id.get(CheckpointId(checkpoint_id))
    if found is None:
        raise NotThere(f"run {history.run.id} has no checkpoint {checkpoint_id}")
    return found


def moment(history: History, seq: int) -> Moment:
    """Raises `NotThere`."""
    found = next((one for one in history.moments if one.seq == seq), None)
    if found is None:
        raise NotThere(f"run {history.run.id} has no row {seq}")
    return found


def _never() -> bool:
    return False


def state_view(
    history: History,
    snapshots: SnapshotStore,
    one: CheckpointRecord,
    database: str | Path | None = None,
    stopped: Callable[[], bool] = _never,
) -> StateView:
    """`stopped`: asked before each file is compared; once it is true, the other files are only named."""
    row = checkpoint_row(one)
    try:
        state = state_at(history, snapshots, one, database)
    except SnapshotNotFound as error:
        return StateView(row, None, str(error), 0, "", {}, (), None, None, None, (), ())
    snapshot, kept = state.snapshot, state.snapshot.processes
    return StateView(
        checkpoint=row,
        since=None if state.since is None else checkpoint_row(state.since),
        gone="",
        layers=len(snapshot.layers),
        folder=snapshot.cwd,
        environment=dict(snapshot.env),
        unset=snapshot.env_unset,
        processes=Processes(kept.tier.value, kept.dropped, kept.reason, bool(kept.shell)),
        changes=None if state.change is None else changes(state.change, stopped),
        channels=state.channels,
        moments=tuple(made.seq for made in state.moments),
        effects=tuple(map(effect_row, state.effects)),
    )


def diff_view(
    snapshots: SnapshotStore,
    before: tuple[History, CheckpointRecord],
    after: tuple[History, CheckpointRecord],
    database: str | Path | None = None,
    stopped: Callable[[], bool] = _never,
) -> DiffView:
    """`stopped`: as for `state_view`. Raises `SnapshotNotFound` if one of the two was deleted."""
    old, new = (state_at(history, snapshots, one, database) for history, one in (before, after))
    mine, theirs = ({effect.idempotency_key: effect for effect in state.effects} for state in (old, new))
    return DiffView(
        before=checkpoint_row(before[1]),
        after=checkpoint_row(after[1]),
        keys=tuple(
            KeyRow(name, _json(was), _json(now)) for name, was, now in changed_channels(old.channels, new.channels)
        ),
        changes=changes(StateDiff(snapshots, old.snapshot, new.snapshot), stopped),
        effects_before=tuple(effect_row(one) for key, one in mine.items() if key not in theirs),
        effects_after=tuple(effect_row(one) for key, one in theirs.items() if key not in mine),
    )


def _json(value: object) -> str | None:
    return None if value is MISSING else json.dumps(value)


def changes(between: StateDiff, stopped: Callable[[], bool]) -> Changes:
    files = between.files
    found = patches(between.snapshots, files[:_FILES], between.before, between.after, stopped)
    made = {patch.path: patch for patch in found}
    last = max((at for at, change in enumerate(files) if change.path in made), default=-1)
    compared = last + 1 if stopped() else _FILES
    return Changes(
        files=tuple(_file_row(change, made.get(change.path), at, compared) for at, change in enumerate(files)),
        outside=tuple(_file_row(change, None, 0, 1) for change in between.outside[:_OUTSIDE]),
        outside_count=len(between.outside),
        variables=tuple(VariableRow(one.name, one.before, one.after) for one in between.variables),
        folder_before=between.before.cwd,
        folder_after=between.after.cwd,
    )


def _file_row(change: Change, patch: FilePatch | None, at: int, compared: int) -> FileRow:
    """`compared`: only this many files were."""
    text = None if patch is None else patch.text.decode(errors="replace")
    why = "" if at < compared else f"only the first {compared} files are compared here; `ramify diff` shows all"
    if text is not None and len(text) > _PATCH:
        text, why = text[:_PATCH], "the rest is omitted; `ramify diff` shows all"
    added, removed = (None, None) if patch is None else (patch.added, patch.removed)
    sizes = (_size(change.before), _size(change.after))
    return FileRow(change.path, change.kind.value, *sizes, added, removed, text, why)


def _size(entry: Entry | None) -> int | None:
    return entry.size if entry is not None and entry.kind is EntryKind.FILE else None


def call_view(one: Moment) -> CallView:
    """Raises `NotThere` if the row is not a model call."""
    if one.llm is None:
        raise NotThere(f"row {one.seq} is not a model call")
    request = chat_request(one.llm)
    result = codec.decode_own(one.llm.result_json, ChatResult)
    if request is None:
        raise NotThere(f"row {one.seq}: its request was not recorded as a chat request")
    settings = {
        "temperature": f"{request.temperature:g}",
        "top_p": f"{request.top_p:g}",
        "max_tokens": str(request.max_tokens),
        "seed": "none" if request.seed is None else str(request.seed),
        "stop": json.dumps(request.stop) if request.stop else "none",
        "sample": str(request.sample),
    }
    return CallView(
        seq=one.seq,
        model=result.model,
        settings=settings,
        messages=tuple(MessageRow(message.role, message.content) for message in request.messages),
        answer=result.text,
        finish_reason=result.finish_reason,
        tokens=tuple(TokenRow(token.token, token.logprob, token.top) for token in result.logprobs[:_TOKENS]),
    )


def moment_view(one: Moment, history: History) -> MomentView:
    """Raises `NotThere` if the row is a model call."""
    if one.op is None:
        raise NotThere(f"row {one.seq} is a model call")
    row = one.op
    attrs: Mapping[str, str] = dict(row.attrs)
    return MomentView(
        row.seq, row.key, row.op_id, history.result_of(row), row.error, attrs, row.snapshot_in, row.snapshot_out
    )


def plan_view(history: History, others: RecordedEstimates) -> PlanView:
    """`others`: durations of the steps in other runs of the workflow."""
    plan = history.plan
    told = [story(op, plan, history.run, history.ops, history.llm, others) for op in plan.ops]
    effects = {step.name: step.effect.value for step in plan.steps}
    return PlanView(
        passes=with_effect(plan, history.run.deadline_s),
        deadline_s=plan.deadline_s,
        stage_error=stage_error(plan, history.llm),
        operations=tuple(
            PlanOpRow(
                one.op,
                one.kind,
                one.step,
                one.site,
                effects.get(one.step or ""),
                one.done,
                one.reused,
                one.failed,
                one.snapshots,
                one.predicted_s,
                one.took_s,
            )
            for one in told
        ),
        breaks=tuple(f"{one.op}: {one.where}: {one.reason}" for one in plan.breaks[1:]),
    )
