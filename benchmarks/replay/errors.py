"""What can keep a replay from running.

ReplayError
├── NoVllm       no interpreter with vLLM's scheduler: there is nothing to replay on
├── BadTrace     a file of arrivals, or of a measured run, that cannot be read as one; `.path`
├── TooLong      a call that the engine's KV cannot hold
├── TooMany      more programs than a replay can go through
├── TooFew       no program that would be counted
├── BadSteps     a step-time model's file that cannot be read, or steps that no model fits
├── BadProbe     a live engine whose answers cannot be timed
│   └── TooShort     they ended before enough steps were common to them
├── NoBound      the bound's linear programme was not solved
├── Stuck        the scheduler has requests and gives none of them a token
└── WorkerDied   a child process that replays ended before its answer
"""

from __future__ import annotations

from pathlib import Path

from ramify.serving.errors import ServingError


class ReplayError(ServingError):
    """Base of what replay raises."""


class NoVllm(ReplayError):
    """There is no vLLM to replay on."""


class BadTrace(ReplayError, ValueError):
    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


class TooLong(ReplayError):
    """A call that the engine's KV cannot hold: it would wait for ever."""

    def __init__(self, tokens: int, kv_tokens: int) -> None:
        super().__init__(f"the trace has a call of {tokens} tokens, and the engine's KV holds {kv_tokens}")


class TooMany(ReplayError):
    """So many programs would take hours: the trace's calls are all but empty."""

    def __init__(self, programs: float, most: int, load: float, seconds: float) -> None:
        super().__init__(
            f"load {load:g} for {seconds:g} s is {programs:,.0f} programs of this trace, whose calls cost next to "
            f"nothing, and a replay takes {most:,}: ask for fewer --seconds, or look at the trace's lengths"
        )


class TooFew(ReplayError):
    """All programs come while the engine warms up or cools down."""

    def __init__(self, programs: int, begin: float, end: float) -> None:
        super().__init__(
            f"of {programs} programs none arrives between {begin:g} and {end:g} s, where they are counted: "
            "ask for more --seconds, or for a trace whose arrivals are spread"
        )


class BadSteps(ReplayError, ValueError):
    """A step-time model cannot be read or fitted."""


class BadProbe(ReplayError):
    """A step-time model cannot be measured from this engine's answers."""


class TooShort(BadProbe):
    """Answers that were asked for together did not decode together for long enough."""


class NoBound(ReplayError):
    """HiGHS found no optimum: there always is one, so that this is the solver's."""


class Stuck(ReplayError):
    """Requests are in the engine and none of them moves."""


class WorkerDied(ReplayError):
    """A replay's child process ended before its answer."""
