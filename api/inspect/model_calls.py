"""The times of one model call, as the gateway measured them if there was one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ramify.runtime.codec import codec
from ramify.runtime.errors import NotSerialisable
from ramify.runtime.records import LLMRecord
from ramify.serving.types import ChatRequest, ChatResult

_SHOWN = ("compound_stage", "compound_stages", "compound_width", "slo_deadline_s")


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Seconds from the call's arrival; None: not measured."""

    seq: int
    branch: str
    tags: dict[str, object]
    queued_s: float | None
    first_token_s: float | None
    end_s: float
    deadline_s: float | None
    met: bool | None  # None: best effort
    qoe: float | None  # quality of experience of a stream, from 0 to 1; None: no stream
    attempts: int
    prompt_tokens: int
    completion_tokens: int
    reused_from: str | None

    @property
    def tags_line(self) -> str:
        """The stage, how many calls share it, the attempts, and the source of a reused result."""
        stage, stages, width = (self.tags.get(name) for name in _SHOWN[:3])
        parts = []
        if isinstance(stage, int):
            parts.append(f"stage {stage + 1}" + (f"/{stages}" if stages else "") + (f" x{width}" if width else ""))
        if self.attempts > 1:
            parts.append(f"{self.attempts} attempts")
        if self.reused_from:
            parts.append(f"reused from {self.reused_from}")
        return ", ".join(parts) or "none"

    @property
    def verdict(self) -> str:
        """Was the deadline met? A stream has its quality of experience, too."""
        told = [] if self.met is None else ["met" if self.met else "missed"]
        told += [] if self.qoe is None else [f"QoE {self.qoe:.2f}"]
        return ", ".join(told) or "-"

    def as_object(self) -> dict[str, object]:
        return asdict(self)


def chat_request(row: LLMRecord) -> ChatRequest | None:
    """The recorded request; None if a front end recorded another form."""
    try:
        return codec.decode_own(row.request_json, ChatRequest)
    except NotSerialisable:
        return None


def call_times(row: LLMRecord) -> CallTimes:
    """The times of a recorded call. Without a gateway's ledger, the whole duration counts."""
    result = codec.decode_own(row.result_json, ChatResult)
    ledger, tags = result.ledger, json.loads(row.tags_json)
    left = tags.get("slo_deadline_s")
    took = row.ended_at - row.started_at
    return CallTimes(
        seq=row.seq,
        branch=row.branch,
        tags=tags,
        queued_s=ledger.queue_s if ledger else None,
        first_token_s=ledger.first_token_s if ledger else None,
        end_s=ledger.total_s if ledger else took,
        deadline_s=ledger.deadline_s if ledger else left,
        qoe=ledger.qoe if ledger else None,
        met=ledger.met if ledger else (None if left is None else took <= left),
        attempts=ledger.attempts if ledger else 1,
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        reused_from=row.reused_from,
    )
