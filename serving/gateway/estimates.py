"""How fast an engine is, learnt from the calls that it answers: what makes `earliest_feasible_s` a real figure.

A gateway sees no engine step. It sees, for each stream, how long a token took and how many others ran beside it; a
straight line through those is the step model's base and its price a sequence. What is left of the time to the first
token, over the prompt's tokens, is the price of prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

from ramify.serving.policy.types import StepModel

_DECAY = 0.97  # what each older call weighs against the next
_ENOUGH = 3.0  # weight of calls below which nothing is claimed to be known
_UP, _DOWN = 0.02, 0.2  # prefill follows the fast calls: the slow ones waited inside the engine
_CHARS_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class Service:
    """One answered call, as far as it tells of the engine's speed."""

    prompt_tokens: int
    tokens: int
    first_token_s: float  # from its start in the engine
    decode_s: float  # from the first token to the last
    beside: float  # calls in the engine meanwhile, itself included, on average


class ServiceModel:
    """A StepModel of one replica. Until there was traffic it is the default one, which is fast: nothing is refused
    for want of knowledge."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        self._prefill_ms: float | None = None
        self._step: StepModel | None = None

    @property
    def step(self) -> StepModel:
        return self._step or StepModel()

    @property
    def known(self) -> bool:
        return self._step is not None

    def observe(self, seen: Service) -> None:
        if seen.tokens > 1 and seen.decode_s > 0:
            self._token(seen.beside, 1000.0 * seen.decode_s / (seen.tokens - 1))
        if self._weight < _ENOUGH:
            return
        base, each = self._line()
        if seen.prompt_tokens > 0:
            spare = max(0.0, 1000.0 * seen.first_token_s - base - each * seen.beside) / seen.prompt_tokens
            old = self._prefill_ms
            self._prefill_ms = spare if old is None else old + (_UP if spare > old else _DOWN) * (spare - old)
        self._step = StepModel(base, each, 0.0, self._prefill_ms or 0.0)

    def _token(self, beside: float, ms: float) -> None:
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        new = (1.0, beside, ms, beside * beside, beside * ms)
        self._weight, self._x, self._y, self._xx, self._xy = (
            _DECAY * old + add for old, add in zip(sums, new, strict=True)
        )

    def _line(self) -> tuple[float, float]:
        """Least squares, neither part below nothing: ms a step, and ms for each sequence in it."""
        n, x, y = self._weight, self._x, self._y
        spread = n * self._xx - x * x
        slope = (n * self._xy - x * y) / spread if spread > 1e-9 * n * self._xx else 0.0
        base = (y - slope * x) / n
        if slope < 0:
            return y / n, 0.0
        if base < 0:
            return 0.0, y / x
        return base, slope


class PromptSizes:
    """Tokens of a prompt, guessed from its characters before any engine has counted them."""

    def __init__(self) -> None:
        self._chars, self._tokens = 8 * _CHARS_PER_TOKEN, 8.0

    def guess(self, chars: int) -> int:
        return max(1, round(chars * self._tokens / self._chars))

    def observe(self, chars: int, tokens: int) -> None:
        if chars > 0 and tokens > 0:
            self._chars, self._tokens = _DECAY * self._chars + chars, _DECAY * self._tokens + tokens
