"""Several engines as one, for a policy that stands before all of them."""

from __future__ import annotations

from ramify.serving.policy.types import StepModel


def as_one(step: StepModel, engines: float) -> StepModel:
    """The steps of so many equal engines, whose batches are one batch to the policy.

    They step beside each other: what the batch holds, and what prompts it computes, each has its share of, and the
    fixed part of a step passes once for all. So a full batch of all takes as long as a full batch of one, and a token
    or a prompt takes an n-th of all engines' time. A prompt by itself is computed by one of them, which takes longer
    than said: no call is refused for that.
    """
    return StepModel(
        step.base_ms,
        step.per_seq_ms / engines,
        step.per_kctx_ms / engines,
        step.per_prefill_ms / engines,
        step.per_call_ms / engines,
    )
