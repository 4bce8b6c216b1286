"""Requests for the policies' tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ramify.serving.policy.types import (
    Capacity,
    CompoundView,
    GroupView,
    RequestId,
    RequestView,
    SloClass,
    State,
    StepModel,
    View,
)
from ramify.serving.protocol.length_sketch import LengthSketch

NOW = 1000.0


def view(id_: int, kind: SloClass = SloClass.DEADLINE, length: float = 100.0, **more: Any) -> RequestView:
    """A request that arrived now and whose length is known."""
    known: dict[str, Any] = {"arrived": NOW, "prompt_tokens": 100, "sketch": LengthSketch.known(length)}
    return RequestView(RequestId(id_), slo_class=kind, **{**known, **more})


def running(id_: int, kind: SloClass = SloClass.BEST_EFFORT, length: float = 1000.0, **more: Any) -> RequestView:
    done: dict[str, Any] = {"generated": 10, "computed": 110, "state": State.RUNNING, **more}
    return view(id_, kind, length, **done)


# 10 ms a token whatever runs; 1 ms for 10 prompt tokens: 100 tokens of prompt and 100 of answer take 1.01 s.
STEP = StepModel(10.0, 0.0, 0.0, 0.1)


def capacity(slots: int, running_now: int = 0, **more: object) -> Capacity:
    return Capacity(slots, running_now, step=STEP, **more)  # type: ignore[arg-type]


@st.composite
def situations(draw: st.DrawFn) -> View:
    """Calls of every kind in every state, and an engine with some of the abilities."""

    def call(id_: int, state: State) -> RequestView:
        kind = draw(st.sampled_from(list(SloClass)))
        started = state is not State.WAITING
        generated = draw(st.integers(1, 50)) if started else 0
        prompt = draw(st.integers(0, 20) | st.integers(0, 30_000))
        due = NOW + draw(st.floats(-5, 60))
        compound = CompoundView(f"c{draw(st.integers(0, 2))}", draw(st.integers(0, 1)), deadline=due)
        group = GroupView(f"g{draw(st.integers(0, 1))}", 4, 2)
        return view(
            id_,
            kind,
            draw(st.floats(1, 500)),
            arrived=NOW - draw(st.floats(0, 200)),
            prompt_tokens=prompt,
            deadline=due if kind is SloClass.DEADLINE else None,
            ttft=due if kind is SloClass.LATENCY else None,
            tbt=draw(st.none() | st.just(0.1)) if kind is SloClass.LATENCY else None,
            admit_by=draw(st.none() | st.just(due)),
            compound=compound if kind is SloClass.COMPOUND else None,
            group=group if draw(st.booleans()) else None,
            generated=generated,
            computed=prompt + generated if state in (State.RUNNING, State.PAUSED) else 0,
            weight=draw(st.sampled_from([1.0, 5.0])),
            state=state,
        )

    counts = [draw(st.integers(0, n)) for n in (12, 4, 5, 3)]
    states = [State.WAITING, State.PREEMPTED, State.RUNNING, State.PAUSED]
    calls = [call(100 * s + i, states[s]) for s in range(4) for i in range(counts[s])]
    slots = draw(st.integers(max(1, counts[2]), 8))
    able = {name: draw(st.booleans()) for name in ("can_preempt", "can_pause", "can_cancel")}
    room = capacity(slots, counts[2], kv_free=draw(st.none() | st.integers(0, 3000)), **able)
    by = {state: [c for c in calls if c.state is state] for state in states}
    return View(room, by[State.WAITING] + by[State.PREEMPTED], by[State.RUNNING], by[State.PAUSED])
