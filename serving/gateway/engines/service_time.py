"""How fast an engine is, learnt from the calls that it answers: what makes `earliest_feasible_s` a real figure.

A gateway sees no engine step. It sees how long a call, or a part of one, took, and knows what lay in that time: the
call's start, tokens of a prompt, tokens of an answer, other calls beside it. Each such span is one equation

    seconds = start + prompt tokens · a + answer tokens · (base + calls beside · each)

and all recent ones are fitted jointly. So an answer that came as a whole, whose prompt and answer cannot be told
apart, is booked to neither: it constrains their sum, and other spans separate them. Spans count by their relative
error. A call that waited for something that nobody saw therefore weighs less than one that came quickly: the quick
one proves what the engine can do.

What the spans do not separate is split by what engines are usually like, and the fit knows how unsure it is about
each call: `least_s` is the least time that the evidence allows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ramify.serving.policy.types import StepModel

_DECAY = 0.95  # what each older call weighs against the next
_ENOUGH = 3  # calls before which nothing is claimed to be known
_USUAL = (0.0, 0.03, 1.0, 0.002)  # start, prompt token, step and each call beside, in steps: where nothing says more
_SPREAD = (0.8, 0.03, 1.0, 0.01)  # by how much engines differ in each
_PRIOR = 0.0001  # what that weighs against one span
_NOISE = 0.01  # variance of a span's relative error
_UNSURE = 1.5  # standard deviations below the estimate at which the evidence still allows a call's time
_CHANGED, _IN_A_ROW = 1.3, 5  # so many calls, all off by this factor in one direction: the engine is another one now
_PROOFS = 8  # recent answers that bound what a call can take
_AT_ONCE = 0.02  # an answer whose tokens took less of its time than this came as a whole, whatever it was asked for
_CHARS_PER_TOKEN = 4.0

Parts = tuple[float, float, float, float]  # starts, prompt tokens, steps, steps times the calls beside


@dataclass(frozen=True, slots=True)
class Span:
    """A time that was measured, and what lay in it."""

    seconds: float
    parts: Parts


@dataclass(frozen=True, slots=True)
class Service:
    """One answered call, as far as it tells of the engine's speed. None: that part was not seen by itself."""

    prompt_tokens: int | None  # that the engine computed; None: unknown, or it waited before it did
    tokens: int
    first_token_s: float | None  # from its start in the engine
    decode_s: float | None  # from the first token to the last
    beside: float  # calls that the engine worked on meanwhile, itself included, on average
    total_s: float | None = None  # from its start to its end
    prompt_s: float | None = None  # by the engine's own account, and without any wait

    def spans(self) -> list[Span]:
        """Every part that was seen by itself; else the whole. None of a call of which no part is clean."""
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
        return [span for span in found if 0.0 < span.seconds < math.inf]


def arrived_at_once(first_s: float, decode_s: float, tokens: int, pieces: int) -> bool:
    """Did a stream's tokens come in a way that says nothing of when they were made? All at once, as behind a proxy
    that buffers and where a tool's call is held back until it is complete; or fewer than were made, as where a model
    thinks in silence."""
    unseen = tokens > 1.25 * pieces + 2
    return unseen or (tokens >= 4 and decode_s < _AT_ONCE * (first_s + decode_s))


class ServiceModel:
    """A StepModel of one replica. Until there was traffic it is the default one, which is fast: nothing is refused
    for want of knowledge."""

    def __init__(self) -> None:
        self._sums = _Sums()
        self._calls = 0
        self._last: deque[list[Span]] = deque(maxlen=_IN_A_ROW)
        self._proofs: deque[Service] = deque(maxlen=_PROOFS)
        self._fit: _Fit | None = None
        self._off = 0  # calls in a row that took longer than was said; shorter, below 0

    @property
    def step(self) -> StepModel:
        if not self.known:
            return StepModel()
        start, prompt, base, each = self._fitted().parts
        return StepModel(1000 * base, 1000 * each, 0.0, 1000 * prompt, 1000 * start)

    @property
    def known(self) -> bool:
        return self._calls >= _ENOUGH

    def observe(self, seen: Service) -> None:
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
        """0 where nothing is known."""
        return (
            self._fitted().expected((1.0, float(prompt_tokens), float(tokens), tokens * beside))
            if self.known
            else 0.0
        )

    def least_s(self, prompt_tokens: float, tokens: float, beside: float) -> float:
        """The least time for such a call that the evidence allows; 0 where nothing is known."""
        if not self.known:
            return 0.0
        parts = (1.0, float(prompt_tokens), float(tokens), tokens * beside)
        return min(self._fitted().least(parts), self._proved_s(prompt_tokens, tokens))

    def _proved_s(self, prompt_tokens: float, tokens: float) -> float:
        """The most that such a call takes on an idle engine, by recent answers: no part of it takes longer than that
        part of them did."""
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
        """Count calls that are off in one direction: the fit of an engine that has changed is led by its past."""
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
    """The normal equations of all spans over their relative errors, the newest weighing most."""

    def __init__(self) -> None:
        self.a = [[0.0] * 4 for _ in range(4)]
        self.b = [0.0] * 4

    def add(self, spans: Sequence[Span]) -> None:
        """Those of one call."""
        rows = [[part / span.seconds for part in span.parts] for span in spans]
        for i in range(4):
            self.b[i] = _DECAY * self.b[i] + sum([row[i] for row in rows])
            for j in range(4):
                self.a[i][j] = _DECAY * self.a[i][j] + sum([row[i] * row[j] for row in rows])


class _Fit:
    """Weighted least squares over relative errors, no part below nothing, with what is usual as the prior."""

    def __init__(self, sums: _Sums) -> None:
        usual = [_dot(row, _USUAL) for row in sums.a]
        scale = _dot(_USUAL, sums.b) / _dot(_USUAL, usual)  # seconds of a step, were this engine like the usual one
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
        """The estimate less its uncertainty for a call of such parts."""
        variance = _NOISE * _dot(_solved(self._a, list(parts)), parts)
        return max(0.0, self.expected(parts) - _UNSURE * math.sqrt(max(0.0, variance)))


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _not_below_nothing(a: Sequence[Sequence[float]], b: Sequence[float]) -> Parts:
    """The least-squares solution; a part that would be negative is left out, the most negative one first."""
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
    """x of `a x = b`, for a positive definite `a`: scaled to a unit diagonal, then by Gauss."""
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
    """Tokens of a prompt, guessed from its characters before any engine has counted them."""

    def __init__(self) -> None:
        self._chars, self._tokens = 8 * _CHARS_PER_TOKEN, 8.0

    def guess(self, chars: int) -> int:
        return max(1, round(chars * self._tokens / self._chars))

    def observe(self, chars: int, tokens: int) -> None:
        if chars > 0 and tokens > 0:
            self._chars, self._tokens = 0.97 * self._chars + chars, 0.97 * self._tokens + tokens
