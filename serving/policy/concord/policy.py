"""Concord, the default policy: as many programs in time as fit, leaving out the least dense.

Density is the worth of a program for each second of GPU time that it still needs. Concord differs from the thesis's
CALM in seven ways. Each is there for what it brought in replay (docs/decisions/046).

1. **Whole programs.** A request's price is the GPU time of the whole remaining program: its own prefill, net of the
   expected prefix hit, its own answer, its siblings of the stage, and the later stages of the plan or pattern.
2. **Refusal.** What cannot be met any more is refused at once, with the least deadline that could be met. Requests
   are ranked by the median length, and refused only on an optimistic one.
3. **Order.** The request that must start first goes first. If not all can be met, this holds for a set that can,
   with room for later arrivals. The others follow, the densest first (`feasibility`, docs/decisions/047). This
   matters only if something has to wait: for a slot, or with slots free for the prompts before it
   (docs/decisions/046).
4. **Floors.** Each class with a floor gets a share of the slots, so that no objective starves latency-sensitive
   requests, or best effort whose default deadline has passed.
5. **Fork groups.** A fork group is one unit: its prompt counts once, its length is that of the k-th of n answers,
   and its siblings are together in the order.
6. **Clients.** Where several clients have keys of their own, each is sure of an equal share of the slots
   (`client_shares`). It matters only if something has to wait.
7. **Displacement.** A request that must start before a slot becomes free displaces running work: by a pause if
   there is KV for both, else by preemption if the gain exceeds the repeated prefill (`displacement`).

What stays the same while a request waits is computed once (`job_index`). A decision takes a few passes over the ids
and one over the deadlines: O(N log N).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import filterfalse, islice
from math import exp

from ramify.serving.policy.concord.displacement import Displacement, plan_displacement
from ramify.serving.policy.concord.feasibility import Reserve, StartForecast, feasible_set, fits, forecast_starts
from ramify.serving.policy.concord.job_index import JobIndex
from ramify.serving.policy.concord.jobs import NEVER, Job
from ramify.serving.policy.concord.options import ConcordOptions
from ramify.serving.policy.refusals import not_admitted
from ramify.serving.policy.types import (
    Capacity,
    Finished,
    Needs,
    Refusal,
    RequestId,
    RequestView,
    SloClass,
    Verdict,
    View,
)

_LEAST_BUDGET = 64  # prompt tokens of a step, however little time the streams leave
_MOST_PROMPTS = 0.7  # largest share of the GPU's time that counts as taken by prompts
_NO_BUDGET = 1_000_000  # no step computes so many prompt tokens


class Concord:
    """The policy `concord`, for one engine.

    Between calls it keeps what it can compute again, the lengths that it has seen, and how much time prompts took.
    """

    def __init__(self, options: ConcordOptions | None = None) -> None:
        self.options = options or ConcordOptions()
        self._tuning = tuning = self.options.tuning
        self._index = JobIndex(
            tuning.rank_quantile,
            tuning.reject_quantile,
            tuning.best_effort_s,
            tuning.best_effort_weight,
            self.options.goodput,
        )
        self._reserve = Reserve(tuning.reserve, tuning.reserve_s, tuning.later_reserve)
        self._use = ClientUse()
        self._displaced_at = float("-inf")
        # when each running call started or moved on
        self._since: dict[RequestId, tuple[RequestView | None, float]] = {}
        self._prompt_s, self._prompts_at = 0.0, 0.0  # decaying GPU time of the prompts started until then

    def observe(self, done: Finished) -> None:
        self._index.learn(done)
        self._use.learn(done)

    def decide(self, view: View, now: float) -> Verdict:
        capacity, index = view.capacity, self._index
        if self._tuning.foresee:
            self._follow_starts(view.running, now)
        token_s = index.follow(view, slowdown=self._slowdown(now))
        queue = index.by_laxity()
        next_late = index.next_late(now)
        late: list[RequestId] = []
        drop: tuple[Refusal, ...] = ()
        if too_late := self._too_late(now):
            late = [job.id for job in too_late]
            queue = list(filterfalse(set(late).__contains__, queue))
            if self.options.refuse:
                # A call whose first tokens the client has seen is not refused: it goes last.
                refused = [job for job in too_late if job.view.generated == 0]
                if refused:
                    wait_s = self._wait_s(queue, capacity, now)
                    drop = tuple([_refusal(job, wait_s, now, token_s) for job in refused])
                late = [job.id for job in too_late if job.view.generated > 0]
        moves = Displacement()
        order_matters = self._order_matters(queue, capacity.free)
        contested = order_matters and not fits(
            index.by_deadline(), index.running.by_due(), self._tuning.headroom, now
        )
        if contested:
            queue = self._contested(queue, too_late, capacity, now)
        if order_matters and len(index.clients) > 1 and self._tuning.client_share:
            queue = self._with_client_shares(queue, view, contested, now)
        if self.options.refuse and self._tuning.foresee and len(queue) + capacity.running > capacity.slots:
            hopeless = self._forecast(queue, capacity, now).hopeless
            drop += tuple([_refusal(job, wait_s, now, token_s) for job, wait_s in hopeless])
            too_late = [*too_late, *[job for job, _ in hopeless]]
            queue = list(filterfalse({job.id for job, _ in hopeless}.__contains__, queue))
        if order_matters:
            worth = index.worth() - sum([job.weight for job in too_late])
            moves = self._displacement(view, queue, worth, now, contested)
        queue = queue + late if late else queue
        wake_at = min(next_late, index.next_start(now))
        verdict = self._verdict(view, queue, moves, drop, None if wake_at == NEVER else wake_at)
        if self._tuning.foresee:
            self._since.update(dict.fromkeys([*verdict.admit, *verdict.resume], (None, now)))
        return verdict

    def _too_late(self, now: float) -> list[Job]:
        """Return the jobs that cannot be in time any more. Of those without a deadline, only the ones to refuse: the
        others keep their places."""
        refuse = self.options.refuse
        return [job for job in self._index.late(now) if job.counts or (refuse and job.view.generated == 0)]

    def _contested(
        self, queue: list[RequestId], too_late: list[Job], capacity: Capacity, now: float
    ) -> list[RequestId]:
        """Return the queue if not all of it can be met: first what can, then the rest, the densest first."""
        index = self._index
        kept = feasible_set(index.promised(), index.running.by_due(), self._reserve, now)
        queue = list(filter(kept.__contains__, queue))
        rest = filterfalse(kept.__contains__, index.by_density())
        if too_late:
            rest = filterfalse({job.id for job in too_late}.__contains__, rest)
        queue += rest
        return self._with_floors(self._heaviest_first(queue, now), capacity.slots, now)

    def _order_matters(self, queue: list[RequestId], free: int) -> bool:
        """Does the order matter? It does if slots are missing, or if the prompts are long.

        Prompts are computed one after the other: the last of a few long ones waits as long as if it had no slot. A
        prompt that siblings share counts for each of them.
        """
        return len(queue) > free or self._prompts_s(queue) > self._tuning.queue_s

    def _prompts_s(self, queue: list[RequestId]) -> float:
        return sum([job.prefill_s for job in self._index.jobs(queue)])

    def _wait_s(self, queue: list[RequestId], capacity: Capacity, now: float) -> float:
        """Return how long the last call of the queue waits: for a slot, or if one is free, for the prompts before
        it.
        """
        if self._tuning.foresee:
            return max(self._forecast(queue, capacity, now).wait_s, self._prompts_s(queue))
        if len(queue) < capacity.free:
            return self._prompts_s(queue)
        return sum([job.slot_s for job in self._index.jobs(queue)]) / max(1, capacity.slots)

    def _forecast(self, queue: list[RequestId], capacity: Capacity, now: float) -> StartForecast:
        """Forecast the starts in this order. A running call that a denser one may displace does not count as in the
        way.
        """
        running, waiting = self._index.running, list(self._index.jobs(queue))
        least = 0.0
        if capacity.can_pause or capacity.can_preempt:
            least = max([job.density for job in waiting], default=0.0) / (1 + self._tuning.preempt_margin)
        in_way = [job for job in running.jobs() if job.density >= least]
        held_s = sorted([max(0.0, job.slot_s - (now - self._since[job.id][1])) for job in in_way])
        return forecast_starts(capacity.slots, held_s, waiting, now)

    def _follow_starts(self, calls: Sequence[RequestView], now: float) -> None:
        """Note since when each running call shows no progress.

        A host may see nothing of a call before its end: then only its time in the slot tells how far it is.
        """
        before, self._since = self._since, {}
        for call in calls:
            view, since = before.get(call.id, (None, now))
            self._since[call.id] = (call, since if view is None or view is call else now)

    def _slowdown(self, now: float) -> float:
        """Return how many times longer a token takes than in a step without prompts.

        Of each second, the share that prompts took lately is missing to the streams (docs/decisions/046).
        """
        over = self._tuning.prompts_s
        if over <= 0.0:
            return 1.0
        begun_s, self._index.started_s = self._index.started_s, 0.0
        passed_s = max(0.0, now - self._prompts_at)  # a host's clock may be set back
        self._prompt_s = self._prompt_s * exp(-passed_s / over) + begun_s
        self._prompts_at = now
        return 1.0 / (1.0 - min(_MOST_PROMPTS, self._prompt_s / over))

    def _heaviest_first(self, queue: list[RequestId], now: float) -> list[RequestId]:
        """Move a job to the head if it is worth more than all jobs before it and would be late behind them.

        Greedy packing by density needs this to be no worse than the best single job.
        """
        worth, wait_s, best, heaviest = 0.0, 0.0, None, self._index.heaviest()
        for job in self._index.jobs(queue):
            if worth >= heaviest:
                break
            late = now + wait_s > job.start_by
            if job.weight > worth > 0.0 and late and (best is None or job.weight > best.weight):
                best = job
            worth += job.weight
            wait_s += job.work_s
        return queue if best is None else [best.id, *[id_ for id_ in queue if id_ != best.id]]

    def _with_floors(self, queue: list[RequestId], slots: int, now: float) -> list[RequestId]:
        """Move requests of each class that holds fewer slots than its floor to the head, up to the floor.

        Best effort gets its floor only once its default deadline has passed: the oldest first.
        """
        first: list[RequestId] = []
        looked_at = 0  # the part of the queue that the moved requests were found in
        running = self._index.running
        for slo_class, share in self.options.floors.items():
            owed = max(1, round(share * slots)) - running.holds(slo_class)
            if owed <= 0 or share <= 0:
                continue
            if slo_class is SloClass.BEST_EFFORT:
                there = set(queue)  # without those that are refused
                if overdue := [job.id for job in self._index.overdue(now) if job.id in there][:owed]:
                    first += overdue
                    looked_at = len(queue)
                continue
            places = (at for at, job in enumerate(self._index.jobs(queue)) if job.view.slo_class is slo_class)
            for at in islice(places, owed):
                first.append(queue[at])
                looked_at = max(looked_at, at + 1)
        if not first:
            return queue
        return [*first, *filterfalse(set(first).__contains__, queue[:looked_at]), *queue[looked_at:]]

    def _with_client_shares(self, queue: list[RequestId], view: View, contested: bool, now: float) -> list[RequestId]:
        """Move calls of clients that hold less than their share of the slots to the head.

        While all deadlines fit, that is done only among best effort: a deadline is met by the order as it is.
        """
        held = Counter([call.client for call in view.running])
        share = max(1, int(self._tuning.client_share * view.capacity.slots / len(self._index.clients)))
        jobs = in_their_places(
            list(self._index.jobs(queue)),
            lambda job: contested or not job.counts,
            lambda some: with_client_shares(some, held, share, lambda client: self._use.of(client, now)),
        )
        return [job.id for job in jobs]

    def _displacement(
        self, view: View, queue: list[RequestId], worth: float, now: float, contested: bool
    ) -> Displacement:
        able, running = view.capacity.can_pause or view.capacity.can_preempt, self._index.running
        if not able or not view.running or now < self._displaced_at + self._tuning.frame_s:
            return Displacement()
        margin = self._tuning.contested_margin if contested else None
        free = view.capacity.free
        head = list(self._index.jobs(queue[free : free + len(view.running)]))
        tuning = self._tuning
        moves = plan_displacement(
            head, worth, running, view.capacity, now, tuning.preempt_margin, margin, pace=tuning.pace_streams
        )
        if moves.victims:
            self._displaced_at = now
        return moves

    def _verdict(
        self,
        view: View,
        queue: list[RequestId],
        moves: Displacement,
        drop: tuple[Refusal, ...],
        wake_at: float | None,
    ) -> Verdict:
        order, resume = queue, list[RequestId]()
        admit = order[: view.capacity.free]
        if moves.starters or view.paused:
            admit += [job.id for job in moves.starters]
            paused = {call.id for call in view.paused}
            resume = [id_ for id_ in admit if id_ in paused]
            admit = [id_ for id_ in admit if id_ not in paused]
            placed = paused.union(admit)
            order = admit + list(filterfalse(placed.__contains__, order))
        return Verdict(
            admit=tuple(admit),
            order=tuple(order),
            preempt=moves.preempt,
            pause=moves.pause,
            resume=tuple(resume),
            drop=drop,
            budget=self._budget(view),
            wake_at=wake_at,
        )

    def _budget(self, view: View) -> int | None:
        """Return how many prompt tokens a step may compute so that the tightest stream keeps its time between
        tokens.
        """
        if not self._tuning.protect_tbt:
            return None
        tightest = self._index.running.tightest()
        if tightest is None:
            return None
        step = view.capacity.step
        spare_ms = tightest * 1000 - step.step_ms(len(view.running), self._index.context)
        if spare_ms <= _LEAST_BUDGET * step.per_prefill_ms:
            return _LEAST_BUDGET
        if spare_ms >= _NO_BUDGET * step.per_prefill_ms:  # even if prompts were measured to cost nothing
            return None
        return int(spare_ms / step.per_prefill_ms)


def _refusal(job: Job, wait_s: float, now: float, token_s: float) -> Refusal:
    """Make the refusal of a job. `wait_s`: how long it, or a call like it that came now, would have to wait."""
    binding = job.binding
    earliest_s = round(job.before_s + wait_s, 3)
    if now >= job.admit_by:
        return not_admitted(job.view, job.admit_by, earliest_s)
    if binding.due <= now:
        return Refusal(job.id, f"its deadline passed {now - binding.due:.3f} s ago", earliest_s)
    reason = f"its deadline is in {binding.due - now:.3f} s and it needs at least {earliest_s:.3f} s"
    own_s = min(binding.least_s, job.starts_s + job.prefill_s)
    least_s = own_s + binding.least_tokens * token_s
    needs = Needs(binding.due, binding.least_tokens, least_s, binding.least_s - own_s)
    return Refusal(job.id, reason, earliest_s, needs)


_MEMORY_S = 60.0  # over which what a client had is forgotten: staying away for longer gains nothing


class ClientUse:
    """How many tokens each client had lately."""

    def __init__(self) -> None:
        self._had: dict[str, tuple[float, float]] = {}  # tokens, and when that was

    def learn(self, done: Finished) -> None:
        client = done.view.client
        if client:
            had = self.of(client, done.at) + done.view.prompt_tokens + done.view.generated
            self._had[client] = had, done.at

    def of(self, client: str, now: float) -> float:
        tokens, at = self._had.get(client, (0.0, now))
        return tokens * exp(-max(0.0, now - at) / _MEMORY_S)


def with_client_shares(
    queue: Sequence[Job], held: Mapping[str, int], share: int, used: Callable[[str], float]
) -> list[Job]:
    """Return the queue with those jobs first by which each client comes to hold `share` slots.

    This is max-min fairness in slots: the first slot goes to the client that holds least and, of equals, had least
    lately. What a client does not ask for goes to the others, in the queue's order.

    Args:
        queue: the jobs in the policy's order.
        held: the slots that each client has now.
        share: how many slots a client is sure of.
        used: what a client had lately.
    """
    slots = dict(held)
    first, rest = list[tuple[int, float, int, Job]](), list[Job]()
    for place, job in enumerate(queue):
        client = job.view.client
        holds = slots.get(client, 0)
        if holds < share:
            slots[client] = holds + 1
            first.append((holds, used(client), place, job))
        else:
            rest.append(job)
    first.sort(key=lambda one: one[:3])
    return [job for *_, job in first] + rest


def in_their_places(
    queue: Sequence[Job], concerned: Callable[[Job], bool], change: Callable[[Sequence[Job]], list[Job]]
) -> list[Job]:
    """Reorder only the jobs that are concerned: together they keep the places that they have."""
    changed = iter(change([job for job in queue if concerned(job)]))
    return [next(changed) if concerned(job) else job for job in queue]
