"""Model calls answered from earlier ones: same model, messages, sampling parameters and sample, same answer.

Only where that holds: at temperature 0, with a seed that the server honours; or where the user asks for it, who then
takes any sample of a distribution for as good as another one. Across runs only where the model is named, for what
"default" is may be another one tomorrow.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from ramify.runtime import codec
from ramify.runtime.errors import WrongReuse
from ramify.runtime.flights import Flights
from ramify.runtime.records import LLMRecord, RunRecord, Settings
from ramify.runtime.reuse import Sampler
from ramify.runtime.store import RunStore
from ramify.serving.types import ChatRequest, ChatResult


class Answers:
    """What the model calls of one run may be answered from. `asked`: the user wants reuse at any temperature."""

    def __init__(
        self, store: RunStore, run: RunRecord, settings: Settings, flights: Flights, check: Sampler, *, asked: bool
    ) -> None:
        self._store, self._run, self._settings, self._flights = store, run, settings, flights
        self._asked = asked
        self.to_be_checked = check.hit

    def reusable(self, request: ChatRequest, *, honours_seed: bool) -> bool:
        """Whether an equal call may stand for this one."""
        return self._asked or (honours_seed and request.temperature == 0 and request.seed is not None)

    def alone(self, request: ChatRequest) -> AbstractAsyncContextManager[None]:
        """Nobody else sends the same inside."""
        return self._flights.alone(codec.digest(["llm", self._scope(request), request]))

    async def find(self, request: ChatRequest) -> LLMRecord | None:
        """The newest equal call that the same model of the same server answered."""
        scope = self._scope(request)
        for row, run_id, settings in await self._store.equal_calls(codec.encode(request)):
            if run_id == self._run.id or (scope == ["model", *settings.whom] and not settings.mixed):
                return row
        return None

    def _scope(self, request: ChatRequest) -> list[str | None]:
        named = self._settings.model is not None or request.model != "default"
        if not named or self._settings.server == "" or self._run.settings.mixed:
            return ["run", self._run.id]
        return ["model", *self._settings.whom]


def compare_answers(source: LLMRecord, result: ChatResult) -> WrongReuse | None:
    """What is wrong where the model says something else now."""
    before: ChatResult = codec.decode(source.result_json)
    if before.text == result.text:
        return None
    return WrongReuse(
        f"model call {source.run_id}#{source.seq} was asked again to check its reuse, and the answer differs: "
        "the server does not honour the seed. Run without reuse of model calls"
    )
