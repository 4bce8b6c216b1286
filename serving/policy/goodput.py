"""`Goodput`: what a request that is in time is worth. The provider chooses it (thesis, chapter 3)."""

from __future__ import annotations

from enum import StrEnum

from ramify.serving.policy.types import RequestView, SloClass


class Goodput(StrEnum):
    TOKEN = (
        "token"  # prompt and answer tokens of requests in time; of latency-sensitive ones, answer tokens on schedule
    )
    REQUEST = "request"  # calls in time
    WORKFLOW = "workflow"  # programs in time: a workflow, or a call that belongs to none


def is_latency(view: RequestView) -> bool:
    """Is the request judged token by token?

    The last call of a compound request is too, if it names a time to first token or between tokens (thesis, chapter
    3).
    """
    final = view.compound is not None and view.compound.last and (view.ttft is not None or view.tbt is not None)
    return view.slo_class in (SloClass.LATENCY, SloClass.STREAM) or final


def worth(goodput: Goodput, view: RequestView, output_left: float) -> float:
    """Return goodput(r): what this call adds if it is completed in time.

    The goodput of a stage is the sum over its calls. If programs count, the calls of a stage share one program.
    """
    if goodput is Goodput.REQUEST:
        return view.weight
    if goodput is Goodput.WORKFLOW:
        return view.weight / (view.compound.width if view.compound else 1)
    if is_latency(view):
        return view.weight * output_left
    return view.weight * (view.prompt_tokens + view.generated + output_left)


def rest_worth(goodput: Goodput, view: RequestView) -> float:
    """Return the goodput of the later stages' calls, at weight 1; 0 if they are not known, or if programs count."""
    if view.compound is None or goodput is Goodput.WORKFLOW:
        return 0.0
    rest = view.compound.rest
    if goodput is Goodput.REQUEST:
        return sum(stage.calls for stage in rest)
    return sum(stage.calls * (stage.prefill + stage.output_median) for stage in rest)
