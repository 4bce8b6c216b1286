"""What a request in time is worth: the provider's choice, and all that CALM knows of it (thesis, chapter 3)."""

from __future__ import annotations

from enum import StrEnum

from ramify.serving.policy.types import RequestView, SloClass


class Goodput(StrEnum):
    TOKEN = "token"  # tokens of answers in time: input and output; of a latency-sensitive one, its output on schedule
    REQUEST = "request"  # calls in time
    WORKFLOW = "workflow"  # programs in time: a workflow is one, and so is a call that belongs to none


def is_latency(view: RequestView) -> bool:
    """Judged token by token. The final call of a compound request may be (thesis, chapter 3): where it says so by a
    time to first token, or a time between tokens."""
    final = view.compound is not None and view.compound.last and (view.ttft is not None or view.tbt is not None)
    return view.slo_class is SloClass.LATENCY or final


def worth(goodput: Goodput, view: RequestView, output_left: float) -> float:
    """goodput(r): what this one call adds if it is completed in time. A stage's is the sum over its calls, but for a
    workflow's, where the calls of a stage share one program."""
    if goodput is Goodput.REQUEST:
        return view.weight
    if goodput is Goodput.WORKFLOW:
        return view.weight / (view.compound.width if view.compound else 1)
    if is_latency(view):
        return view.weight * output_left
    return view.weight * (view.prompt_tokens + view.generated + output_left)


def rest_worth(goodput: Goodput, view: RequestView) -> float:
    """The same of the calls of the stages that follow, for a weight of 1; 0 where they are not known, and where only
    programs count."""
    if view.compound is None or goodput is Goodput.WORKFLOW:
        return 0.0
    rest = view.compound.rest
    if goodput is Goodput.REQUEST:
        return sum(stage.calls for stage in rest)
    return sum(stage.calls * (stage.prefill + stage.output_median) for stage in rest)
