"""Errors of a replay.

ReplayError
├── NoVllm       no interpreter has vLLM's scheduler
├── BadTrace     a file is no trace or measured run; `.path`
├── TooLong      a call is longer than the engine's KV
├── TooMany      there are more programs than a replay can go through
├── TooFew       no program would be counted
├── BadSteps     a file is no step-time model, or no model fits the measured steps
├── BadProbe     the answers of a live engine cannot be timed
│   └── TooShort     they decoded together for too few steps
├── NoBound      the linear programme of a bound was not solved
├── Stuck        the scheduler has requests and gives none of them a token
└── WorkerDied   a worker process ended before its answer
"""

from __future__ import annotations

from pathlib import Path

from ramify.serving.errors import ServingError


class ReplayError(ServingError):
    """Base of the errors of a replay."""


class NoVllm(ReplayError):
    """No interpreter has vLLM's scheduler."""


class BadTrace(ReplayError, ValueError):
    """A file is no trace or measured run. `path` names it."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


class TooLong(ReplayError):
    """A call is longer than the engine's KV: it would wait for ever."""

    def __init__(self, tokens: int, kv_tokens: int) -> None:
        super().__init__(f"the trace has a call of {tokens} tokens, and the engine's KV holds {kv_tokens}")


class TooMany(ReplayError):
    """There are more programs than a replay can go through, because the trace's calls are almost empty."""

    def __init__(self, programs: float, most: int, load: float, seconds: float) -> None:
        super().__init__(
            f"load {load:g} for {seconds:g} s is {programs:,.0f} programs of this trace, whose calls cost next to "
            f"nothing, and a replay takes {most:,}: ask for fewer --seconds, or look at the trace's lengths"
        )


class TooFew(ReplayError):
    """All programs arrive outside the window in which they are counted."""

    def __init__(self, programs: int, begin: float, end: float) -> None:
        super().__init__(
            f"of {programs} programs none arrives between {begin:g} and {end:g} s, where they are counted: "
            "ask for more --seconds, or for a trace whose arrivals are spread"
        )


class BadSteps(ReplayError, ValueError):
    """A file is no step-time model, or no model fits the measured steps."""


class BadProbe(ReplayError):
    """The answers of a live engine cannot be timed."""


class TooShort(BadProbe):
    """Answers decoded together for too few steps."""


class NoBound(ReplayError):
    """The solver (HiGHS) found no optimum. There always is one."""


class Stuck(ReplayError):
    """The scheduler has requests and gives none of them a token."""


class WorkerDied(ReplayError):
    """A worker process ended before its answer."""
