"""Who of the running makes room for what cannot wait for a slot.

vLLM's own priority policy preempts only when KV blocks run out: with slots full and blocks free, urgent requests wait
for a long one to end (vLLM issue 40004). Here slots are what is looked at, and KV decides only how room is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramify.serving.policy.concord.job import NEVER, Job
from ramify.serving.policy.concord.sorted_jobs import Running
from ramify.serving.policy.cost_model import prefill_s
from ramify.serving.policy.types import Capacity, RequestId, State


@dataclass(frozen=True, slots=True)
class Displacement:
    """`starters[i]` takes the slot of `victims[i]`, who is in one of `pause` and `preempt`."""

    starters: tuple[Job, ...] = ()
    victims: tuple[Job, ...] = ()
    pause: tuple[RequestId, ...] = ()
    preempt: tuple[RequestId, ...] = ()


def displace(
    head: Sequence[Job],
    worth: float,
    running: Running,
    capacity: Capacity,
    now: float,
    margin: float,
    contested_margin: float | None = None,
    *,
    pace: bool = False,
) -> Displacement:
    """Pair the queue's head, best first, with the running, worst first, for as long as a trade pays. `head`: what
    stands behind those who start anyhow, one for each that runs; `worth`: the weights of the whole queue.

    `contested_margin`: not all of it can be met, so that a slot's time is always somebody's, and this is the margin
    where no weight tells the two apart; None: all can be met. `pace`: a stream that is ahead of its schedule may
    stand aside for longer than its time between tokens.

    A trade is looked for only where waiting does not do: the i-th in the queue would get the slot that is i-th to
    become free by itself, and that is too late for it.
    """
    # Late in the slot that becomes free for it, and in time in one that is free now.
    ends = zip(head, running.by_end(), strict=False)
    urgent = [job for job, slot_s in ends if job.start_by < now + slot_s and job.late_at > now]
    if not urgent:
        return Displacement()
    victims = iter(sorted(running.jobs(), key=lambda job: (job.late_at > now, job.density, -job.due, job.id)))
    pairs: list[tuple[Job, Job, bool]] = []
    kv_free = capacity.kv_free
    for job in urgent:
        needed = _kv_needed(job)
        for victim in victims:  # each is looked at once: the next is no cheaper for anybody
            pause = capacity.can_pause and (kv_free is None or kv_free >= needed)
            if not (pause or capacity.can_preempt) or (victim.unit is not None and victim.unit == job.unit):
                continue
            if pays(job, victim, capacity, now, margin, pause, contested_margin, worth - job.weight, pace=pace):
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


def pays(
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

    That time is priced at the victim's own density, as the thesis prices a stall at the speed of what is stalled
    (§4.2, goodput_loss). It is the prefill to be done again (nothing for a pause), and where the victim is late for
    having stood aside, also all of the job's: then this is the comparison of the two densities. So it is where slots
    are contested: what the job takes is then missing to another, if not to its victim. A victim that is late
    anyhow loses nothing.

    A density is what a second is worth while there is something to fill it with. `others`, what all else in the queue
    is worth, bounds that from both sides: a victim that becomes late loses its whole worth, less at most `others`
    that are served in the time it leaves; and with it no more than `others` can be lost. Without this a short job
    displaces one that is worth a hundred times as much and has no time to spare, which is why theorem 4.1 fails
    (docs/decisions/050). Where all are worth the same, it changes nothing but the last one in the queue.

    Where slots are contested and no weight tells the two apart, all rests on estimates of length, and the best of
    many differences is mostly error: `contested_margin` is asked for, and one that is late by the reckoning
    has its price (docs/decisions/048).
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
