"""Generated traces, and the default policy's verdicts on them: `recorded_verdicts.json`.

A faster policy must not change its verdicts. If verdicts are meant to change, record them again with `python -m
tests.serving.policy.recorded_verdicts`. The calls are of every kind that a policy can meet: workflows, fork groups,
streams, weights, waiting limits, calls without a sketch, paused and preempted ones.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from ramify.serving.policy.registry import make_policy
from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    Finished,
    GroupView,
    Policy,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
    Verdict,
    View,
)
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch

FILE = Path(__file__).with_name("recorded_verdicts.json")
EVERY = 20  # decisions a digest covers
_TICK_S, _TOKENS, _REFRESH = 0.1, 4, 16  # between decisions: seconds, tokens; and tokens until a view is renewed


@dataclass(frozen=True, slots=True)
class Scene:
    rate: float  # programs a second
    slots: int = 16
    able: bool = True  # to pause and preempt
    kv: int | None = 60_000  # tokens in all; None: not seen
    blind: bool = False  # what runs is not shown, as by an engine that tells nothing
    slower: float = 1.0  # the engine is so many times slower in the second half
    kinds: tuple[SloClass, ...] = (*tuple(SloClass)[:1], *tuple(SloClass)[2:])  # recorded before streams


_URGENT = (SloClass.LATENCY, SloClass.DEADLINE, SloClass.BEST_EFFORT, SloClass.BEST_EFFORT)
SCENES = {
    "nearly all fits": Scene(1.5),
    "more than fits": Scene(3.0),
    "far more than fits": Scene(10.0),
    "the urgent behind long ones": Scene(2.5, kinds=_URGENT),
    "the same with little KV": Scene(2.5, kinds=_URGENT, kv=15_000),
    "slots are kept": Scene(4.0, able=False),
    "an engine that tells nothing": Scene(3.0, able=False, kv=None, blind=True),
    "an engine that becomes slower": Scene(2.0, slower=2.0),
}


@dataclass
class Record:
    """The decisions: a digest of all so far after every `EVERY` decisions, and how often each move was made."""

    digests: list[str] = field(default_factory=list)
    moves: dict[str, int] = field(default_factory=dict)


class Host:
    """Shows a policy its calls every tenth of a second, and carries out its verdicts roughly: variety matters."""

    def __init__(self, scene: Scene, policy: Policy, seed: int) -> None:
        self._scene, self._policy, self._chance = scene, policy, random.Random(seed)
        self._views: dict[RequestId, RequestView] = {}
        self._length: dict[RequestId, int] = {}
        self._made: dict[RequestId, int] = {}  # tokens
        self._queue: list[RequestId] = []
        self._running: list[RequestId] = []
        self._paused: list[RequestId] = []
        self._step = StepModel(base_ms=24.0)
        self._next = 0

    def run(self, decisions: int) -> Record:
        record, digest, moves = Record(), sha256(), Counter[str]()
        for number in range(1, decisions + 1):
            now = number * _TICK_S
            if number == decisions // 2:
                self._step = self._step.scaled(self._scene.slower)
            verdict = self._tick(now)
            digest.update(_said(verdict).encode())
            for name in ("admit", "preempt", "pause", "resume", "drop"):
                moves[name] += len(getattr(verdict, name))
            moves["budget"] += verdict.budget is not None
            if number % EVERY == 0:
                record.digests.append(digest.hexdigest()[:8])
        record.moves = dict(moves)
        return record

    def _tick(self, now: float) -> Verdict:
        for _ in range(3):
            if self._chance.random() < self._scene.rate * _TICK_S / 3:
                self._arrive(now)
        for id_ in list(self._running):
            self._move_on(id_, now)
        held = [self._views[id_] for id_ in (*self._running, *self._paused)]
        kv = self._scene.kv
        free = None if kv is None else max(0, kv - sum(call.prompt_tokens + call.generated for call in held))
        able = self._scene.able
        room = Capacity(self._scene.slots, len(self._running), free, self._step, able, able)
        shown = [] if self._scene.blind else self._running
        lists = [[self._views[id_] for id_ in ids] for ids in (self._queue, shown, self._paused)]
        verdict = self._policy.decide(View(room, *lists), now)
        self._perform(verdict)
        return verdict

    def _perform(self, verdict: Verdict) -> None:
        dropped = {refusal.id for refusal in verdict.drop}
        for id_ in dropped:
            del self._views[id_]
        for id_ in verdict.preempt:
            self._running.remove(id_)
            call = self._views[id_]
            cached = self._chance.choice([0, call.prompt_tokens // 2])
            self._views[id_] = replace(
                call, state=State.PREEMPTED, computed=0, generated=self._made[id_], cached_tokens=cached
            )
        for id_ in verdict.pause:
            self._running.remove(id_)
            self._paused.append(id_)
            self._views[id_] = replace(self._views[id_], state=State.PAUSED, generated=self._made[id_])
        for id_ in verdict.resume:
            self._paused.remove(id_)
        for id_ in (*verdict.resume, *verdict.admit):
            self._running.append(id_)
            call = self._views[id_]
            computed = call.prompt_tokens + call.generated
            self._views[id_] = replace(call, state=State.RUNNING, computed=computed)
        started = set(verdict.admit)
        self._queue = [id_ for id_ in verdict.order if id_ not in started] + list(verdict.preempt)

    def _move_on(self, id_: RequestId, now: float) -> None:
        self._made[id_] += _TOKENS
        call, made = self._views[id_], self._made[id_]
        if made >= self._length[id_]:
            self._running.remove(id_)
            del self._views[id_]
            met = call.deadline is None or now <= call.deadline
            self._policy.observe(Finished(replace(call, generated=self._length[id_]), now, met))
        elif made - call.generated >= _REFRESH or call.generated == 0:
            sketch = call.sketch
            if sketch is not None and self._chance.random() < 0.05:  # the analyzer has predicted anew
                sketch = LengthSketch(LEVELS, tuple(made + value for value in sketch.values))
            computed = call.prompt_tokens + made
            self._views[id_] = replace(call, generated=made, computed=computed, sketch=sketch)

    def _arrive(self, now: float) -> None:
        """A program: a single call, a stage of a workflow, or a fork group."""
        chance = self._chance
        kind = chance.choice(self._scene.kinds)
        width, compound, group = 1, None, None
        if kind is SloClass.COMPOUND:
            width, stages = chance.choice([1, 2, 3, 5]), chance.randrange(3)
            rest = tuple(StageEstimate(chance.choice([1, 4]), 300, 150, chance.random()) for _ in range(stages))
            name, ends = f"run{self._next}", now + chance.uniform(5, 60)
            compound = CompoundView(name, 0, 1 + stages, width, not stages, chance.choice([None, ends, ends]), rest)
        elif chance.random() < 0.2:
            width = chance.choice([2, 4])
            group = GroupView(f"fork{self._next}", width, chance.choice([1, width]))
        typical = chance.choice([20, 60, 150] if kind is SloClass.LATENCY else [20, 60, 600])
        prompt, due = chance.randrange(20, 2000), now + chance.uniform(1, 40)
        for _ in range(width):
            id_ = RequestId(self._next)
            self._next += 1
            sketch = LengthSketch(LEVELS, tuple(typical * (0.1 + 2.5 * level) for level in LEVELS))
            self._views[id_] = RequestView(
                id_,
                now - chance.random() * 0.1,
                kind,
                due if kind is SloClass.DEADLINE else None,
                now + chance.uniform(0.3, 4) if kind is SloClass.LATENCY else None,
                chance.choice([None, 0.05, 0.2]) if kind is SloClass.LATENCY else None,
                chance.choice([None, None, now + 5]) if kind is not SloClass.BEST_EFFORT else None,
                prompt_tokens=prompt if group else max(1, prompt + chance.randrange(-19, 20)),
                cached_tokens=chance.choice([0, 0, prompt // 4]),
                sketch=None if chance.random() < 0.1 else sketch,
                weight=chance.choice([1.0, 1.0, 1.0, 3.0]),
                compound=compound,
                group=group,
                max_tokens=chance.choice([None, None, 100]),
            )
            self._length[id_] = max(1, round(typical * (0.1 + 2.5 * chance.random() ** 2)))
            self._made[id_] = 0
            self._queue.append(id_)


def _said(verdict: Verdict) -> str:
    drop = [refusal.id for refusal in verdict.drop]
    rest = (verdict.preempt, verdict.pause, verdict.resume, drop, verdict.budget)
    return repr((verdict.admit, verdict.order, *rest))


def record(scene: Scene, *, decisions: int = 600, seed: int = 1) -> Record:
    return Host(scene, make_policy("concord"), seed).run(decisions)


if __name__ == "__main__":
    made = {name: asdict(record(scene)) for name, scene in SCENES.items()}
    FILE.write_text(json.dumps(made, indent=1) + "\n")
    for name, one in made.items():
        print(name, one["moves"])
