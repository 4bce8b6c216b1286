"""What several baselines reckon with: when a call is due, and how long it still takes."""

from __future__ import annotations

from ramify.serving.policy.types import RequestView
from ramify.serving.policy.work import prefill_s, remaining, rest_wall_s
from ramify.serving.replay.baselines.ordered import NEVER, Scene

BEST_EFFORT_S = 120.0


def due(call: RequestView) -> float:
    """When it must have its first token, if it streams, or else its whole answer; of a compound request, when the
    whole workflow is due. Best effort is due `BEST_EFFORT_S` after it came."""
    times = [
        call.ttft if call.generated == 0 else None,
        call.deadline,
        None if call.compound is None else call.compound.deadline,
    ]
    known = [at for at in times if at is not None]
    if known:
        return min(known)
    if call.tbt is not None and call.ttft is not None:  # it streams: its next token
        return call.ttft + call.generated * call.tbt
    return call.arrived + BEST_EFFORT_S


def wall_s(call: RequestView, scene: Scene, quantile: float) -> float:
    """Seconds in a slot until what is due then is there: prefill, and the answer and the later stages if it is due as
    a whole."""
    prefill = prefill_s(scene.capacity.step, call.to_prefill)
    if call.ttft is not None and call.generated == 0:
        return prefill + scene.token_s
    own = remaining(call, scene.prior, quantile) * scene.token_s
    return prefill + own + rest_wall_s(call, scene.capacity, scene.token_s)


def late_at(call: RequestView, scene: Scene, quantile: float = 0.1) -> float:
    """From then on it cannot be in time, even if its answer is as short as the quantile says. Best effort: never."""
    if call.ttft is None and call.deadline is None and (call.compound is None or call.compound.deadline is None):
        return NEVER
    return due(call) - wall_s(call, scene, quantile)


def waited_out(call: RequestView, scene: Scene, waiting_s: float = 5.0) -> float:
    """The thesis's `waiting_time` (chapter 5): not admitted for so long, dropped. Best effort: never."""
    return NEVER if late_at(call, scene) == NEVER else call.arrived + waiting_s
