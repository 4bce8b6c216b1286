"""CALM, grouped margin goodput maximisation: algorithm 4.1 of the thesis, as it is written.

Every frame of Δ decoding steps the batch is chosen anew from all that waits and runs: each request's priority is its
goodput for each second of generation (equation 4.1); those near enough to the B-th best are candidates (the cutoff
p); of these, sorted by input length, the window of B with the greatest sum of priorities is the batch. Within a frame
free slots are filled in the order of priority and nothing is displaced.

Kept as the thesis has it, so that it can be compared with; `concord` is what we recommend. Where the text leaves a
choice, it is named in docs/decisions/030.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from ramify.serving.policy.cutoff import Cutoff
from ramify.serving.policy.goodput import Goodput, is_latency, worth
from ramify.serving.policy.types import Finished, Refusal, RequestId, RequestView, SloClass, Verdict, View
from ramify.serving.policy.work import LengthPrior, pace_s, prefill_s, remaining

Fairness = Callable[[RequestView, float], float]  # Fair(r) at a time: the larger, the less it got of what is fair


@dataclass(frozen=True, slots=True)
class CalmOptions:
    goodput: Goodput = Goodput.TOKEN
    quantile: float = 0.95  # of the length: the upper bound
    frame_steps: int = 50  # Δ
    starvation_step: float = 0.001  # δ: added to goodput(r) for each frame that r has waited
    preempt_margin: float = 0.1  # a displaced request's priority must be exceeded by this share
    waiting_s: float | None = 5.0  # not admitted for so long: dropped (chapter 5); best effort never is
    best_effort_s: float = 120.0  # default completion deadline of what has no SLO
    fairness: float = 0.0  # f
    fair: Fairness = lambda view, now: now - view.arrived
    cutoff: float | None = None  # p, if it is not to be adapted


@dataclass(frozen=True, slots=True)
class Ranked:
    """One request, analysed (algorithm 4.1, lines 2 to 6)."""

    view: RequestView
    gen_s: float  # t_gen: upper bound of its remaining generation time; of the whole stage, for a compound request
    bandwidth: float  # bw = t_gen / t_rem; above 1 it cannot be met any more
    goodput: float
    priority: float


class Calm:
    """`calm-thesis`. One object serves one engine: it keeps the frame, the cutoff and what it learnt of lengths."""

    def __init__(self, options: CalmOptions | None = None) -> None:
        self.options = options or CalmOptions()
        self.cutoff = Cutoff(self.options.cutoff)
        self._prior = LengthPrior()
        self._frame_ends = float("-inf")

    def observe(self, done: Finished) -> None:
        self._prior.learn(done)
        if done.met:
            view = done.view
            whole = view.prompt_tokens + view.generated
            tokens = done.delivered if is_latency(view) else whole
            self.cutoff.earned(view.weight * (tokens if self.options.goodput is Goodput.TOKEN else 1.0))

    def decide(self, view: View, now: float) -> Verdict:
        token_s = pace_s(view.capacity, view.running)
        frame_s = self.options.frame_steps * token_s
        drop = self._dropped(view, now)
        gone = {refusal.id for refusal in drop}
        live = [call for call in view.waiting if call.id not in gone]
        queue = self.analyse([*live, *view.running, *view.paused], now, token_s, frame_s)
        queue.sort(key=lambda ranked: (-ranked.priority, ranked.view.id))
        waiting = {call.id for call in live}
        order = [ranked.view.id for ranked in queue if ranked.view.id in waiting]
        new_frame = now >= self._frame_ends
        admit = order[: view.capacity.free]
        preempt: list[RequestId] = []
        if new_frame:
            self._frame_ends = now + frame_s
            self.cutoff.frame(now)
            chosen = window(queue, view.capacity.slots, self.cutoff.value)
            order = [i for i in order if i in chosen] + [i for i in order if i not in chosen]
            admit = order[: view.capacity.free]
            if view.capacity.can_preempt:
                preempt = self._displaced(queue, order[len(admit) :], chosen, view, frame_s)
                admit = order[: len(admit) + len(preempt)]
        late = [self._admit_by(call) for call in live]
        wakes = [self._frame_ends if order else None, *late]
        return Verdict(
            admit=tuple(admit),
            order=tuple(order),
            preempt=tuple(preempt),
            resume=tuple(call.id for call in view.paused[: max(0, view.capacity.free - len(admit))]),
            drop=tuple(drop),
            wake_at=min((at for at in wakes if at is not None and at > now), default=None),
        )

    def analyse(self, calls: list[RequestView], now: float, token_s: float, frame_s: float) -> list[Ranked]:
        """Lines 2 to 6 for each request; for a compound one over all of its stage's calls that are here (§4.2)."""
        left = [remaining(call, self._prior, self.options.quantile) for call in calls]
        gen = [tokens * token_s for tokens in left]  # t_gen(r) = len_rem(r) · v_token(r)
        gains = [worth(self.options.goodput, call, tokens) for call, tokens in zip(calls, left, strict=True)]
        stages: dict[tuple[str, int], list[int]] = {}
        for i, call in enumerate(calls):
            if call.compound is not None:
                stages.setdefault((call.compound.id, call.compound.stage), []).append(i)
        for members in stages.values():
            stage_gen, stage_gain = sum(gen[i] for i in members), sum(gains[i] for i in members)
            for i in members:
                gen[i], gains[i] = stage_gen, stage_gain
        return [
            self._ranked(call, gen_s, gain, now, token_s, frame_s)
            for call, gen_s, gain in zip(calls, gen, gains, strict=True)
        ]

    def _ranked(
        self, call: RequestView, gen_s: float, gain: float, now: float, token_s: float, frame_s: float
    ) -> Ranked:
        options = self.options
        due = call.deadline
        if call.compound is not None and call.compound.due is not None:
            due = call.compound.due  # D_s, §4.1
        if due is None and call.slo_class is SloClass.BEST_EFFORT:
            due = call.arrived + options.best_effort_s
        per_token = token_s / call.tbt if call.tbt else 1.0  # explicit SLOs define the bandwidth: a token a TBT
        bandwidth = per_token if due is None else gen_s / max(due - now, token_s)
        waits = call.computed == 0
        goodput = gain + (options.starvation_step * ((now - call.arrived) // frame_s) if waits else 0.0)
        priority = goodput / gen_s  # (4.1)
        if options.fairness:
            priority = (1 - options.fairness) * priority + options.fairness * options.fair(call, now)  # §4.3
        return Ranked(call, gen_s, bandwidth, goodput, priority)

    def _displaced(
        self, queue: list[Ranked], incoming: list[RequestId], chosen: set[RequestId], view: View, frame_s: float
    ) -> list[RequestId]:
        """Running requests outside the chosen batch, worst first, as long as the trade gains more than it costs.

        gain: the difference of priorities over a frame. loss: stall_duration · token_generation_speed, with the
        priority as the speed, so that it is in goodput's own unit; the stall is what vLLM's preemption costs, a
        prefill of all that was computed, net of what the prefix cache will still hold.
        """
        by_id = {ranked.view.id: ranked for ranked in queue}
        running = {call.id for call in view.running}
        victims = [r for r in reversed(queue) if r.view.id in running and r.view.id not in chosen]
        out = []
        for id_, victim in zip(incoming, victims, strict=False):
            rival = by_id[id_]
            again = max(0, victim.view.computed - victim.view.cached_tokens)
            loss = prefill_s(view.capacity.step, again) * victim.priority
            gain = (rival.priority - victim.priority) * frame_s
            if rival.priority <= victim.priority * (1 + self.options.preempt_margin) or gain <= loss:
                break
            out.append(victim.view.id)
        return out

    def _admit_by(self, call: RequestView) -> float | None:
        default = None if self.options.waiting_s is None else call.arrived + self.options.waiting_s
        by = default if call.admit_by is None else call.admit_by
        return None if call.slo_class is SloClass.BEST_EFFORT or call.generated else by

    def _dropped(self, view: View, now: float) -> list[Refusal]:
        out = []
        for call in view.waiting:
            by = self._admit_by(call)
            if by is not None and by <= now:
                out.append(Refusal(call.id, f"it was not admitted within {by - call.arrived:.3f} s"))
        return out


def window(queue: list[Ranked], size: int, cutoff: float) -> set[RequestId]:
    """Lines 11 to 17: of those at least `cutoff` times as good as the `size`-th best, sorted by input length, the
    window of `size` with the greatest sum of priorities. `queue` has the best first."""
    if len(queue) <= size or size < 1:
        return {ranked.view.id for ranked in queue[: max(0, size)]}
    bar = queue[size - 1].priority * cutoff
    candidates = [ranked for ranked in queue if ranked.priority >= bar]
    candidates.sort(key=lambda ranked: (ranked.view.prompt_tokens, ranked.view.id))
    sums = [0.0, *accumulate(ranked.priority for ranked in candidates)]
    scores = [sums[i + size] - sums[i] for i in range(len(candidates) - size + 1)]
    best = scores.index(max(scores))
    return {ranked.view.id for ranked in candidates[best : best + size]}
