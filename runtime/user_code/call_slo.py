"""`slo`: what the running code says of its model calls beyond the run's deadline. A context variable holds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

from ramify.runtime.durations import Duration, seconds
from ramify.serving.protocol.tags import SLOTags


@dataclass(frozen=True, slots=True)
class CallSLO:
    """What is said of a model call; None is not said. Times in seconds, the first two from the moment of sending."""

    first_token_s: float | None = None
    think_s: float | None = None
    per_token_s: float | None = None
    weight: float | None = None
    stream: bool | None = None
    last: bool | None = None
    need: int | None = None  # so many answers of a stage of equal prompts suffice

    def on(self, tags: SLOTags) -> SLOTags:
        """Add it to the tags of a call. Raises `BadTags`."""
        given = {
            "slo_ttft_s": self.first_token_s,
            "slo_think_s": self.think_s,
            "slo_tbt_s": self.per_token_s,
            "goodput_weight": self.weight,
            "slo_class": "stream" if self.stream else None,
            "compound_last": None if self.last is None else int(self.last),
            "fork_need": None if tags.fork_size is None else self.need,
        }
        return replace(tags, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # each is of its tag's type


NOTHING_SAID = CallSLO()
_current: ContextVar[CallSLO] = ContextVar("ramify_slo", default=NOTHING_SAID)


def call_slo() -> CallSLO:
    """Return what the running code said of its model calls."""
    return _current.get()


@contextmanager
def slo(
    *,
    stream: bool | None = None,
    first_token: Duration | None = None,
    per_token: Duration | None = None,
    think: Duration | None = None,
    last: bool | None = None,
    weight: float | None = None,
) -> Iterator[None]:
    """Say more of the model calls in this block than the run's deadline does: `with ramify.slo(last=True): ...`.

    It holds for `ramify.llm` and for clients of your own that are tagged. A block inside another one changes only
    what it names.

    Args:
        stream: a person reads the answer while it comes; it is judged by its quality of experience.
        first_token: within what time the first token is needed.
        per_token: within what time each further token is needed, or the reader's time for one.
        think: within what time the model must have finished thinking; `per_token` applies after that.
        last: these are the workflow's last calls. After them the gateway says whether the run met its deadline, and
            vLLM with Ramify's scheduler frees the run's contexts. `first_token` and `per_token` hold with and without
            it. The policies `calm-thesis` and `concord` with `goodput=token` then count the tokens on schedule and
            not the whole run; `concord` by default counts runs, so it orders the calls as without `last`.
        weight: what it is worth to be in time, 1 for all others.

    Raises `ValueError` for a time or a weight that is not above 0.
    """
    if weight is not None and not 0 < weight < float("inf"):
        raise ValueError(f"slo(weight={weight!r}): a weight is above 0")
    said = CallSLO(_s(first_token), _s(think), _s(per_token), weight, stream, last)
    token = _current.set(_over(_current.get(), said))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def said_before(said: CallSLO) -> Iterator[None]:
    """The block goes on with what code in another process said of its model calls."""
    token = _current.set(said)
    try:
        yield
    finally:
        _current.reset(token)


def _s(value: Duration | None) -> float | None:
    return None if value is None else seconds(value)


def _over(outer: CallSLO, inner: CallSLO) -> CallSLO:
    named = {one.name: getattr(inner, one.name) for one in fields(inner) if getattr(inner, one.name) is not None}
    return replace(outer, **named)
