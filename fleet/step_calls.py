"""The model calls of a step on a node. The process that works on the run makes them, and its journal has them, under
the same keys as if the step ran there: they are not made twice if the node dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ramify.fleet.carried_errors import CarriedError, rebuilt
from ramify.runtime.execution.model_calls import LLMCalls
from ramify.runtime.execution.streamed_answers import Answered
from ramify.runtime.user_code.call_slo import CallSLO
from ramify.serving.types import ChatRequest, ChatResult


@dataclass(frozen=True, slots=True)
class ModelAsk:
    """Model calls that a step makes at once. number: counts them in their step. A `ModelAsk` without requests cancels
    the earlier one of its number."""

    number: int
    requests: tuple[ChatRequest, ...]
    said: CallSLO


Told = list[ChatResult] | CarriedError
"""What became of a `ModelAsk`."""


class StepAsks:
    """What one step asks of the process that works on its run. On one event loop."""

    def __init__(self, refuse: Callable[[str], None]) -> None:
        """refuse: ends the step, because it needs what is not there."""
        self.refuse = refuse
        self.changed = asyncio.Event()
        self._new: list[ModelAsk] = []
        self._waiting: list[asyncio.Future[list[ChatResult]]] = []

    def take(self) -> tuple[ModelAsk, ...]:
        """Return what was asked since the last call."""
        new, self._new = self._new, []
        self.changed.clear()
        return tuple(new)

    def told(self, number: int, told: Told) -> None:
        future = self._waiting[number]
        if future.done():
            return  # the step does not wait any more
        if isinstance(told, CarriedError):
            future.set_exception(rebuilt(told, "that works on the run"))
        else:
            future.set_result(told)

    def ask(self, requests: list[ChatRequest], said: CallSLO) -> Awaitable[list[ChatResult]]:
        number, future = len(self._waiting), asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._put(ModelAsk(number, tuple(requests), said))
        return self._answer(number, future, said)

    async def _answer(self, number: int, future: asyncio.Future[list[ChatResult]], said: CallSLO) -> list[ChatResult]:
        try:
            return await future
        except asyncio.CancelledError:
            self._put(ModelAsk(number, (), said))
            raise

    def _put(self, ask: ModelAsk) -> None:
        self._new.append(ask)
        self.changed.set()


class CallsOfSteps(LLMCalls):
    """The model calls of all steps of a run that are on this node. asks: of the steps that run, by key."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asks: dict[str, StepAsks] = {}

    def stage(  # type: ignore[override]  # the place is known where they are made
        self, requests: list[ChatRequest], *, step_key: str | None, said: CallSLO, **place: Any
    ) -> Awaitable[list[ChatResult]]:
        return self._of(step_key).ask(requests, said)

    def stream(self, request: ChatRequest, *, step_key: str | None, **place: Any) -> Answered:
        self._of(step_key).refuse("it reads a model's answer as a stream, whose pieces do not travel")
        return _silent()

    def _of(self, step_key: str | None) -> StepAsks:
        assert step_key is not None, "only steps run here"
        return self.asks[step_key]


async def _silent() -> Answered:
    """Wait until the step is ended."""
    await asyncio.get_running_loop().create_future()
    yield ""
