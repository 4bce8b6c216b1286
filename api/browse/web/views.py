"""What the page shows of one state, of two, of a call, of a row, of the plan. Pure but for the snapshots it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ramify.browse.web import rows
from ramify.browse.web.errors import NotThere
from ramify.browse.web.responses import (
    CallView,
    Changes,
    DiffView,
    FileRow,
    KeyRow,
    MessageRow,
    MomentView,
    PlanOpRow,
    PlanView,
    Processes,
    StateView,
    TokenRow,
    VariableRow,
)
from ramify.fork_engine.errors import SnapshotNotFound
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Change, Entry, EntryKind
from ramify.inspect.history import History, Moment
from ramify.inspect.model_calls import chat_request
from ramify.inspect.patch import FilePatch, patches
from ramify.inspect.plan_outcomes import stage_error, story
from ramify.inspect.state import MISSING, Between, changed_channels, state_at
from ramify.runtime.codec import codec
from ramify.runtime.estimates.recorded_runs import RecordedEstimates
from ramify.runtime.records import CheckpointId, CheckpointRecord
from ramify.serving.types import ChatResult

_FILES = 400  # patches of so many files are made at once; more are named
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


def state_view(
    history: History, snapshots: SnapshotStore, one: CheckpointRecord, database: str | Path | None = None
) -> StateView:
    row = rows.checkpoint_row(one)
    try:
        state = state_at(history, snapshots, one, database)
    except SnapshotNotFound as error:
        return StateView(row, None, str(error), 0, "", {}, (), None, None, None, (), ())
    snapshot, kept = state.snapshot, state.snapshot.processes
    return StateView(
        checkpoint=row,
        since=None if state.since is None else rows.checkpoint_row(state.since),
        gone="",
        layers=len(snapshot.layers),
        folder=snapshot.cwd,
        environment=dict(snapshot.env),
        unset=snapshot.env_unset,
        processes=Processes(kept.tier.value, kept.dropped, kept.reason, bool(kept.shell)),
        changes=None if state.change is None else changes(state.change),
        channels=state.channels,
        moments=tuple(made.seq for made in state.moments),
        effects=tuple(map(rows.effect_row, state.effects)),
    )


def diff_view(
    snapshots: SnapshotStore,
    before: tuple[History, CheckpointRecord],
    after: tuple[History, CheckpointRecord],
    database: str | Path | None = None,
) -> DiffView:
    """Raises `SnapshotNotFound` where one of the two is not kept any more."""
    old, new = (state_at(history, snapshots, one, database) for history, one in (before, after))
    mine, theirs = ({effect.idempotency_key: effect for effect in state.effects} for state in (old, new))
    return DiffView(
        before=rows.checkpoint_row(before[1]),
        after=rows.checkpoint_row(after[1]),
        keys=tuple(
            KeyRow(name, _json(was), _json(now)) for name, was, now in changed_channels(old.channels, new.channels)
        ),
        changes=changes(Between(snapshots, old.snapshot, new.snapshot)),
        effects_before=tuple(rows.effect_row(one) for key, one in mine.items() if key not in theirs),
        effects_after=tuple(rows.effect_row(one) for key, one in theirs.items() if key not in mine),
    )


def _json(value: object) -> str | None:
    return None if value is MISSING else json.dumps(value)


def changes(between: Between) -> Changes:
    files = between.files
    found = patches(between.snapshots, files[:_FILES], between.before, between.after)
    made = {patch.path: patch for patch in found}
    return Changes(
        files=tuple(_file_row(change, made.get(change.path), at < _FILES) for at, change in enumerate(files)),
        variables=tuple(VariableRow(one.name, one.before, one.after) for one in between.variables),
        folder_before=between.before.cwd,
        folder_after=between.after.cwd,
    )


def _file_row(change: Change, patch: FilePatch | None, compared: bool) -> FileRow:
    text = None if patch is None else patch.text.decode(errors="replace")
    why = "" if compared else f"only the first {_FILES} files are compared here: `ramify diff` shows all"
    if text is not None and len(text) > _PATCH:
        text, why = text[:_PATCH], "the rest is left out: `ramify diff` shows all"
    added, removed = (None, None) if patch is None else (patch.added, patch.removed)
    sizes = (_size(change.before), _size(change.after))
    return FileRow(change.path, change.kind.value, *sizes, added, removed, text, why)


def _size(entry: Entry | None) -> int | None:
    return entry.size if entry is not None and entry.kind is EntryKind.FILE else None


def call_view(one: Moment) -> CallView:
    """Raises `NotThere` where the row is no model call."""
    if one.llm is None:
        raise NotThere(f"row {one.seq} is no model call")
    request = chat_request(one.llm)
    result = codec.decode_own(one.llm.result_json, ChatResult)
    if request is None:
        raise NotThere(f"row {one.seq}: what was asked was not recorded as a chat request")
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
    """Raises `NotThere` where the row is a model call."""
    if one.op is None:
        raise NotThere(f"row {one.seq} is a model call")
    row = one.op
    attrs: Mapping[str, str] = dict(row.attrs)
    return MomentView(
        row.seq, row.key, row.op_id, history.result_of(row), row.error, attrs, row.snapshot_in, row.snapshot_out
    )


def plan_view(history: History, others: RecordedEstimates) -> PlanView:
    """`others`: what other runs of the workflow say of its steps."""
    plan = history.plan
    told = [story(op, plan, history.run, history.ops, history.llm, others) for op in plan.ops]
    effects = {step.name: step.effect.value for step in plan.steps}
    return PlanView(
        passes=plan.passes,
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
