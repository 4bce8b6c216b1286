"""Requests for the policies' tests."""

from __future__ import annotations

from typing import Any

from ramify.serving.policy.types import RequestId, RequestView, SloClass, State
from ramify.serving.protocol.length_sketch import LengthSketch

NOW = 1000.0


def view(id_: int, kind: SloClass = SloClass.DEADLINE, length: float = 100.0, **more: Any) -> RequestView:
    """A request that arrived now and whose length is known."""
    known: dict[str, Any] = {"arrived": NOW, "prompt_tokens": 100, "sketch": LengthSketch.known(length)}
    return RequestView(RequestId(id_), slo_class=kind, **{**known, **more})


def running(id_: int, kind: SloClass = SloClass.BEST_EFFORT, length: float = 1000.0, **more: Any) -> RequestView:
    done: dict[str, Any] = {"generated": 10, "computed": 110, "state": State.RUNNING, **more}
    return view(id_, kind, length, **done)
