"""`rerun`: replays a measured run's requests through vLLM's own FCFS scheduler, with the times of a step-time model.

Several engines (`data_parallel_size`, with experts spread over them) exchange tokens in each layer, so their steps
begin and end together: a step lasts as long as the longest. vLLM's balancer is before them: a request goes to the
engine where least waits and runs, by counts that are updated ten times a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.replay.fidelity.measured_run import Run, Served
from benchmarks.replay.inputs.step_times import Held

if TYPE_CHECKING:
    from benchmarks.replay.simulation.simulated_engine import SimulatedEngine

_COUNTED_EVERY_S = 0.1
_WAITING_WEIGHS = 4  # weight of a waiting request beside a running one


class StepLog:
    """What each step held, when it ended, and which requests were preempted because KV ran out."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.held: list[Held] = []
        self.preempted: set[str] = set()

    def within(self, begin: float, end: float) -> slice:
        """Return the steps that end after `begin` and not after `end`."""
        return slice(bisect_left(self.ends, begin + 1e-9), bisect_left(self.ends, end + 1e-9))


def rerun(
    run: Run, step_ms: Callable[[Held], float], folder: Path, upto: int | None = None
) -> tuple[list[Served], StepLog]:
    """Replay the run until its first `upto` requests have ended. Returns their times, and the log of steps."""
    return _Rerun(run, step_ms, folder).until(len(run.requests) if upto is None else upto)


class _Rerun:
    def __init__(self, run: Run, step_ms: Callable[[Held], float], folder: Path) -> None:
        self._run, self._step_ms, self._log, self._now = run, step_ms, StepLog(), 0.0
        self._scheduled: list[deque[Held]] = [
            deque() for _ in range(run.engines)
        ]  # scheduled steps that have not ended
        self._engines = [self._engine(folder, queue) for queue in self._scheduled]
        self._where: list[SimulatedEngine] = []  # the engine of each request that has arrived
        self._counts = [0] * run.engines
        self._counted_at = -_COUNTED_EVERY_S

    def until(self, upto: int) -> tuple[list[Served], StepLog]:
        requests = self._run.requests
        left, inside = set(map(str, range(upto))), 0
        while left:
            if not inside:
                self._now = max(self._now, requests[len(self._where)].arrived)
            while len(self._where) < len(requests) and requests[len(self._where)].arrived <= self._now:
                self._arrive(len(self._where))
                inside += 1
            over = self._step()
            inside -= len(over)
            left.difference_update(over)
        return [_served(self._where[n], str(n), one) for n, one in enumerate(requests[:upto])], self._log

    def _arrive(self, number: int) -> None:
        one = self._run.requests[number]
        if one.arrived - self._counted_at >= _COUNTED_EVERY_S:
            self._counts = [_WAITING_WEIGHS * len(e.waiting) + len(e.running) for e in self._engines]
            self._counted_at = one.arrived
        at = self._counts.index(min(self._counts))
        self._counts[at] += _WAITING_WEIGHS
        self._where.append(self._engines[at])
        # No two requests share tokens, since the file has no prompts. A preempted request finds its own tokens in the
        # prefix cache again, as in vLLM, if the cache is on.
        self._engines[at].add(str(number), [1_000_000 + number] * one.prompt, one.output, at=one.arrived)

    def _step(self) -> list[str]:
        """Do one step of all engines, and return the requests that it ends.

        A step is scheduled while the one before it runs, and its time is known when all engines have scheduled it.
        So this does not use `SimulatedEngine.step`.
        """
        for engine in self._engines:
            engine._schedule()
            if self._run.overlap and len(engine._flying) == 1:
                engine._schedule()
        held = [queue.popleft() for queue in self._scheduled]
        # An idle engine has an empty step in flight, which takes no time.
        took, longest = max(
            ((self._step_ms(one) if one.tokens else 0.0, one) for one in held), key=lambda pair: pair[0]
        )
        self._now += took / 1000
        self._log.ends.append(self._now)
        self._log.held.append(longest)
        over = []
        for engine in self._engines:
            engine.now = self._now
            over += engine._land()
        return over

    def _engine(self, folder: Path, scheduled: deque[Held]) -> SimulatedEngine:
        from benchmarks.replay.simulation.simulated_engine import SimulatedEngine, SimulatedEngineSettings

        run = self._run
        context = max(r.prompt + r.output for r in run.requests) + 16
        if not run.chunked_prefill:
            context = min(context, run.step_tokens)  # vLLM allows no longer one if a prompt must fit into a step
        settings = SimulatedEngineSettings(
            slots=run.slots,
            room=0,
            blocks=run.blocks or _enough(run, context),
            block_size=run.block_size,
            step_tokens=run.step_tokens,
            context=context,
            concord=None,
            prefix_cache=run.prefix_cache,
            chunked_prefill=run.chunked_prefill,
            overlap=run.overlap,
            fast=True,
        )

        def noted(scheduler: Any, output: Any) -> float:
            requests, names = scheduler.requests, output.num_scheduled_tokens
            self._log.preempted.update(output.preempted_req_ids or ())
            context = sum([requests[name].num_computed_tokens for name in names])
            scheduled.append(Held(len(names), context, output.total_num_scheduled_tokens))
            return 0.0  # `_step` advances the clock

        return SimulatedEngine(folder, settings, noted)


def _enough(run: Run, context: int) -> int:
    """Return blocks of KV if the run names none: twice what all slots can fill, at most what all requests need."""
    size = run.block_size
    return 1 + min(
        2 * run.slots * -(-context // size), sum(-(-(r.prompt + r.output) // size) + 1 for r in run.requests)
    )


def _served(engine: SimulatedEngine, name: str, measured: Served) -> Served:
    times: Sequence[float] = engine.tokens[name]
    return Served(measured.prompt, measured.output, measured.arrived, times[0], times[-1])
