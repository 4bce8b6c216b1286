"""An engine of slots and steps, and generated programs, for comparing policies under overload.

A step computes one token for each running call and up to a budget of prompt tokens, as in vLLM, and takes the time of
the step model. `benchmarks/replay/simulation/simulated_engine.py` has vLLM's real scheduler, a hundred times slower.
Programs are latency-sensitive, due as a whole, and compound, in equal shares.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    Finished,
    Policy,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
    View,
)
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch

_SPREAD, _LONGEST = 0.7, 1500
_A_STEP = 8192  # prompt tokens
_REFRESH, _DECIDE_EVERY = 16, 16  # tokens, steps: as the plug-in's options have it
_KINDS = (SloClass.LATENCY, SloClass.DEADLINE, SloClass.COMPOUND)


@dataclass(frozen=True, slots=True)
class Stage:
    calls: tuple[tuple[int, int], ...]  # prompt and answer of each
    median: float
    tool_s: float  # before it


@dataclass(frozen=True, slots=True)
class Program:
    at: float
    kind: SloClass
    stages: tuple[Stage, ...]
    due_s: float


@dataclass(slots=True)
class Call:
    view: RequestView
    program: int
    left: int  # tokens of the answer still to come
    to_prefill: int = 0
    generated: int = 0
    times: list[float] = field(default_factory=list)  # of every token, for the latency-sensitive only


def programs(rate: float, seconds: float, seed: int, tightness: float = 1.0) -> list[Program]:
    """Poisson arrivals of `rate` programs a second; deadlines of 20 s a stage over `tightness`."""
    chance, now, made = random.Random(seed), 0.0, []
    while (now := now + chance.expovariate(rate)) < seconds:
        kind = chance.choice(_KINDS)
        stages = []
        for number in range(chance.choice([2, 3, 3, 4, 5]) if kind is SloClass.COMPOUND else 1):
            width = chance.choice([1, 1, 2, 3]) if kind is SloClass.COMPOUND else 1
            median = chance.choice([60.0, 130.0, 250.0])
            calls = tuple((_drawn(chance, 1000, 20), _drawn(chance, median, 4)) for _ in range(width))
            stages.append(Stage(calls, median, chance.uniform(0.2, 1.5) if number else 0.0))
        made.append(Program(now, kind, tuple(stages), 20.0 * len(stages) / tightness))
    return made


def _drawn(chance: random.Random, median: float, least: int) -> int:
    return max(least, min(_LONGEST, int(median * math.exp(_SPREAD * chance.gauss(0, 1)))))


def _sketch(median: float) -> LengthSketch:
    normal = NormalDist()
    z = [normal.inv_cdf(min(max(level, 0.0005), 0.99995)) for level in LEVELS]
    return LengthSketch(LEVELS, tuple(max(1.0, min(_LONGEST, median * math.exp(_SPREAD * at))) for at in z))


class Machine:
    """Runs programs under one policy; `attained` says which came in time."""

    def __init__(self, policy: Policy, work: Sequence[Program], slots: int = 64, *, preempts: bool = True) -> None:
        self.policy, self.work, self.slots = policy, work, slots
        self.now, self.moves, self.refused = 0.0, Counter[str](), 0
        self._model, self._preempts = StepModel(), preempts
        self._calls: dict[RequestId, Call] = {}
        self._queue: list[RequestId] = []
        self._running: list[RequestId] = []
        self._paused: list[RequestId] = []
        self._arrivals = [(program.at, number, 0) for number, program in enumerate(work)]
        heapq.heapify(self._arrivals)
        self._left: dict[int, int] = {}
        self._next_id, self._wake, self._decided, self._steps = 0, math.inf, 0, 0
        self.met: dict[int, bool] = {}

    def run(self) -> None:
        while self._arrivals or self._calls:
            came = self._arrive()
            if not self._calls:
                self.now = self._arrivals[0][0]
                continue
            if (self._queue or self._paused) and (
                came or self.now >= self._wake or self._steps - self._decided >= _DECIDE_EVERY
            ):
                self._decide()
            self._step()

    def attained(self, begin: float, end: float) -> dict[str, float]:
        """Return the shares in time of programs that arrived between `begin` and `end`, by kind and of all."""
        here = [(p.kind, self.met.get(i, False)) for i, p in enumerate(self.work) if begin <= p.at < end]
        share = {kind.value: [met for k, met in here if k is kind] for kind in _KINDS}
        every = {**share, "all": [met for _, met in here]}
        return {name: sum(met) / max(1, len(met)) for name, met in every.items()}

    def _arrive(self) -> bool:
        came = False
        while self._arrivals and self._arrivals[0][0] <= self.now:
            _, number, stage = heapq.heappop(self._arrivals)
            self._add(number, stage)
            came = True
        return came

    def _add(self, number: int, at: int) -> None:
        program, stage = self.work[number], self.work[number].stages[at]
        compound = None
        if program.kind is SloClass.COMPOUND:
            rest = tuple(StageEstimate(len(s.calls), 1000.0, s.median, s.tool_s) for s in program.stages[at + 1 :])
            last = at == len(program.stages) - 1
            due = program.at + program.due_s
            compound = CompoundView(str(number), at, len(program.stages), len(stage.calls), last, due, rest)
        self._left[number] = len(stage.calls)
        for prompt, answer in stage.calls:
            id_ = RequestId(self._next_id)
            self._next_id += 1
            latency = program.kind is SloClass.LATENCY
            view = RequestView(
                id_,
                self.now,
                program.kind,
                None if latency else program.at + program.due_s,
                program.at + 2.0 if latency else None,
                0.1 if latency else None,
                prompt_tokens=prompt,
                sketch=_sketch(stage.median),
                compound=compound,
            )
            self._calls[id_] = Call(view, number, answer, prompt)
            self._queue.append(id_)

    def _seen(self, id_: RequestId, state: State) -> RequestView:
        call = self._calls[id_]
        view, generated = call.view, call.generated
        if (
            view.state is not state
            or generated - view.generated >= _REFRESH
            or (generated > 0) != (view.generated > 0)
        ):
            held = state in (State.RUNNING, State.PAUSED)
            computed = view.prompt_tokens + generated - call.to_prefill if held else 0
            call.view = replace(view, state=state, generated=generated, computed=computed)
        return call.view

    def _decide(self) -> None:
        waiting = [self._seen(i, State.PREEMPTED if self._calls[i].times else State.WAITING) for i in self._queue]
        running = [self._seen(i, State.RUNNING) for i in self._running]
        paused = [self._seen(i, State.PAUSED) for i in self._paused]
        capacity = Capacity(
            self.slots, len(running), 10**6, self._model, self._preempts, self._preempts, can_cancel=True
        )
        verdict = self.policy.decide(View(capacity, waiting, running, paused), self.now)
        self._decided, self._wake = self._steps, math.inf if verdict.wake_at is None else verdict.wake_at
        for refusal in verdict.drop:
            self._drop(refusal.id)
        for id_ in verdict.preempt:
            call = self._calls[id_]
            call.to_prefill = call.view.prompt_tokens + call.generated
            self._running.remove(id_)
        self._paused += verdict.pause
        self._running = [id_ for id_ in self._running if id_ not in verdict.pause] + list(verdict.resume)
        self._paused = [id_ for id_ in self._paused if id_ not in verdict.resume]
        self._queue = [*verdict.order, *verdict.preempt]
        self.moves.update(preempt=len(verdict.preempt), pause=len(verdict.pause), drop=len(verdict.drop))

    def _drop(self, id_: RequestId) -> None:
        self.refused += 1
        call = self._calls.pop(id_)
        for where in (self._queue, self._running, self._paused):
            if id_ in where:
                where.remove(id_)
        self.met[call.program] = False

    def _step(self) -> None:
        """Do one step, or several at once if nothing happens in between."""
        room, admits = self._a_step_has(), 0
        while self._queue and len(self._running) < self.slots and room > 0:
            id_ = self._queue.pop(0)
            self._running.append(id_)
            room -= self._calls[id_].to_prefill
            admits += 1
        calls = [self._calls[id_] for id_ in self._running]
        budget, computed = _A_STEP, 0
        decoding = []
        for call in calls:
            part = min(call.to_prefill, budget)
            call.to_prefill -= part
            budget -= part
            computed += part
            if call.to_prefill == 0:
                decoding.append(call)
        count = 1
        context = sum(call.view.prompt_tokens + call.generated for call in calls)
        step_s = self._model.step_ms(len(calls), context, computed) / 1000
        if not computed:
            count = self._calm_steps(decoding, step_s)
        self._steps += count
        for call in decoding:
            call.generated += count
            call.left -= count
            call.times += [self.now + step_s * (i + 1) for i in range(count)]
        self.now += step_s * count
        for call in [call for call in decoding if call.left <= 0]:
            self._end(call)

    def _a_step_has(self) -> int:
        return _A_STEP - sum(self._calls[id_].to_prefill for id_ in self._running)

    def _calm_steps(self, decoding: list[Call], step_s: float) -> int:
        most = min([call.left for call in decoding], default=1)
        upcoming = min(self._arrivals[0][0] if self._arrivals else math.inf, self._wake)
        until = max(1, math.ceil((upcoming - self.now) / step_s)) if upcoming < math.inf else most
        decide = max(1, _DECIDE_EVERY - (self._steps - self._decided)) if self._queue or self._paused else most
        return max(1, min(most, until, decide))

    def _end(self, call: Call) -> None:
        id_, number = call.view.id, call.program
        del self._calls[id_]
        self._running.remove(id_)
        program = self.work[number]
        if program.kind is SloClass.LATENCY:
            met = all(at <= program.at + 2.0 + 0.1 * n + 1e-9 for n, at in enumerate(call.times))
        else:
            met = self.now <= program.at + program.due_s
        self.policy.observe(Finished(replace(call.view, generated=call.generated), self.now, met, call.generated))
        self._left[number] -= 1
        if self._left[number] or self.met.get(number) is False:
            return
        stage = call.view.compound.stage + 1 if call.view.compound else len(program.stages)
        if stage < len(program.stages):
            heapq.heappush(self._arrivals, (self.now + program.stages[stage].tool_s, number, stage))
        else:
            self.met[number] = met
