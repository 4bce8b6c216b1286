"""How fast an engine is, learnt from the calls that it answers. `earliest_feasible_s` rests on this model.

A gateway sees no engine steps. It sees how long a call, or a part of it, took, and knows what happened in that time:
the start of the call, prompt tokens, answer tokens, and other calls beside it. Each such span is one equation

    seconds = start + prompt tokens · a + answer tokens · (base + calls beside · each)

and all recent equations are fitted jointly. If an answer came as a whole, its prompt and its answer cannot be told
apart: the span constrains their sum, and other spans separate the two. Spans count by their relative error. So a call
that waited for something unseen weighs less than one that came quickly, and the quick one proves what the engine can
do.

Where the spans do not separate two parts, the prior (what engines are usually like) splits them. The fit knows its
uncertainty for each call: `least_s` is the least time that the evidence allows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ramify.serving.policy.types import StepModel

_DECAY = 0.95  # the weight of an older call relative to the next one
_ENOUGH = 3  # calls before the model claims to know anything
_USUAL = (0.0, 0.03, 1.0, 0.002)  # prior: start, prompt token, step, each call beside; all in steps
_SPREAD = (0.8, 0.03, 1.0, 0.01)  # how much engines differ in each of these
_PRIOR = 0.0001  # weight of the prior against one span
_NOISE = 0.01  # variance of a span's relative error
_UNSURE = 1.5  # standard deviations below the estimate that the evidence still allows
_CHANGED, _IN_A_ROW = 1.3, 5  # so many calls in a row off by this factor in one direction: the engine has changed
_PROOFS = 8  # recent answers that bound what a call can take
_AT_ONCE = 0.02  # an answer came as a whole if its tokens took less than this share of its time
_CHARS_PER_TOKEN = 4.0

Parts = tuple[float, float, float, float]  # starts, prompt tokens, steps, steps multiplied by the calls beside


@dataclass(frozen=True, slots=True)
class Span:
    """A measured time, and what happened in it."""

    seconds: float
    parts: Parts


@dataclass(frozen=True, slots=True)
class ServiceSample:
    """What one answered call tells about the engine's speed. None: that part was not seen separately."""

    prompt_tokens: int | None  # that the engine computed; None: unknown, or the call waited inside the engine
    tokens: int
    first_token_s: float | None  # from the call's start in the engine
    decode_s: float | None  # from the first token to the last
    beside: float  # mean number of calls that the engine worked on meanwhile, including this one
    total_s: float | None = None  # from the call's start to its end
    prompt_s: float | None = None  # as the engine itself reports it, without any wait

    def spans(self) -> list[Span]:
        """Every part that was seen separately, else the whole. Empty if no part is clean. A span in which no token
        was read or made has no scale, and is left out."""
        prompt, tokens, beside = self.prompt_tokens, self.tokens, self.beside
        found = []
        if self.prompt_s is not None and prompt is not None:
            found.append(Span(self.prompt_s, (1.0, prompt, 0.0, 0.0)))
        elif self.first_token_s is not None and prompt is not None:
            found.append(Span(self.first_token_s, (1.0, prompt, 1.0, beside)))
        if self.decode_s is not None and tokens > 1:
            found.append(Span(self.decode_s, (0.0, 0.0, tokens - 1.0, (tokens - 1.0) * beside)))
        if not found and self.total_s is not None and prompt is not None:
            found.append(Span(self.total_s, (1.0, prompt, float(tokens), tokens * beside)))
        return [span for span in found if 0.0 < span.seconds < math.inf and any(span.parts[1:])]


def arrived_at_once(first_s: float, decode_s: float, tokens: int, pieces: int) -> bool:
    """True if a stream's tokens came in a way that says nothing about when they were made.

    Either they came all at once (a buffering proxy, or a tool call that is held back until it is complete), or fewer
    came than were made (a model that thinks silently).
    """
    unseen = tokens > 1.25 * pieces + 2
    return unseen or (tokens >= 4 and decode_s < _AT_ONCE * (first_s + decode_s))


class ServiceModel:
    """The speed of one replica, as a StepModel. Before any traffic it is the default one, which is fast, so that no
    call is refused for lack of knowledge."""

    def __init__(self) -> None:
        self._sums = _Sums()
        self._calls = 0
        self._last: deque[list[Span]] = deque(maxlen=_IN_A_ROW)
        self._proofs: deque[ServiceSample] = deque(maxlen=_PROOFS)
        self._fit: _Fit | None = None
        self._off = 0  # calls in a row that took longer than expected; negative: shorter

    @property
    def step(self) -> StepModel:
        if not self.known:
            return StepModel()
        start, prompt, base, each = self._fitted().parts
        return StepModel(1000 * base, 1000 * each, 0.0, 1000 * prompt, 1000 * start)

    @property
    def known(self) -> bool:
        return self._calls >= _ENOUGH

    def observe(self, seen: ServiceSample) -> None:
        if seen.total_s is not None or (seen.first_token_s is not None and seen.decode_s is not None):
            self._proofs.append(seen)
        if not (spans := seen.spans()):
            return
        if self.known:
            self._follow(spans)
        self._last.append(spans)
        self._calls += 1
        self._fit = None
        if abs(self._off) < _IN_A_ROW:
            self._sums.add(spans)
            return
        self._off, self._sums = 0, _Sums()
        for recent in self._last:
            self._sums.add(recent)

    def expected_s(self, prompt_tokens: float, tokens: float, beside: float) -> float:
        """Expected seconds for such a call; 0 while nothing is known."""
        return (
            self._fitted().expected((1.0, float(prompt_tokens), float(tokens), tokens * beside))
            if self.known
            else 0.0
        )

    def least_s(self, prompt_tokens: float, tokens: float, beside: float) -> float:
        """The least seconds for such a call that the evidence allows; 0 while nothing is known."""
        if not self.known:
            return 0.0
        parts = (1.0, float(prompt_tokens), float(tokens), tokens * beside)
        return min(self._fitted().least(parts), self._proved_s(prompt_tokens, tokens))

    def _proved_s(self, prompt_tokens: float, tokens: float) -> float:
        """An upper bound for such a call on an idle engine, from recent answers: no part of it takes longer than the
        same part of them did."""
        most = math.inf
        for seen in self._proofs:
            parts_s = (seen.first_token_s or 0.0) + (seen.decode_s or 0.0)
            took_s = parts_s if seen.total_s is None else seen.total_s
            prompt = math.inf if prompt_tokens > 1 else 1.0
            if seen.prompt_tokens:
                prompt = prompt_tokens / seen.prompt_tokens
            most = min(most, took_s * max(1.0, prompt, tokens / max(1, seen.tokens)))
        return most

    def _follow(self, spans: Sequence[Span]) -> None:
        """Count calls in a row that are off in one direction. If the engine has changed, the old spans mislead."""
        said_s = sum(self._fitted().expected(span.parts) for span in spans)
        took_s = sum(span.seconds for span in spans)
        if took_s > _CHANGED * said_s:
            self._off = max(0, self._off) + 1
        elif said_s > _CHANGED * took_s:
            self._off = min(0, self._off) - 1
        else:
            self._off = 0

    def _fitted(self) -> _Fit:
        if self._fit is None:
            self._fit = _Fit(self._sums)
        return self._fit


class _Sums:
    """The normal equations of all spans, over their relative errors; newer spans weigh more."""

    def __init__(self) -> None:
        self.a = [[0.0] * 4 for _ in range(4)]
        self.b = [0.0] * 4

    def add(self, spans: Sequence[Span]) -> None:
        """Add the spans of one call."""
        rows = [[part / span.seconds for part in span.parts] for span in spans]
        for i in range(4):
            self.b[i] = _DECAY * self.b[i] + sum([row[i] for row in rows])
            for j in range(4):
                self.a[i][j] = _DECAY * self.a[i][j] + sum([row[i] * row[j] for row in rows])


class _Fit:
    """Weighted least squares over relative errors, with non-negative parts and the usual engine as the prior."""

    def __init__(self, sums: _Sums) -> None:
        usual = [_dot(row, _USUAL) for row in sums.a]
        scale = _dot(_USUAL, sums.b) / _dot(_USUAL, usual)  # seconds of a step, if this engine were the usual one
        self._a = [list(row) for row in sums.a]
        b = list(sums.b)
        for i in range(4):
            weight = _PRIOR / (scale * _SPREAD[i]) ** 2
            self._a[i][i] += weight
            b[i] += weight * scale * _USUAL[i]
        self.parts = _not_below_nothing(self._a, b)

    def expected(self, parts: Parts) -> float:
        return _dot(self.parts, parts)

    def least(self, parts: Parts) -> float:
        """The estimate minus its uncertainty, for a call of these parts."""
        variance = _NOISE * _dot(_solved(self._a, list(parts)), parts)
        return max(0.0, self.expected(parts) - _UNSURE * math.sqrt(max(0.0, variance)))


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _not_below_nothing(a: Sequence[Sequence[float]], b: Sequence[float]) -> Parts:
    """The least-squares solution with non-negative parts: negative ones are fixed at 0, the most negative one
    first."""
    free = [0, 1, 2, 3]
    while free:
        found = _solved([[a[i][j] for j in free] for i in free], [b[i] for i in free])
        low = min(range(len(free)), key=lambda at: found[at] * math.sqrt(a[free[at]][free[at]]))
        if found[low] >= 0.0:
            break
        del free[low]
    parts = [0.0] * 4
    for at, value in zip(free, found, strict=True):
        parts[at] = value
    return parts[0], parts[1], parts[2], parts[3]


def _solved(a: Sequence[Sequence[float]], b: Sequence[float]) -> list[float]:
    """Solve `a x = b` for a positive definite `a`: scale to a unit diagonal, then Gaussian elimination."""
    n = len(b)
    scale = [1.0 / math.sqrt(a[i][i]) for i in range(n)]
    rows = [[a[i][j] * scale[i] * scale[j] for j in range(n)] + [b[i] * scale[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda at: abs(rows[at][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for below in rows[i + 1 :]:
            factor = below[i] / rows[i][i]
            for j in range(i, n + 1):
                below[j] -= factor * rows[i][j]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (rows[i][n] - sum(rows[i][j] * x[j] for j in range(i + 1, n))) / rows[i][i]
    return [value * scale[i] for i, value in enumerate(x)]


class PromptSizes:
    """Estimates a prompt's tokens from its characters, before an engine has counted them."""

    def __init__(self) -> None:
        self._chars, self._tokens = 8 * _CHARS_PER_TOKEN, 8.0

    def guess(self, chars: int) -> int:
        return max(1, round(chars * self._tokens / self._chars))

    def observe(self, chars: int, tokens: int) -> None:
        if chars > 0 and tokens > 0:
            self._chars, self._tokens = 0.97 * self._chars + chars, 0.97 * self._tokens + tokens
