"""Signs of life of an engine: which call blocks its loop, and what its metrics say about its work.

llama.cpp works on all its calls in one loop. A call with an output constraint (JSON schema, pattern or grammar) that
leaves too many choices blocks that loop for everybody, even after its client has left. An engine whose loop is stuck
is restarted (see `supervisor`), and the next one does its calls, except for the call that would block it as well.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from ramify.serving.gateway.engines.constraint_checks import CONSTRAINT_FIELDS, TOO_COSTLY, has_constraint
from ramify.serving.gateway.errors import ApiError

if TYPE_CHECKING:
    from ramify.serving.gateway.records.calls import Call
    from ramify.serving.stall_clock import StallAwareClock

STOOD_STILL = "engine_stood_still"
_MOST = 2  # a call with a constraint that was in so many stuck engines is not tried again


class ConstrainedCalls:
    """The calls with an output constraint that were in an engine since its loop was last seen to turn."""

    def __init__(self) -> None:
        self._inside: set[int] = set()
        self._since: set[int] = set()

    @contextmanager
    def inside(self, call: Call) -> Iterator[None]:
        """Enter while the engine works on the call."""
        self._inside.add(call.id)
        self._since.add(call.id)
        try:
            yield
        finally:
            self._inside.discard(call.id)

    @property
    def suspected(self) -> bool:
        """True while one of them may block the loop."""
        return bool(self._since)

    def asking(self) -> set[int]:
        """The calls that had left before the loop was asked whether it turns."""
        return self._since - self._inside

    def turned(self, gone: set[int]) -> None:
        """The loop turns: the calls in `gone` cannot be the reason if it is stuck later."""
        self._since -= gone

    def blame(self, call: Call, body: Mapping[str, object]) -> ApiError | None:
        """The error for a call that was in the engine when it got stuck, if the call is the reason.

        If other constrained calls were inside too, that is known only once the call was in a second stuck engine.
        """
        if call.id not in self._since:
            return None
        call.stood_still += 1
        if self._since != {call.id} and call.stood_still < _MOST:
            return None
        return _too_costly(body, "the engine got stuck on this constraint, and was restarted")


@asynccontextmanager
async def limited(
    constrained: ConstrainedCalls, awake: StallAwareClock, call: Call, body: Mapping[str, object], *, whole_s: float
) -> AsyncIterator[None]:
    """Enter while an engine works on a call. A call with an output constraint gets only `whole_s` seconds: in an
    engine with one loop each of its tokens may cost everybody seconds. Raises ApiError."""
    if not has_constraint(body):
        yield
        return
    with constrained.inside(call):
        try:
            async with awake.timeout(whole_s):
                yield
        except TimeoutError:
            raise _too_costly(body, f"no whole answer with this constraint came within {whole_s:g} s") from None


def _too_costly(body: Mapping[str, object], why: str) -> ApiError:
    field = next((name for name in CONSTRAINT_FIELDS if body.get(name)), None)
    return ApiError(400, TOO_COSTLY, f"{field}: {why}: ask for a simpler one", field)


_COUNTS = (  # counters of a model's work, in the metrics of vLLM and of llama.cpp
    b"vllm:generation_tokens_total",
    b"vllm:prompt_tokens_total",
    b"vllm:kv_cache_usage_perc",  # grows while a long prompt is read; the token counter grows only at its end
    b"llamacpp:n_decode_total",
)


_HELD = re.compile(  # calls that wait or run, in the metrics of vLLM and of a Ramify gateway
    rb"^(?:vllm:num_requests_(?:running|waiting)|ramify_(?:running|waiting))(?:\{[^}\n]*\})?[ \t]+([0-9.e+]+)", re.M
)


def calls_held(metrics: bytes) -> float | None:
    """How many calls the engine has, paused ones included; None if its metrics do not say."""
    counts = _HELD.findall(metrics)
    try:
        return sum(map(float, counts)) if counts else None
    except ValueError:
        return None


def work_counters(metrics: bytes) -> tuple[bytes, ...]:
    """The metric lines that count the model's work; empty if there are none."""
    return tuple(line for line in metrics.splitlines() if line.startswith(_COUNTS))
