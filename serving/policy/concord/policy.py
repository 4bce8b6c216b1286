"""Concord, the default: as many programs in time as fit, the least dense left out; those by who must start first.

What it does differently from the thesis's CALM, each for what it brought in replay (docs/decisions/046):

1. A request's price is the GPU time of the *whole remaining program*: its own prefill, net of the expected prefix
   hit, its own answer, its siblings of the stage, and the stages that follow, as the plan or the pattern has them.
2. What cannot be met any more is not served first: it is refused at once, with the least deadline that could be met.
   Ranked is by the median length, refused only on an optimistic one (P10).
3. The order is by laxity (who must start first, starts first). Where not all can be met, it is so among those that
   can, with room for what will come; who would make a denser one late stands behind them, the densest first
   (`keep.py`, docs/decisions/047). It is asked where something has to wait: for a slot, or, with slots free, for the
   prompts before it (docs/decisions/049).
4. A floor for each class holds a share of the slots, so that no objective starves latency-sensitive requests, nor
   best effort that has waited out its default deadline. Where few of the slots are taken, it puts them first.
5. A fork group is one unit: its prompt is charged once, its length is that of the k-th of n to end, and its siblings
   stand together in the order.
6. What must start before a slot becomes free by itself displaces running work: by a pause, where there is KV for
   both, else by preemption, where the gain beats the prefill to be done again.

What does not change while a request waits is worked out once (`jobs.py`); a decision is a few passes over their ids
and one over their deadlines: O(N log N).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse, islice
from math import exp, isnan

from ramify.serving.policy.concord.displacement import Displacement, displace
from ramify.serving.policy.concord.feasibility import Reserve, StartForecast, foresee, keep
from ramify.serving.policy.concord.job import NEVER, Job
from ramify.serving.policy.concord.job_index import DeadlineColumns, JobIndex
from ramify.serving.policy.concord.sorted_jobs import Due
from ramify.serving.policy.goodput import Goodput
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
_MOST_PROMPTS = 0.7  # of the GPU's time, as far as the pace goes by it
_NO_BUDGET = 1_000_000  # no step computes so many
_NUMBERS = (
    *(
        "rank_quantile",
        "reject_quantile",
        "best_effort_s",
        "best_effort_weight",
        "preempt_margin",
        "contested_margin",
    ),
    *("queue_s", "headroom", "reserve", "reserve_s", "later_reserve", "frame_s", "prompts_s"),
)


def _is_number(value: object) -> bool:
    """One that a double holds. True and False are none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)
    except OverflowError:
        return False


@dataclass(frozen=True, slots=True)
class ConcordOptions:
    goodput: Goodput = Goodput.WORKFLOW  # what is to be in time: programs, or their tokens
    rank_quantile: float = 0.5  # of the length, for price and order
    reject_quantile: float = 0.1  # of the length, for saying that a deadline cannot be met
    floors: Mapping[SloClass, float] = field(
        default_factory=lambda: {SloClass.LATENCY: 0.25, SloClass.BEST_EFFORT: 0.05}
    )
    best_effort_s: float = 120.0  # default completion deadline of what names none
    best_effort_weight: float = 0.25  # what one in time is worth beside one with an SLO
    preempt_margin: float = 0.1  # a displaced request's density must be exceeded by this share
    contested_margin: float = 3.0  # the same where not all can be met, and it is worth no more than the other
    queue_s: float = 0.1  # prompts that take longer than this together wait for each other, slots free or not
    headroom: float = 2.0  # nobody is left out while so many times the work that is here could be met
    reserve: float = 4.0  # when it can not, as much is kept as could be met if it were so many times the work,
    reserve_s: float = 20.0  # and of the time that lies further off than this,
    later_reserve: float = 4 / 3  # only so many times: nobody knows that a rush lasts
    refuse: bool = True  # else what cannot be met goes last
    foresee: bool = False  # refuse also what the calls before it will keep from starting in time (foresee.py)
    pace_streams: bool = False  # a stream ahead of its schedule may stand aside for as long as it is ahead
    frame_s: float = 0.0  # displace at most once in so long; 0: at every decision
    prompts_s: float = 10.0  # so long a time says what share of each second prompts take; 0: none is reckoned with
    protect_tbt: bool = True  # bound the prefill of a step by the tightest time between tokens that runs

    def __post_init__(self) -> None:
        """Raises ValueError, naming the option."""
        for name in _NUMBERS:
            value = getattr(self, name)
            if not _is_number(value):
                raise ValueError(f"{name} is {value!r}: it must be a number")
        for name in ("queue_s", "headroom", "reserve", "reserve_s"):
            if getattr(self, name) < 0.0:
                raise ValueError(f"{name} is {getattr(self, name):g}: it must not be below 0")
        if self.later_reserve <= 0.0:
            raise ValueError(f"later_reserve is {self.later_reserve:g}: it must be above 0")


class Concord:
    """`concord`. Keeps between calls only what it can work out again, the lengths that it has seen, and how much time
    prompts took."""

    def __init__(self, options: ConcordOptions | None = None) -> None:
        self.options = options or ConcordOptions()
        self._book = JobIndex(
            self.options.rank_quantile,
            self.options.reject_quantile,
            self.options.best_effort_s,
            self.options.best_effort_weight,
            self.options.goodput,
        )
        self._reserve = Reserve(self.options.reserve, self.options.reserve_s, self.options.later_reserve)
        self._displaced_at = float("-inf")
        self._since: dict[RequestId, tuple[RequestView | None, float]] = {}  # when what runs began, or moved on
        self._prompt_s, self._prompts_at = 0.0, 0.0  # GPU time of the prompts begun until then, decaying

    def observe(self, done: Finished) -> None:
        self._book.learn(done)

    def decide(self, view: View, now: float) -> Verdict:
        capacity, book = view.capacity, self._book
        if self.options.foresee:
            self._follow_starts(view.running, now)
        token_s = book.follow(view, slowdown=self._slowdown(now))
        queue = book.by_laxity()
        next_late = book.next_late(now)
        late: list[RequestId] = []
        drop: tuple[Refusal, ...] = ()
        if too_late := book.late(now):
            late = [job.id for job in too_late]
            queue = list(filterfalse(set(late).__contains__, queue))
            if self.options.refuse:
                # What a client has seen the first tokens of is not taken back: it goes last.
                refused = [job for job in too_late if job.view.generated == 0]
                if refused:
                    wait_s = self._wait_s(queue, capacity, now)
                    drop = tuple([_refusal(job, wait_s, now, token_s) for job in refused])
                late = [job.id for job in too_late if job.view.generated > 0]
        moves = Displacement()
        stands = self._stands(queue, capacity.free)
        contested = stands and not _fits(book.by_deadline(), book.running.by_due(), self.options.headroom, now)
        if contested:
            queue = self._contested(queue, too_late, capacity, now)
        if self.options.refuse and self.options.foresee and len(queue) + capacity.running > capacity.slots:
            hopeless = self._foreseen(queue, capacity, now).hopeless
            drop += tuple([_refusal(job, wait_s, now, token_s) for job, wait_s in hopeless])
            too_late = [*too_late, *[job for job, _ in hopeless]]
            queue = list(filterfalse({job.id for job, _ in hopeless}.__contains__, queue))
        if stands:
            worth = book.worth() - sum([job.weight for job in too_late])
            moves = self._displacement(view, queue, worth, now, contested)
        queue = queue + late if late else queue
        wake_at = min(next_late, book.next_start(now))
        verdict = self._verdict(view, queue, moves, drop, None if wake_at == NEVER else wake_at)
        if self.options.foresee:
            self._since.update(dict.fromkeys([*verdict.admit, *verdict.resume], (None, now)))
        return verdict

    def _contested(
        self, queue: list[RequestId], too_late: list[Job], capacity: Capacity, now: float
    ) -> list[RequestId]:
        """The queue where not all of it can be met."""
        book = self._book
        kept = keep(book.promised(), book.running.by_due(), self._reserve, now)
        queue = list(filter(kept.__contains__, queue))
        rest = filterfalse(kept.__contains__, book.by_density())
        if too_late:
            rest = filterfalse({job.id for job in too_late}.__contains__, rest)
        queue += rest
        return self._with_floors(self._heaviest_first(queue, now), capacity.slots, now)

    def _stands(self, queue: list[RequestId], free: int) -> bool:
        """Does it matter who is first? Prompts are computed one after the other: where they are long, the last of a
        few waits as long as if there were no slot for it. A prompt that siblings share counts for each of them."""
        return len(queue) > free or self._prompts_s(queue) > self.options.queue_s

    def _prompts_s(self, queue: list[RequestId]) -> float:
        return sum([job.prefill_s for job in self._book.jobs(queue)])

    def _wait_s(self, queue: list[RequestId], capacity: Capacity, now: float) -> float:
        """For how long who comes last waits: for a slot, or where one is free for the prompts before its own."""
        if self.options.foresee:
            return max(self._foreseen(queue, capacity, now).wait_s, self._prompts_s(queue))
        if len(queue) < capacity.free:
            return self._prompts_s(queue)
        return sum([job.slot_s for job in self._book.jobs(queue)]) / max(1, capacity.slots)

    def _foreseen(self, queue: list[RequestId], capacity: Capacity, now: float) -> StartForecast:
        """What the queue's order will come to. Running calls that a denser one may displace hold nobody up."""
        running, waiting = self._book.running, list(self._book.jobs(queue))
        least = 0.0
        if capacity.can_pause or capacity.can_preempt:
            least = max([job.density for job in waiting], default=0.0) / (1 + self.options.preempt_margin)
        in_way = [job for job in running.jobs() if job.density >= least]
        held_s = sorted([max(0.0, job.slot_s - (now - self._since[job.id][1])) for job in in_way])
        return foresee(capacity.slots, held_s, waiting, now)

    def _follow_starts(self, calls: Sequence[RequestView], now: float) -> None:
        """A host may see nothing of a running call before its end: then only its time in the slot tells how far it
        is."""
        before, self._since = self._since, {}
        for call in calls:
            view, since = before.get(call.id, (None, now))
            self._since[call.id] = (call, since if view is None or view is call else now)

    def _slowdown(self, now: float) -> float:
        """How many times longer a token takes than in a step without prompts: of each second, the share that prompts
        took lately is not the streams' (docs/decisions/049)."""
        over = self.options.prompts_s
        if over <= 0.0:
            return 1.0
        begun_s, self._book.started_s = self._book.started_s, 0.0
        passed_s = max(0.0, now - self._prompts_at)  # a host's clock may be set back
        self._prompt_s = self._prompt_s * exp(-passed_s / over) + begun_s
        self._prompts_at = now
        return 1.0 / (1.0 - min(_MOST_PROMPTS, self._prompt_s / over))

    def _heaviest_first(self, queue: list[RequestId], now: float) -> list[RequestId]:
        """By density, but that a job which is worth more than all that stands before it, and is late if it waits for
        them, goes first: what greedy packing by density needs to be no worse than the best single job."""
        worth, wait_s, best, heaviest = 0.0, 0.0, None, self._book.heaviest()
        for job in self._book.jobs(queue):
            if worth >= heaviest:
                break
            late = now + wait_s > job.start_by
            if job.weight > worth > 0.0 and late and (best is None or job.weight > best.weight):
                best = job
            worth += job.weight
            wait_s += job.work_s
        return queue if best is None else [best.id, *[id_ for id_ in queue if id_ != best.id]]

    def _with_floors(self, queue: list[RequestId], slots: int, now: float) -> list[RequestId]:
        """Best first, but that each class with a floor and less than its share running goes first up to it.

        Best effort claims its floor only once it has waited out its default deadline: the oldest first.
        """
        first: list[RequestId] = []
        looked_at = 0  # how much of the queue those who go first were found in
        running = self._book.running
        for slo_class, share in self.options.floors.items():
            owed = max(1, round(share * slots)) - running.holds(slo_class)
            if owed <= 0 or share <= 0:
                continue
            if slo_class is SloClass.BEST_EFFORT:
                if overdue := self._book.overdue(now)[:owed]:
                    first += [job.id for job in overdue]
                    looked_at = len(queue)
                continue
            places = (at for at, job in enumerate(self._book.jobs(queue)) if job.view.slo_class is slo_class)
            for at in islice(places, owed):
                first.append(queue[at])
                looked_at = max(looked_at, at + 1)
        if not first:
            return queue
        return [*first, *filterfalse(set(first).__contains__, queue[:looked_at]), *queue[looked_at:]]

    def _displacement(
        self, view: View, queue: list[RequestId], worth: float, now: float, contested: bool
    ) -> Displacement:
        able, running = view.capacity.can_pause or view.capacity.can_preempt, self._book.running
        if not able or not view.running or now < self._displaced_at + self.options.frame_s:
            return Displacement()
        margin = self.options.contested_margin if contested else None
        free = view.capacity.free
        head = list(self._book.jobs(queue[free : free + len(view.running)]))
        options = self.options
        moves = displace(
            head, worth, running, view.capacity, now, options.preempt_margin, margin, pace=options.pace_streams
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
        """Prompt tokens a step may compute so that the tightest stream that runs keeps its time between tokens."""
        if not self.options.protect_tbt:
            return None
        tightest = self._book.running.tightest()
        if tightest is None:
            return None
        step = view.capacity.step
        spare_ms = tightest * 1000 - step.step_ms(len(view.running), self._book.context)
        if spare_ms <= _LEAST_BUDGET * step.per_prefill_ms:
            return _LEAST_BUDGET
        if spare_ms >= _NO_BUDGET * step.per_prefill_ms:  # also where prompts were measured to cost nothing
            return None
        return int(spare_ms / step.per_prefill_ms)


def _fits(waiting: DeadlineColumns, running_due: list[Due], headroom: float, now: float) -> bool:
    """Can all of it be met, with room for what will come? For each deadline, the GPU's time until then covers
    `headroom` times the work due before it, later stages included, and then the request itself; by medians.

    The demand test of earliest-deadline-first on one machine, whose time is what a full batch shares: prefill is in
    it, which slots' time would leave out. `running_due` has the earliest deadline first, and with it the work.
    """
    i, demand = 0, 0.0
    next_due = running_due[0][0] if running_due else NEVER
    for due, before_s, late, work_s in zip(*waiting, strict=True):
        if next_due <= due:
            while i < len(running_due) and running_due[i][0] <= due:
                demand += running_due[i][1]
                i += 1
            next_due = running_due[i][0] if i < len(running_due) else NEVER
        if headroom * demand + before_s > due - now and now < late < NEVER:
            return False
        demand += work_s
    return True


def _refusal(job: Job, wait_s: float, now: float, token_s: float) -> Refusal:
    """`wait_s`: for which it would have to wait, or a call like it that came now."""
    binding = job.binding
    earliest_s = round(job.before_s + wait_s, 3)
    if now >= job.admit_by:
        return Refusal(job.id, f"it was not admitted within {job.admit_by - job.view.arrived:.3f} s", earliest_s)
    if binding.due <= now:
        return Refusal(job.id, f"its deadline passed {now - binding.due:.3f} s ago", earliest_s)
    reason = f"its deadline is in {binding.due - now:.3f} s and it needs at least {earliest_s:.3f} s"
    own_s = min(binding.least_s, job.starts_s + job.prefill_s)
    least_s = own_s + binding.least_tokens * token_s
    needs = Needs(binding.due, binding.least_tokens, least_s, binding.least_s - own_s)
    return Refusal(job.id, reason, earliest_s, needs)
