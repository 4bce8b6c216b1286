"""A run as the runtime would have recorded it, for what only reads."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.codec import codec
from ramify.runtime.records import (
    ROOT,
    BranchPath,
    CheckpointId,
    CheckpointRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    Settings,
)
from ramify.serving.types import ChatResult, Ledger

STARTED = 1_700_000_000.0


@dataclass(frozen=True)
class Story:
    """Everything that one run left behind."""

    run: RunRecord
    ops: list[OpRecord]
    llm: list[LLMRecord]
    checkpoints: list[CheckpointRecord]


def op(seq: int, kind: OpKind, branch: str = ROOT, **more: Any) -> OpRecord:
    begun = STARTED + seq
    blank = OpRecord(
        run_id=RunId("5eed00000001"),
        seq=seq,
        key=f"k{seq}",
        op_id=OpId(f"o{seq}"),
        kind=kind,
        branch=BranchPath(branch),
        status=OpStatus.DONE,
        started_at=begun,
        ended_at=begun + 0.5,
    )
    return replace(blank, **more)


def call(seq: int, ledger: Ledger | None, *, stage: int, width: int, **more: Any) -> LLMRecord:
    result = ChatResult("text", "stop", "tiny", prompt_tokens=120, completion_tokens=16, ledger=ledger)
    tags = {"slo_deadline_s": 88.0 - seq, "compound_stage": stage, "compound_stages": 2, "compound_width": width}
    blank = LLMRecord(
        run_id=RunId("5eed00000001"),
        seq=seq,
        key=f"k{seq}",
        op_id=OpId("o2"),
        branch=ROOT,
        step_key=None,
        request_json="{}",
        request_digest="q",
        result_json=codec.encode(result),
        result_digest="a",
        tags_json=codec.encode(tags),
        started_at=STARTED + seq,
        ended_at=STARTED + seq + 0.25,
    )
    return replace(blank, **more)


def seal(seq: int, branch: str, snapshot: str, parents: tuple[int, ...], label: str) -> CheckpointRecord:
    return CheckpointRecord(
        id=CheckpointId(f"c4ec{seq:04d}ffffffffffffffff"),
        run_id=RunId("5eed00000001"),
        seq=seq,
        branch=BranchPath(branch),
        snapshot_id=SnapshotId(snapshot),
        content_key="k",
        parents=tuple(CheckpointId(f"c4ec{parent:04d}ffffffffffffffff") for parent in parents),
        created_at=STARTED + seq,
        label=label,
    )


def fork_result(place: str, children: int) -> str:
    return json.dumps({"children": children, "place": place})


def story() -> Story:
    """Tests, two proposals, a fork of three, one of them goes deeper, two are merged."""
    fork, inner = "root/fork.1.0", "root/fork.1.0.1/fork.2.0"
    run = RunRecord(
        id=RunId("5eed00000001"),
        name="repair",
        workflow="/src/agent.py:repair",
        frontend="decorators",
        workspace="/src/programs",
        base_snapshot=SnapshotId("ba5e" * 16),
        plan_json="{}",
        args_json='[["gcd"],{}]',
        settings=Settings(sandbox="copy"),
        status=RunStatus.DONE,
        created_at=STARTED,
        updated_at=STARTED + 30,
        deadline_s=90.0,
        consumed_s=29.5,
        result_json='{"repaired": 1}',
    )
    ops = [
        op(1, OpKind.RUN, step="run_tests", summary="3/5 passed"),
        op(4, OpKind.FORK, result_json=fork_result("fork.1.0", 3), summary="3 branches"),
        op(5, OpKind.RUN, f"{fork}.0", step="try_edit", summary="4/5 passed"),
        op(6, OpKind.RUN, f"{fork}.2", step="try_edit", summary="4/5 passed", reused_from="5eed00000001#5"),
        op(7, OpKind.RUN, f"{fork}.1", step="try_edit", summary="4/5 passed"),
        op(8, OpKind.SEAL, f"{fork}.1"),
        op(9, OpKind.FORK, f"{fork}.1", result_json=fork_result("fork.2.0", 2)),
        op(10, OpKind.RUN, f"{inner}.0", step="try_edit", summary="ValueError: no", status=OpStatus.FAILED),
        op(11, OpKind.RUN, f"{inner}.0", step="try_edit", summary="5/5 passed"),
        op(12, OpKind.MERGE, f"{fork}.1", attrs={"theirs_branch": f"{inner}.0"}),
        op(13, OpKind.RELEASE, f"{fork}.1", result_json=fork_result("fork.2.0", 2)),
        op(14, OpKind.MERGE, attrs={"theirs_branch": f"{fork}.1"}),
        op(15, OpKind.RELEASE, result_json=fork_result("fork.1.0", 3)),
        op(16, OpKind.RUN, step="run_tests", summary="5/5 passed"),
    ]
    llm = [
        call(2, Ledger(0.0, 0.125, 0.25, 86.0, True), stage=0, width=2),
        call(3, Ledger(0.125, 0.2, 0.3, 85.0, True, attempts=2), stage=0, width=2),
        call(17, None, stage=1, width=1, op_id=OpId("o17")),
    ]
    checkpoints = [
        seal(0, ROOT, "ba5e" * 16, (), "workspace"),
        seal(8, f"{fork}.1", "0dd5" * 16, (0,), "try_edit"),
        seal(12, f"{fork}.1", "fade" * 16, (8,), "merge"),
        seal(14, ROOT, "feed" * 16, (0, 12), f"merge {fork}.1"),
    ]
    return Story(run, ops, llm, checkpoints)
