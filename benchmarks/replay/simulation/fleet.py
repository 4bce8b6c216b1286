"""`simulate_fleet`: several engines behind one queue, as in `ramify serve`, with one policy before all of them.
Contenders with a `placement_k` have queues of their own before each engine (`routed_fleet`).

A call waits at the gateway until the policy admits it, and is bound only then, to the engine with the fewest calls.
The engines are vLLM's own schedulers and never have more calls than slots. The policy can do here what it can do in
a gateway: it sees no KV, and cannot pause, preempt or limit the prompts of a step (docs/decisions/058). If the
contender is vLLM's own scheduler, a balancer binds each call when it arrives (`_Balanced`).

The policy decides when a call arrives and when one ends, at the time of the engine where that happens. An engine in
the middle of a step is ahead of the others, so the times of two decisions may be in the wrong order by at most a
step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.replay.inputs.client_tags import LengthHints, tags_of
from benchmarks.replay.simulation.outcomes import CallInFlight, ProgramRun, call_outcome
from benchmarks.replay.simulation.simulation import Replayed, Simulation, prompt_ids, without_cache_first
from benchmarks.replay.types import Call, Contender, Program, Setting, Stock
from ramify.serving.policy.cost_model import aggregate_engines
from ramify.serving.policy.types import Capacity, Finished, Refusal, RequestId, RequestView, SloClass, State, View
from ramify.serving.vllm_plugin.engine_views import RequestViews
from ramify.serving.vllm_plugin.version_adapters import SamplingLike

if TYPE_CHECKING:
    from benchmarks.replay.simulation.simulated_engine import SimulatedEngine

_UNBOUND = -1  # the replica of a call that waits
_REFRESH = 16  # a running call's view is renewed after so many tokens, as in the plug-in


def simulate_fleet(
    programs: Sequence[Program], contender: Contender, setting: Setting, told: LengthHints, folder: Path
) -> Replayed:
    """Do what `simulation.replay` does, for several engines: behind one queue, or as `Contender.placement_k` says."""
    kind = _Balanced if isinstance(contender.engine, Stock) else Fleet
    if contender.placement_k is not None:
        from benchmarks.replay.simulation.routed_fleet import RoutedFleet

        kind = RoutedFleet
    return without_cache_first(programs, lambda cache: kind(programs, contender, setting, told, folder, True, cache))


@dataclass(slots=True)
class _Sampling:
    extra_args: Mapping[str, object] | None


@dataclass(slots=True)
class WaitingCall:
    """A call at the gateway, with the fields that `RequestViews` reads from vLLM's requests."""

    request_id: str
    arrival_time: float
    num_prompt_tokens: int
    max_tokens: int
    sampling_params: SamplingLike | None
    prompt: list[int]
    answer: int  # tokens that it will generate
    client_index: int = 0
    priority: int = 0
    num_preemptions: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    next_decode_eligible_step: int = 0
    status: object = None

    def is_finished(self) -> bool:
        return False


@dataclass(slots=True)
class _GatewayQueue:
    """The calls that wait and that are in an engine, by the policy's ids and by name."""

    waiting: dict[RequestId, WaitingCall] = field(default_factory=dict)
    inside: dict[RequestId, WaitingCall] = field(default_factory=dict)
    ids: dict[str, RequestId] = field(default_factory=dict)


class _Balanced(Simulation):
    """Several of vLLM's own schedulers: a call goes to the one with the fewest calls when it arrives."""

    def _add(self, number: int, stage: int, at: float) -> None:
        for engine, inside in zip(self._engines, self._inside, strict=True):
            if not inside:
                engine.now = max(engine.now, at)  # its clock stood still since its last call
        super()._add(number, stage, at)


class Fleet(Simulation):
    def __init__(
        self,
        programs: Sequence[Program],
        contender: Contender,
        setting: Setting,
        told: LengthHints,
        folder: Path,
        fast: bool,
        cache: bool,
    ) -> None:
        if isinstance(contender.engine, Stock):
            raise TypeError(f"{contender.name} has no policy to put before several engines: it has a balancer")
        super().__init__(programs, replace(contender, engine=Stock()), setting, told, folder, fast, cache)
        self._policy = contender.engine()
        self._views = RequestViews(lambda _: 0, _REFRESH)
        self._queue = _GatewayQueue()
        self._wake_at = float("inf")
        self._step = aggregate_engines(setting.step, setting.replicas)

    def _arrive(self, now: float) -> None:
        coming = len(self._due)
        super()._arrive(now)
        if len(self._due) < coming or now >= self._wake_at:
            self._decide(now)

    def _add(self, number: int, stage: int, at: float) -> None:
        program, course = self._programs[number], self._runs[number]
        first = sum(len(s.calls) for s in program.stages[:stage])
        for i, call in enumerate(program.stages[stage].calls):
            place, name = first + i, f"{number}.{first + i}"
            tags = tags_of(program, stage, place, at, self._contender.knows, self._told)
            prompt = prompt_ids(call, number, place)
            limit = self._context - call.prompt
            asked = WaitingCall(name, at, call.prompt, limit, _Sampling(tags), prompt, call.output)
            seen = self._views.add(asked)
            self._queue.waiting[seen.view.id], self._queue.ids[name] = asked, seen.view.id
            self._join(seen.view.id, asked, _affinity(tags, call))
            self._flights[name] = CallInFlight(program, stage, place, name, _UNBOUND, at)
            course.open.add(name)

    def _end(self, name: str, engine: SimulatedEngine) -> None:
        super()._end(name, engine)
        self._decide(engine.now)

    def _decide(self, now: float) -> None:
        """Let the policy decide over all waiting calls, and carry it out; again while calls are refused.

        The siblings of a refused call leave slots behind.
        """
        self._wake_at = float("inf")
        refused = True
        while refused and self._queue.waiting:
            slots = self._setting.slots * self._setting.replicas
            capacity = Capacity(slots, len(self._queue.inside), None, self._step)
            verdict = self._policy.decide(View(capacity, self._waiting(), self._running()), now)
            self._wake_at = float("inf") if verdict.wake_at is None else verdict.wake_at
            for id_ in verdict.admit:
                self._bind(self._queue.waiting.pop(id_), id_, now)
            refused = self._refuse(verdict.drop)

    def _refuse(self, refusals: Sequence[Refusal]) -> bool:
        """Refuse the calls that wait, and give up their programs. Returns whether there was one."""
        found = False
        for refusal in refusals:
            if (asked := self._queue.waiting.get(refusal.id)) is not None:
                found = True
                course = self._runs[int(asked.request_id.partition(".")[0])]
                self._close(self._flights[asked.request_id], course, None, refusal.reason)
                self._give_up(course)
        return found

    def _bind(self, asked: WaitingCall, id_: RequestId, now: float) -> None:
        self._bind_at(asked, id_, min(range(len(self._engines)), key=lambda r: (self._inside[r], r)), now)

    def _bind_at(self, asked: WaitingCall, id_: RequestId, replica: int, now: float) -> None:
        name, engine = asked.request_id, self._engines[replica]
        if not self._inside[replica]:
            engine.now = max(engine.now, now)
        engine.add(name, asked.prompt, asked.answer, at=now)
        self._inside[replica] += 1
        self._queue.inside[id_] = asked
        self._flights[name].replica = replica

    def _give_up(self, course: ProgramRun) -> None:
        for name in sorted(course.open):
            if self._flights[name].replica == _UNBOUND:
                self._close(self._flights[name], course, None, "its program was given up")
        super()._give_up(course)

    def _close(self, flight: CallInFlight, course: ProgramRun, ended: float | None, refused: str | None) -> None:
        id_ = self._queue.ids.pop(flight.name)
        if flight.replica == _UNBOUND:
            del self._queue.waiting[id_], self._flights[flight.name]
            course.open.discard(flight.name)
            course.outcomes[flight.place] = call_outcome(flight, [], ended, refused)
        else:
            asked = self._queue.inside.pop(id_)
            asked.num_output_tokens = len(self._engines[flight.replica].tokens[flight.name])
            super()._close(flight, course, ended, refused)
        left = self._views.remove(flight.name)
        if ended is not None and left is not None:
            outcome, (view, _) = course.outcomes[flight.place], left
            whole = flight.program.kind is not SloClass.LATENCY
            met = ended <= flight.program.due if whole else outcome.in_time == outcome.output
            self._learn(Finished(view, ended, met, outcome.in_time), flight.replica)

    def _learn(self, done: Finished, replica: int) -> None:
        self._policy.observe(done)

    def _join(self, id_: RequestId, asked: WaitingCall, affinity: str | None) -> None:
        """A call waits from now on. `affinity`: calls with the same one share a prefix."""

    def _waiting(self) -> list[RequestView]:
        return [self._view_of(one, inside=False) for one in self._queue.waiting.values()]

    def _running(self) -> list[RequestView]:
        return [self._view_of(one, inside=True) for one in self._queue.inside.values()]

    def _view_of(self, one: WaitingCall, *, inside: bool) -> RequestView:
        if not inside:
            return self._views.view_of(one, State.WAITING)
        flight = self._flights[one.request_id]
        one.num_output_tokens = len(self._engines[flight.replica].tokens[one.request_id])
        one.num_computed_tokens = one.num_prompt_tokens + one.num_output_tokens if one.num_output_tokens else 0
        return self._views.view_of(one, State.RUNNING)


def _affinity(tags: Mapping[str, object], call: Call) -> str | None:
    """As in the gateway: a fork group, else a common prefix."""
    if (group := tags.get("fork_group")) is not None:
        return f"group {group}"
    return f"prefix {call.blocks[0]}" if call.blocks else None
