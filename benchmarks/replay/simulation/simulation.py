"""`replay`: programs arrive on a virtual clock, and vLLM's own scheduler and KV cache manager serve them.

All decisions are made by production code: `ConcordScheduler` with a policy and the tags that a client would send,
or vLLM's scheduler alone. Only the tokens are made up, and a step model gives the time of a step. A stage arrives
when the stage before it has ended and its tools have run. If a call is refused, its client gives the program up:
the siblings are cancelled, and no later stage comes.

Deterministic: it reads no clock and uses no randomness.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.replay.errors import Stuck, TooLong
from benchmarks.replay.inputs.client_tags import LengthHints, tags_of
from benchmarks.replay.simulation.outcomes import CallInFlight, ProgramRun, call_outcome, met
from benchmarks.replay.types import Call, Contender, Outcome, Program, Setting, Stock, Watch
from ramify.serving.policy.types import SloClass

if TYPE_CHECKING:
    from benchmarks.replay.simulation.simulated_engine import SimulatedEngine

_CONTEXT_STEP = 1024
_STUCK_STEPS = 5000  # steps with requests in the engine and no new token
_HASH = 1 << 40  # token ids of a prompt's own tokens are above those of shared blocks
_PLACES = 24  # bits for a call's place in its program: two calls share tokens only by their blocks


@dataclass(slots=True)
class Replayed:
    """The outcomes of all programs, and what the engine did."""

    outcomes: list[Outcome]
    simulated_s: float = 0.0
    steps: int = 0
    preemptions: int = 0  # by the policy, and by vLLM itself where KV runs out
    pauses: int = 0
    generated: int = 0  # tokens generated while programs still arrived
    prefilled: int = 0  # prompt tokens computed, those that were computed before too


def replay(
    programs: Sequence[Program],
    contender: Contender,
    setting: Setting,
    told: LengthHints,
    folder: Path,
    fast: bool = True,
    watch: Watch | None = None,
) -> Replayed:
    """Replay the programs under one contender, on one engine or several. `watch` sees its steps and streams.

    It may write to `folder`. Without `fast` vLLM goes through every request in every step, which gives the same in
    four times the time. Raises Stuck if the scheduler stops giving tokens, TooLong for a call that could never
    begin.
    """
    quick = fast and not contender.preempts and watch is None  # what is seen once cannot be seen again

    def made(cache: bool) -> Simulation:
        return Simulation(programs, contender, setting, told, folder, fast, cache, watch)

    return without_cache_first(programs, made, quick)


def without_cache_first(
    programs: Sequence[Program], made: Callable[[bool], Simulation], quick: bool = True
) -> Replayed:
    """Run `made(cache)`, with vLLM's prefix cache only if it can matter: it takes half of an engine's time.

    If no prompt names a block, only a call that lost its KV and is computed again can find anything there. So
    without the cache everything is the same until the first preemption (a test compares). Then the run starts again
    with the cache.
    """
    if quick and not any(call.blocks for program in programs for call in program.calls):
        with suppress(_Preempted):
            return made(False).run()
    return made(True).run()


class _Preempted(Exception):
    """A request was preempted, so the prefix cache matters, and this run has none."""


class Simulation:
    def __init__(
        self,
        programs: Sequence[Program],
        contender: Contender,
        setting: Setting,
        told: LengthHints,
        folder: Path,
        fast: bool,
        cache: bool,
        watch: Watch | None = None,
    ) -> None:
        self._watch = watch
        self._programs, self._contender, self._setting, self._told = programs, contender, setting, told
        context = max((call.prompt + call.output for p in programs for call in p.calls), default=1) + 1
        if context > setting.kv_tokens:
            raise TooLong(context, setting.kv_tokens)
        context = self._context = -(-context // _CONTEXT_STEP) * _CONTEXT_STEP
        self._cache = cache
        self._engines = [
            _engine(contender, setting, context, folder, fast, cache, watch) for _ in range(setting.replicas)
        ]
        self._due = [(p.at, i, 0) for i, p in enumerate(programs)]  # arrival, program, stage
        heapq.heapify(self._due)
        self._runs = [ProgramRun() for _ in programs]
        self._flights: dict[str, CallInFlight] = {}
        self._gate = None if contender.gate is None else contender.gate(setting.kv_tokens)
        self._held: list[tuple[float, int, int]] = []  # as `_due`: what the gate holds back, by arrival
        self._inside = [0] * setting.replicas
        self._generated = [0] * setting.replicas
        # A stream is late in part, never as a whole: it is served to its end.
        streams = any(p.kind is SloClass.STREAM for p in programs)
        self._over_at = inf if streams else max((p.due for p in programs), default=0.0)

    def run(self) -> Replayed:
        idle = 0
        while True:
            engine = min(self._busy() or self._engines, key=lambda engine: engine.now)
            at = self._engines.index(engine)
            if not self._inside[at]:
                if not self._due and not self._held:
                    break
                if self._due:
                    if engine.tier is not None:
                        self._until_idle(engine, self._due[0][0])
                    engine.now = max(engine.now, self._due[0][0])
            self._arrive(engine.now)
            if not self._inside[at]:
                continue  # the arrivals went to other engines
            if engine.now > self._over_at:
                break  # no deadline can be met any more
            before = engine.generated
            for name in engine.step():
                self._end(name, engine)
            if not self._cache and engine.preemptions:
                raise _Preempted
            idle = 0 if engine.generated > before else idle + 1
            if engine.now <= self._setting.seconds:
                self._generated[at] = engine.generated
            if idle > _STUCK_STEPS:
                raise Stuck(f"{self._contender.name}: {len(self._flights)} requests, no token in {idle} steps")
        return self._replayed()

    @staticmethod
    def _until_idle(engine: SimulatedEngine, end: float) -> None:
        """Without calls vLLM goes on while copies are on their way."""
        while engine.now < end and engine.scheduler.has_requests():
            engine.step()

    def _busy(self) -> list[SimulatedEngine]:
        return [engine for engine, inside in zip(self._engines, self._inside, strict=True) if inside]

    def _arrive(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            at, number, stage = heapq.heappop(self._due)
            if self._gate is None:
                self._add(number, stage, at)
            else:
                self._held.append((at, number, stage))
        for one in tuple(self._held):
            at, number, stage = one
            tokens = max(call.prompt for call in self._programs[number].stages[stage].calls)
            if self._gate is not None and self._gate.enters(number, tokens, now):
                self._held.remove(one)
                self._add(number, stage, at)

    def _add(self, number: int, stage: int, at: float) -> None:
        program, course = self._programs[number], self._runs[number]
        first = sum(len(s.calls) for s in program.stages[:stage])
        for i, call in enumerate(program.stages[stage].calls):
            place, name = first + i, f"{number}.{first + i}"
            replica = min(range(len(self._engines)), key=lambda r: (self._inside[r], r))
            flight = CallInFlight(program, stage, place, name, replica, at)
            engine = self._contender.engine
            tags, priority = {}, 0
            if isinstance(engine, Stock):
                priority = dict(engine.priorities).get(program.kind, 0)
            else:
                retold = self._contender.retold
                tags = (
                    tags_of(program, stage, place, at, self._contender.knows, self._told)
                    if retold is None
                    else retold(program, stage, place)
                )
            # The limit of vLLM if a client names none: all that the context has room for.
            limit = self._context - call.prompt
            self._engines[replica].add(name, prompt_ids(call, number, place), call.output, tags, priority, at, limit)
            self._flights[name] = flight
            self._inside[replica] += 1
            course.open.add(name)

    def _end(self, name: str, engine: SimulatedEngine) -> None:
        flight = self._flights.get(name)
        if flight is None:
            return  # cancelled in this same step
        ended = engine.ended[name]
        course = self._runs[int(name.partition(".")[0])]
        stopped = str(ended.output.finish_reason) in ("stop", "length")
        self._close(flight, course, ended.at if stopped else None, None if stopped else _why(ended.output))
        if not stopped:
            self._give_up(course)
        elif not course.open and not course.lost:
            self._go_on(int(name.partition(".")[0]), flight.stage, ended.at)

    def _go_on(self, number: int, stage: int, now: float) -> None:
        program = self._programs[number]
        if self._gate is not None:
            self._gate.acts(number, max(call.prompt + call.output for call in program.stages[stage].calls), now)
            if stage + 1 == len(program.stages):
                self._gate.ends(number)
        if stage + 1 < len(program.stages):
            heapq.heappush(self._due, (now + program.stages[stage + 1].tool_s, number, stage + 1))
        else:
            self._runs[number].ended = now

    def _give_up(self, course: ProgramRun) -> None:
        course.lost = True
        for name in sorted(course.open):
            flight = self._flights[name]
            self._engines[flight.replica].cancel([name])
            self._close(flight, course, None, "its program was given up")

    def _close(self, flight: CallInFlight, course: ProgramRun, ended: float | None, refused: str | None) -> None:
        times = self._engines[flight.replica].tokens.pop(flight.name)
        self._engines[flight.replica].ended.pop(flight.name, None)
        del self._flights[flight.name]
        self._inside[flight.replica] -= 1
        course.open.discard(flight.name)
        course.outcomes[flight.place] = call_outcome(flight, times, ended, refused)
        if self._watch is not None and ended is not None and flight.program.kind is SloClass.STREAM:
            self._watch.streamed(flight.program, times)

    def _replayed(self) -> Replayed:
        for flight in list(self._flights.values()):
            course = self._runs[int(flight.name.partition(".")[0])]
            self._close(flight, course, None, None)
        outcomes = []
        for program, course in zip(self._programs, self._runs, strict=True):
            calls = tuple(course.outcomes[place] for place in sorted(course.outcomes))
            outcomes.append(Outcome(program, calls, met(program, course.ended, calls), course.ended))
        logs = [
            engine.scheduler.decision_log for engine in self._engines if hasattr(engine.scheduler, "decision_log")
        ]
        return Replayed(
            outcomes,
            max(engine.now for engine in self._engines),
            sum(engine.steps for engine in self._engines),
            sum(engine.preemptions for engine in self._engines),
            sum(log.pauses for log in logs),
            sum(self._generated),
            sum(engine.prefilled for engine in self._engines),
        )


def _engine(
    contender: Contender,
    setting: Setting,
    context: int,
    folder: Path,
    fast: bool,
    cache: bool,
    watch: Watch | None = None,
) -> SimulatedEngine:
    from benchmarks.replay.simulation.simulated_engine import (
        SimulatedEngine,
        SimulatedEngineSettings,
        step_seconds_by,
    )

    stock = contender.engine if isinstance(contender.engine, Stock) else None
    chunked = stock is None or stock.chunked_prefill
    step = setting.step
    model = {
        "base_ms": step.base_ms,
        "per_seq_ms": step.per_seq_ms,
        "per_kctx_ms": step.per_kctx_ms,
        "per_prefill_ms": step.per_prefill_ms,
    }
    settings = SimulatedEngineSettings(
        slots=setting.slots,
        room=0 if stock is not None else setting.pause_room,
        blocks=setting.kv_tokens // setting.block_size,
        block_size=setting.block_size,
        step_tokens=setting.step_tokens if chunked else max(setting.step_tokens, context),
        context=context,
        concord=None if stock is not None else {"step": model},
        policy="priority" if stock is not None and stock.priorities else "fcfs",
        prefix_cache=cache,
        chunked_prefill=chunked,
        overlap=True,
        tier=contender.tier,
        bring_back=contender.bring_back,
        fast=fast,
    )
    policy = None if isinstance(contender.engine, Stock) else contender.engine()
    retention = None if contender.retention is None else contender.retention()
    return SimulatedEngine(folder, settings, step_seconds_by(step), policy=policy, retention=retention, watch=watch)


def prompt_ids(call: Call, number: int, place: int) -> list[int]:
    """Return token ids that two prompts share exactly where they share blocks."""
    tokens: list[int] = []
    for block in call.blocks:
        tokens += [block] * call.block_tokens
    own = call.prompt - len(tokens)
    if own <= 0:
        return tokens[: call.prompt]
    return tokens + [_HASH + (number << _PLACES) + place] * own


def _why(output: Any) -> str:
    error = getattr(output, "error", None)
    return str(getattr(error, "message", None) or output.stop_reason or "the engine ended it")
