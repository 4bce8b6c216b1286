"""`Andes`: serves the streams whose readers gain most for the KV that they take.

It differs from the paper in one place. A host may pause a request, which keeps its KV and costs nothing. So a request
that must only give up its slot is paused, and one whose KV is needed is preempted. With `pause=False` it is the
paper's: every victim is preempted and computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ramify.serving.policy.andes.packing import (
    Columns,
    Floats,
    Loss,
    Objective,
    Packed,
    Readers,
    Refiner,
    batch_sizes,
    best_packing,
    gains,
    pack,
)
from ramify.serving.policy.types import Capacity, Finished, Load, RequestId, RequestView, Verdict, View

_GROWTH = 32  # tokens of KV kept free for the next tokens of a request that starts
Taken = tuple[list[int], list[int], list[int]]  # places of: paused to preempt, running to preempt, running to pause


@dataclass(frozen=True, slots=True)
class AndesOptions:
    """Raises ValueError, naming the option, for a value out of range."""

    objective: Objective = Objective.AVERAGE
    horizon_s: float = 30.0  # Δt: QoE is predicted for so many seconds from now
    watermark: float = 0.9  # share of the KV from which on the engine counts as full
    batch_sizes: int = 3  # so many batch sizes are tried
    work_price: float = 0.0  # GPU time for tokens that are computed again counts so many times what serving gains
    refine: bool = True  # cancel changes that cost more than they gain
    pause: bool = True  # pause a victim whose KV is not needed

    def __post_init__(self) -> None:
        if not self.horizon_s > 0:
            raise ValueError(f"horizon_s is {self.horizon_s}: it must be above 0")
        if not 0 < self.watermark <= 1:
            raise ValueError(f"watermark is {self.watermark}: it must be above 0 and at most 1")
        if self.batch_sizes < 1:
            raise ValueError(f"batch_sizes is {self.batch_sizes}: it must be at least 1")


class Andes:
    """The policy `andes`, for one engine. Between calls it keeps only what it can compute again."""

    def __init__(self, options: AndesOptions | None = None) -> None:
        self.options = options or AndesOptions()
        self.decision = Decision  # a baseline chooses in another order
        self._readers = Readers()

    def observe(self, done: Finished) -> None:
        """Do nothing: this policy learns nothing."""

    def must_decide(self, load: Load, now: float) -> bool:
        """Is a decision due although nobody waits? It is if the batch is slower than the fastest reader."""
        return load.step_s > load.tightest_s

    def decide(self, view: View, now: float) -> Verdict:
        calls = [*view.running, *view.paused, *view.waiting]
        columns = self._readers.columns(calls)
        if not calls or not self._full(view, columns):
            return _first_come(view)
        return self.decision(self.options, view, calls, columns, now).verdict()

    def _full(self, view: View, columns: Columns) -> bool:
        """Is the engine short of KV, slots or speed? Otherwise there is nothing to choose (selective triggering)."""
        capacity = view.capacity
        held = float(columns.held.sum())
        if len(view.waiting) + len(view.paused) > capacity.free or capacity.running > capacity.slots + capacity.queue:
            return True
        if capacity.kv_free is not None:
            needed = float(columns.context[len(view.running) + len(view.paused) :].sum())
            if held + needed > self.options.watermark * (held + capacity.kv_free):
                return True
        return _is_slow(capacity, columns, len(view.running) + len(view.paused))


def _is_slow(capacity: Capacity, columns: Columns, batch: int) -> bool:
    """Is a batch of the first so many slower than the fastest reader?"""
    step_s = capacity.step.step_ms(batch, float(columns.context[:batch].sum())) / 1000
    return batch > 0 and step_s > float(columns.tbt_s.min())


def _first_come(view: View) -> Verdict:
    paused = [call.id for call in sorted(view.paused, key=lambda call: (call.arrived, call.id))]
    order = tuple([call.id for call in sorted(view.waiting, key=lambda call: (call.arrived, call.id))])
    resume = tuple(paused[: view.capacity.free])
    return Verdict(admit=order[: view.capacity.free - len(resume)], order=order, resume=resume)


class Decision:
    """One decision of an engine that cannot serve all."""

    def __init__(
        self, options: AndesOptions, view: View, calls: Sequence[RequestView], columns: Columns, now: float
    ) -> None:
        self.options, self.view, self.calls, self.columns, self.now = options, view, calls, columns, now
        self._running = len(view.running)
        self._held = self._running + len(view.paused)  # those with KV come first
        capacity = view.capacity
        free = inf if capacity.kv_free is None else float(capacity.kv_free)
        self.memory = float(columns.held.sum()) + free
        self._slots_free, self._kv_free = capacity.slots + capacity.queue - capacity.running, free
        # Prefills follow each other, but only the first newcomers are sure to start: each counts its own.
        step = capacity.step
        starts = step.per_call_ms * (columns.to_prefill > 0) + step.per_prefill_ms * columns.to_prefill
        self._start_s = starts / 1000

    def verdict(self) -> Verdict:
        packed = self.packed()
        admit, resume, pause, preempt = self._refined(packed)
        taken = set(admit)
        waiting = [self.calls[at].id for at in packed.order[packed.order >= self._held].tolist()]
        order = (*admit, *[id_ for id_ in waiting if id_ not in taken])
        # The packing said that the rest is not worth a preemption. What is free all the same is not left idle.
        spare = max(0, self._slots_free)
        more = list(order[len(admit) : len(admit) + spare]) if self._kv_free > 0 else []
        wake_s = float(self.columns.ahead_s(self.now)[self._running : self._held].min(initial=inf))
        wake_at = self.now + max(wake_s / 2, 0.05) if wake_s < inf else None
        return Verdict(
            admit=(*admit, *more),
            order=order,
            preempt=tuple(preempt),
            pause=tuple(pause),
            resume=tuple(resume),
            wake_at=wake_at,
        )

    def packed(self) -> Packed:
        """Choose whom to serve (§4.2)."""
        options, columns, now = self.options, self.columns, self.now
        capacity = self.view.capacity
        until = now + options.horizon_s
        waits, current = columns.qoe_at(np.array([[until], [now]]))
        # Of equals, those that have KV go on, and the oldest start.
        ties = columns.arrived + np.where(np.arange(len(self.calls)) < self._held, -1e9, 0.0)
        slots = capacity.slots + capacity.queue
        step, mean = capacity.step, float(columns.context.mean())

        def packed(batch: int) -> Packed:
            every_s = step.step_ms(batch, batch * mean) / 1000
            served = columns.served(now, until, self._start_s + every_s, every_s).qoe_at(until)
            gain = gains(options.objective, served, waits, current)
            return self.pack(gain, batch, ties)

        tightest = float(columns.tbt_s.min())
        sizes = batch_sizes(columns.context, self.memory, slots, step, tightest, options.batch_sizes)
        return best_packing(sizes, packed)

    def pack(self, gain: Floats, batch: int, order_by: Floats) -> Packed:
        """Choose at most `batch` requests that fit. A baseline chooses in another way."""
        return pack(gain, self.columns.context, self.memory, batch, order_by)

    def _refined(self, packed: Packed) -> tuple[list[RequestId], list[RequestId], list[RequestId], list[RequestId]]:
        """Return whom to admit, resume, pause and preempt."""
        columns = self.columns
        loss = None
        if self.options.refine and self._running:
            head = Columns(*(getattr(columns, name)[: self._running] for name in Columns.__slots__))
            loss = Loss.of(head, self.now)
        refiner = Refiner(loss)
        victims = _Victims(packed, self._running, self._held, columns, self.now, self.view.capacity.pause_room)
        admit: list[RequestId] = []
        resume: list[RequestId] = []
        can = self._can()
        slots, kv = victims.give_back(-self._slots_free, -self._kv_free, can)
        slots_free, kv_free = self._slots_free + slots, self._kv_free + kv
        new = packed.chosen[packed.chosen >= self._running]
        room, gain, starts_s = columns.context[new] + _GROWTH, packed.gain[new], self._start_s[new]
        work_price = self.options.work_price * packed.value / self.options.horizon_s
        figures = zip(new.tolist(), room.tolist(), gain.tolist(), starts_s.tolist(), strict=True)
        gains_of = packed.gain[: self._held].tolist()
        for at, needed, gained, start_s in figures:
            held = at < self._held
            needed = 0.0 if held else needed
            taken = victims.make_room(slots_free < 1, needed - kv_free, can)
            if taken is None:
                break
            lost_s, lost = self._price(taken, gains_of)
            if not refiner.commits(gained - lost - work_price * lost_s, start_s + lost_s):
                break
            slots, kv = victims.take(taken)
            slots_free += slots - 1
            kv_free += kv - needed
            (resume if held else admit).append(self.calls[at].id)
        self._slots_free, self._kv_free = slots_free, kv_free
        if can[0] and _is_slow(self.view.capacity, columns, self._running):
            victims.pause_down_to(max(1, len(packed.chosen)))
        calls = self.calls
        return admit, resume, [calls[at].id for at in victims.pause], [calls[at].id for at in victims.preempt]

    def _price(self, taken: Taken, gains_of: Sequence[float]) -> tuple[float, float]:
        """Return what an exchange takes: seconds to compute again what it preempts, and the gain of whom it stops."""
        lost, stopped, aside = taken
        if not lost and not stopped:  # nearly all of them: nothing is computed again
            return 0.0, gains_of[aside[0]] if aside else 0.0
        again = sum([float(self.columns.held[at]) for at in (*lost, *stopped)])
        missed = sum([gains_of[at] for at in (*stopped, *aside)])
        return self.view.capacity.step.per_prefill_ms * again / 1000, missed

    def _can(self) -> tuple[bool, bool]:
        capacity = self.view.capacity
        return capacity.can_pause and self.options.pause, capacity.can_preempt


class _Victims:
    """Requests that are not chosen and hold a slot or KV, the first to give it up first.

    Paused ones give up their KV first, those whose readers need them last before others; then running ones of the
    least priority.
    """

    def __init__(
        self, packed: Packed, running: int, held: int, columns: Columns, now: float, pause_room: int | None
    ) -> None:
        chosen = np.zeros(len(packed.order), dtype=bool)
        chosen[packed.chosen] = True
        ahead = columns.ahead_s(now)
        paused = [at for at in range(running, held) if not chosen[at]]
        self._paused: list[int] = sorted(paused, key=lambda at: ahead[at])
        idle = packed.order[packed.order < running]
        self._running: list[int] = idle[~chosen[idle]].tolist()
        self._chosen_running = int(chosen[:running].sum())
        self._held: list[float] = columns.held[:held].tolist()
        self._room = inf if pause_room is None else pause_room
        self.pause: list[int] = []
        self.preempt: list[int] = []

    def make_room(self, slot: bool, kv: float, can: tuple[bool, bool]) -> Taken | None:
        """Return paused ones to preempt, running ones to preempt and running ones to pause; None if too few."""
        can_pause, can_preempt = can[0] and len(self.pause) < self._room, can[1]
        lost: list[int] = []
        stopped: list[int] = []
        while kv > 0:
            if not can_preempt:
                return None
            left = self._paused[: len(self._paused) - len(lost)]
            if left:
                lost.append(left[-1])
            elif len(stopped) < len(self._running):
                stopped.append(self._running[-1 - len(stopped)])
            else:
                return None
            kv -= self._held[(lost if left else stopped)[-1]]
        if not slot or stopped:
            return lost, stopped, []
        if not self._running or not (can_pause or can_preempt):
            return None
        if can[0] and not can_pause:
            return None  # a slot alone is worth a pause, not a second prefill
        worst = [self._running[-1]]
        return (lost, [], worst) if can_pause else (lost, worst, [])

    def pause_down_to(self, batch: int) -> None:
        """Pause running ones until only so many run: the batch is too slow."""
        while self._running and self._chosen_running + len(self._running) > batch and len(self.pause) < self._room:
            self.pause.append(self._running.pop())

    def give_back(self, slots: int, kv: float, can: tuple[bool, bool]) -> tuple[int, float]:
        """Free so many slots and so much KV, or as much as is possible: they were given to others."""
        freed, tokens = 0, 0.0
        while freed < slots or tokens < kv:
            taken = self.make_room(freed < slots, kv - tokens, can)
            if taken is None:
                break
            more, held = self.take(taken)
            freed, tokens = freed + more, tokens + held
        return freed, tokens

    def take(self, taken: Taken) -> tuple[int, float]:
        """Note the victims. Returns the slots and the tokens of KV that they free."""
        lost, stopped, aside = taken
        if not lost and not stopped:
            if aside:
                self.pause.append(self._running.pop())
            return len(aside), 0.0
        del self._paused[len(self._paused) - len(lost) :]
        del self._running[len(self._running) - len(stopped) - len(aside) :]
        self.preempt += [*lost, *stopped]
        self.pause += aside
        return len(stopped) + len(aside), sum([self._held[at] for at in (*lost, *stopped)])
