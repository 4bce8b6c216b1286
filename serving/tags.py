"""The wire format: how a workflow's deadline and shape travel with each LLM call.

One flat dataclass, because vLLM's `vllm_xargs` takes no nested values. Client, gateway and plug-in share only
this module. It travels three ways: in the body under `vllm_xargs`, in the header `x-ramify-tags` (JSON), or as
the thesis's own body fields (`deadline`, `target_ttft`, `target_tbt`, `waiting_time`).
Times are seconds; those named "left" are counted from the moment of sending and rewritten by each hop.
"""

from __future__ import annotations

from dataclasses import dataclass

HEADER = "x-ramify-tags"


@dataclass(frozen=True, slots=True)
class SLOTags:
    """All tags of one call. None: not said. A call without any is best effort: no limit, never starved."""

    slo_deadline_s: float | None = None  # left until the whole answer is needed
    slo_ttft_s: float | None = None  # left until the first token is needed
    slo_tbt_s: float | None = None  # between tokens
    slo_waiting_s: float | None = None  # longest wait before admission
    slo_class: str | None = None  # "latency" | "deadline" | "compound" | "best_effort"
    compound_id: str | None = None  # the run
    compound_stage: int | None = None  # index of this stage
    compound_stages: int | None = None
    compound_width: int | None = None  # calls in this stage
    compound_last: int | None = None  # 0 or 1
    compound_deadline_s: float | None = None  # from the first request seen with this id
    compound_deadline_at: float | None = None  # Unix seconds
    plan_rest: tuple[float, ...] | None = None
    fork_group: str | None = None
    fork_size: int | None = None
    fork_need: int | None = None
    app_id: str | None = None
    length_quantiles: tuple[float, ...] | None = None
    goodput_weight: float | None = None
