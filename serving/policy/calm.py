"""`Calm`: CALM, grouped margin goodput maximisation, algorithm 4.1 of the thesis as it is written.

In every frame of Δ decoding steps the batch is chosen from all waiting and running requests. The priority of a
request is its goodput for each second of generation (equation 4.1). Requests whose priority is at least p times
that of the B-th best are candidates. Sorted by input length, the window of B candidates with the greatest sum of
priorities is the batch. Within a frame, free slots are filled in the order of priority, and nothing is displaced.

The option `appendix` adds what only the proofs have: the scheduling filter of appendix B, by which a request that
cannot end before its deadline any more comes after all that can, and the preemption threshold of equation D.5, which
compares goodput and not priority.

It is kept for comparison; `concord` is the recommended policy. docs/decisions/051 lists the choices that the text
leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from ramify.serving.policy.cost_model import Goodput, LengthPrior, is_latency, pace_s, prefill_s, remaining, worth
from ramify.serving.policy.refusals import not_admitted
from ramify.serving.policy.types import Finished, RequestId, RequestView, SloClass, Verdict, View

CANDIDATES = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5)
_EXPLORE_EVERY = 8
_LEARN = 0.3


class Cutoff:
    """Finds the cutoff p while serving ("exploring different thresholds and converging", thesis §4.2).

    It is a bandit whose arms are thresholds and whose reward is goodput for each second.

    Time goes in turns of `turn_frames` frames. Each threshold gets one turn; after that the best so far is used, and
    every `_EXPLORE_EVERY`-th turn one of the others, in rotation, so that a change of load is noticed. Rewards are
    averaged with weight `_LEARN`. It uses no randomness, so a replay repeats it.
    """

    def __init__(self, fixed: float | None = None, turn_frames: int = 40) -> None:
        self.value = CANDIDATES[0] if fixed is None else fixed
        self._fixed = fixed is not None
        self._turn_frames = turn_frames
        self._rates: dict[float, float] = {}
        self._frames = self._turns = self._tried = 0
        self._earned = 0.0
        self._began: float | None = None

    def earned(self, goodput: float) -> None:
        """Count goodput for the present threshold."""
        self._earned += goodput

    def frame(self, now: float) -> None:
        """Begin a frame at the time `now`."""
        if self._fixed:
            return
        if self._began is None:
            self._began = now
        self._frames += 1
        if self._frames <= self._turn_frames or now <= self._began:
            return
        rate = self._earned / (now - self._began)
        before = self._rates.get(self.value, rate)
        self._rates[self.value] = before + _LEARN * (rate - before)
        self._began, self._earned, self._frames = now, 0.0, 1
        self._turns += 1
        self.value = self._next()

    def _next(self) -> float:
        for candidate in CANDIDATES:
            if candidate not in self._rates:
                return candidate
        best = max(CANDIDATES, key=lambda p: self._rates[p])
        if self._turns % _EXPLORE_EVERY:
            return best
        others = [p for p in CANDIDATES if p != best]
        self._tried += 1
        return others[self._tried % len(others)]


Fairness = Callable[[RequestView, float], float]  # Fair(r) at a time: the larger, the less of its fair share it got


@dataclass(frozen=True, slots=True)
class CalmOptions:
    goodput: Goodput = Goodput.TOKEN
    quantile: float = 0.95  # of the length, as its upper bound
    frame_steps: int = 50  # Δ
    starvation_step: float = 0.001  # δ: added to goodput(r) for each frame that r has waited
    preempt_margin: float = 0.1  # by what share a displaced request's priority must be exceeded
    waiting_s: float | None = 5.0  # a call is dropped after waiting so long (chapter 5); best effort never is
    fairness: float = 0.0  # f
    fair: Fairness = lambda view, now: now - view.arrived
    cutoff: float | None = None  # p; None: it is adapted
    appendix: bool = True  # the filter of appendix B, and the threshold of equation D.5

    def __post_init__(self) -> None:
        if self.frame_steps < 1:
            raise ValueError(f"frame_steps is {self.frame_steps}: it must be at least 1")
        for name in ("quantile", "fairness", "cutoff"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value:g}: it must be from 0 to 1")


_NEVER = float("inf")


class Ranked(NamedTuple):
    """One request, analysed (algorithm 4.1, lines 2 to 6).

    Its bandwidth t_gen / t_rem is in both terms of its priority and cancels (docs/decisions/051).
    """

    view: RequestView
    gen_s: float  # t_gen: upper bound of its remaining generation time; for a compound request, of the whole stage
    goodput: float
    priority: float
    is_feasible: bool = True  # t_SLO^r - t_comp^r is not below 0 (appendix B)


class _Known(NamedTuple):
    """What stays the same for a request while its view is the same object."""

    view: RequestView
    left: float  # len_rem(r), in tokens
    gain: float  # goodput(r), before δ
    admit_by: float
    due: float  # its deadline, or its stage's D_s; never for calls that are judged token by token


class Calm:
    """The policy `calm-thesis`, for one engine: it keeps the frame, the cutoff and the lengths that it learnt."""

    def __init__(self, options: CalmOptions | None = None) -> None:
        self.options = options or CalmOptions()
        self.cutoff = Cutoff(self.options.cutoff)
        self._prior = LengthPrior()
        self._frame_ends = float("-inf")
        self._known: dict[RequestId, _Known] = {}

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
        known = self._of([*view.waiting, *view.running, *view.paused])
        self._known = {one.view.id: one for one in known}
        waiting = known[: len(view.waiting)]
        late = [one for one in waiting if one.admit_by <= now]
        live = [one for one in waiting if not one.admit_by <= now] if late else waiting
        queue = self._ranked([*live, *known[len(waiting) :]], now, token_s, frame_s)
        queue.sort(key=lambda ranked: (not ranked.is_feasible, -ranked.priority, ranked.view.id))
        in_queue = {one.view.id for one in live}
        order = [ranked.view.id for ranked in queue if ranked.view.id in in_queue]
        new_frame = now >= self._frame_ends
        admit = order[: view.capacity.free]
        preempt: list[RequestId] = []
        if new_frame:
            self._frame_ends = now + frame_s
            self.cutoff.frame(now)
            chosen = self._batch(queue, view.capacity.slots)
            order = [i for i in order if i in chosen] + [i for i in order if i not in chosen]
            admit = order[: view.capacity.free]
            if view.capacity.can_preempt:
                preempt = self._displaced(queue, order[len(admit) :], chosen, view, frame_s)
                admit = order[: len(admit) + len(preempt)]
        wakes = [self._frame_ends if order else _NEVER, *[one.admit_by for one in live]]
        return Verdict(
            admit=tuple(admit),
            order=tuple(order),
            preempt=tuple(preempt),
            resume=tuple(call.id for call in view.paused[: max(0, view.capacity.free - len(admit))]),
            drop=tuple([not_admitted(one.view, one.admit_by) for one in late]),
            wake_at=min([at for at in wakes if now < at < _NEVER], default=None),
        )

    def analyse(self, calls: list[RequestView], now: float, token_s: float, frame_s: float) -> list[Ranked]:
        """Do lines 2 to 6 for each request; for a compound one, over all calls of its stage that are here (§4.2)."""
        return self._ranked(self._of(calls), now, token_s, frame_s)

    def _of(self, calls: list[RequestView]) -> list[_Known]:
        kept = self._known.get
        return [
            one
            if (one := kept(call.id)) is not None and one.view is call and call.sketch is not None
            else self._analysed(call)
            for call in calls
        ]

    def _analysed(self, call: RequestView) -> _Known:
        left = remaining(call, self._prior, self.options.quantile)
        return _Known(call, left, worth(self.options.goodput, call, left), self._admit_by(call), _due(call))

    def _batch(self, queue: list[Ranked], slots: int) -> set[RequestId]:
        """Choose the batch among what can be in time; the rest takes the slots that this leaves."""
        feasible = [ranked for ranked in queue if ranked.is_feasible]
        chosen = window(feasible, slots, self.cutoff.value)
        return chosen.union([one.view.id for one in queue[len(feasible) :][: max(0, slots - len(chosen))]])

    def _ranked(self, known: list[_Known], now: float, token_s: float, frame_s: float) -> list[Ranked]:
        options = self.options
        gen = [one.left * token_s for one in known]  # t_gen(r) = len_rem(r) · v_token(r)
        gains = [one.gain for one in known]
        stages: dict[tuple[str, int], list[int]] = {}
        for i, one in enumerate(known):
            if (compound := one.view.compound) is not None:
                stages.setdefault((compound.id, compound.stage), []).append(i)
        # The calls of a stage run at once: it ends with the longest, although its price is the sum.
        feasible = [not self.options.appendix or now + own <= one.due for own, one in zip(gen, known, strict=True)]
        for members in stages.values():
            if not all(map(feasible.__getitem__, members)):
                for i in members:
                    feasible[i] = False
            stage_gen, stage_gain = sum([gen[i] for i in members]), sum([gains[i] for i in members])
            for i in members:
                gen[i], gains[i] = stage_gen, stage_gain
        step, fairness, fair = options.starvation_step, options.fairness, options.fair
        goodput = [
            gain if one.view.computed else gain + step * ((now - one.view.arrived) // frame_s)
            for one, gain in zip(known, gains, strict=True)
        ]
        priority = [gained / gen_s for gained, gen_s in zip(goodput, gen, strict=True)]  # (4.1)
        if fairness:  # §4.3
            mixed = zip(priority, known, strict=True)
            priority = [(1 - fairness) * own + fairness * fair(one.view, now) for own, one in mixed]
        return list(map(Ranked, [one.view for one in known], gen, goodput, priority, feasible))

    def _displaced(
        self, queue: list[Ranked], incoming: list[RequestId], chosen: set[RequestId], view: View, frame_s: float
    ) -> list[RequestId]:
        """Return running requests outside the chosen batch, worst first, as long as a trade gains more than it costs.

        The gain is the difference of priorities over a frame. The loss is stall_duration · token_generation_speed,
        with the priority as the speed, so that both are in goodput's unit. The stall is the cost of a preemption in
        vLLM: a prefill of all that was computed, net of what the prefix cache will still hold.
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
            if not self._may_preempt(rival, victim) or gain <= loss:
                break
            out.append(victim.view.id)
        return out

    def _may_preempt(self, rival: Ranked, victim: Ranked) -> bool:
        """Is R(A) > (1 + δ) R(B) (equation D.5), R being the base goodput? Anything that can be in time may displace
        what cannot, and not the other way round. Without the appendix the priorities are compared (§4.2).
        """
        more = 1 + self.options.preempt_margin
        if not self.options.appendix:
            return rival.priority > victim.priority * more
        if rival.is_feasible is not victim.is_feasible:
            return rival.is_feasible
        return rival.goodput > victim.goodput * more

    def _admit_by(self, call: RequestView) -> float:
        if call.slo_class is SloClass.BEST_EFFORT or call.generated:
            return _NEVER
        if call.admit_by is not None:
            return call.admit_by
        return _NEVER if self.options.waiting_s is None else call.arrived + self.options.waiting_s


def _due(call: RequestView) -> float:
    compound = call.compound
    ends = [call.deadline, *(() if compound is None else (compound.deadline, compound.due))]
    return _NEVER if is_latency(call) else min([at for at in ends if at is not None], default=_NEVER)


def window(queue: list[Ranked], size: int, cutoff: float) -> set[RequestId]:
    """Choose the batch (lines 11 to 17).

    Candidates are at least `cutoff` times as good as the `size`-th best of `queue`, which has the best first.
    Sorted by input length, the window of `size` candidates with the greatest sum of priorities is the batch.
    """
    if len(queue) <= size or size < 1:
        return {ranked.view.id for ranked in queue[: max(0, size)]}
    bar = queue[size - 1].priority * cutoff
    candidates = [ranked for ranked in queue if ranked.priority >= bar]
    candidates.sort(key=lambda ranked: (ranked.view.prompt_tokens, ranked.view.id))
    sums = [0.0, *accumulate(ranked.priority for ranked in candidates)]
    scores = [sums[i + size] - sums[i] for i in range(len(candidates) - size + 1)]
    best = scores.index(max(scores))
    return {ranked.view.id for ranked in candidates[best : best + size]}
