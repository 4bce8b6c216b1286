"""Which running requests give their slots to requests that cannot wait for one.

vLLM's own priority policy preempts only when KV blocks run out: with slots full and blocks free, urgent requests
wait for a long one to end (vLLM issue 40004). Here the slots decide, and KV only says whether a request is paused
or preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.serving.policy.concord.jobs import NEVER, Job, RunningJobs
from ramify.serving.policy.cost_model import prefill_s
from ramify.serving.policy.types import Capacity, RequestId, State


@dataclass(frozen=True, slots=True)
class Displacement:
    """`starters[i]` takes the slot of `victims[i]`. Each victim is in one of `pause` and `preempt`."""

    starters: tuple[Job, ...] = ()
    victims: tuple[Job, ...] = ()
    pause: tuple[RequestId, ...] = ()
    preempt: tuple[RequestId, ...] = ()


def plan_displacement(
    head: Sequence[Job],
    worth: float,
    running: RunningJobs,
    capacity: Capacity,
    now: float,
    margin: float,
    contested_margin: float | None = None,
    *,
    pace: bool = False,
) -> Displacement:
    """Pair the head of the queue, best first, with running jobs, worst first, as long as the trade pays.

    A trade is considered only for a job that waiting does not help: the i-th in the queue would get the slot that
    becomes free as the i-th, and that is too late for it.

    Args:
        head: the jobs that get no slot otherwise, best first; at most as many as there are running jobs.
        worth: the sum of the weights of the whole queue.
        running: the running jobs.
        capacity: the engine.
        now: the time in seconds.
        margin: by what share a job must be worth more than what the trade costs.
        contested_margin: the same if not all jobs can meet their deadlines and no weight tells two apart; None if all
            can. A slot's time is then always missing to somebody.
        pace: a stream that is ahead of its schedule may stand aside for longer than its time between tokens.
    """
    # Jobs that are late in the slot that becomes free for them, and in time in one that is free now.
    ends = zip(head, running.by_end(), strict=False)
    urgent = [job for job, slot_s in ends if job.start_by < now + slot_s and job.late_at > now]
    if not urgent:
        return Displacement()
    victims = iter(sorted(running.jobs(), key=lambda job: (job.late_at > now, job.density, -job.due, job.id)))
    pairs: list[tuple[Job, Job, bool]] = []
    kv_free = capacity.kv_free
    for job in urgent:
        needed = _kv_needed(job)
        for victim in victims:  # each is considered once: the next one is no cheaper for any job
            pause = capacity.can_pause and (kv_free is None or kv_free >= needed)
            if not (pause or capacity.can_preempt) or (victim.unit is not None and victim.unit == job.unit):
                continue
            others = worth - job.weight
            if trade_pays(job, victim, capacity, now, margin, pause, contested_margin, others, pace=pace):
                pairs.append((job, victim, pause))
                kv_free = kv_free - needed if pause and kv_free is not None else kv_free
                break
    return Displacement(
        tuple([job for job, _, _ in pairs]),
        tuple([victim for _, victim, _ in pairs]),
        tuple([victim.id for _, victim, pause in pairs if pause]),
        tuple([victim.id for _, victim, pause in pairs if not pause]),
    )


def _kv_needed(job: Job) -> int:
    return 0 if job.view.state is State.PAUSED else int(job.view.to_prefill + job.own_tokens)


def trade_pays(
    job: Job,
    victim: Job,
    capacity: Capacity,
    now: float,
    margin: float,
    pause: bool,
    contested_margin: float | None = None,
    others: float = NEVER,
    *,
    pace: bool = False,
) -> bool:
    """Is `job` in time worth more than the GPU time that the trade takes from its victim?

    The time is priced at the victim's own density, as the thesis prices a stall at the speed of what is stalled
    (§4.2, goodput_loss). It is the prefill to be done again (none for a pause). If the victim becomes late, it is
    also the time of the job itself: the test then compares the two densities. The same holds if slots are
    contested, since what the job takes is then missing to another, if not to its victim. A victim that is late in
    any case loses nothing.

    A density says what a second is worth while there is work to fill it with. `others`, the worth of everything
    else in the queue, limits that on both sides. A victim that becomes late loses its whole worth, less at most
    `others`, which may be served in the time that it leaves; and no more than `others` can be lost besides. Without
    this limit a short job displaces one that is worth a hundred times as much and has no time to spare, which is
    why theorem 4.1 fails (docs/decisions/050). Where all jobs are worth the same, it changes only the last one in
    the queue.

    If slots are contested and no weight tells the two apart, the choice rests on estimates of length, and the best
    of many differences is mostly error. So `contested_margin` is required then, and a victim that is late by the
    estimate still has its price (docs/decisions/047).
    """
    contested = contested_margin is not None
    if contested_margin is not None and job.given <= victim.given:
        margin = contested_margin
    elif victim.late_at <= now:
        return True
    again = 0 if pause else max(0, victim.view.computed - victim.view.cached_tokens)
    price_s = prefill_s(capacity.step, again)
    aside_s = job.slot_s + price_s
    tbt = victim.view.tbt
    lost = now + aside_s > victim.start_by or (tbt is not None and aside_s > tbt and not pace)
    if contested or lost:
        price_s += job.weight / job.density
    loss = victim.density * price_s
    if lost:
        loss = min(max(loss, victim.weight - others), victim.weight + others)
    elif contested:
        loss = min(loss, others)
    return job.weight > (1 + margin) * loss
