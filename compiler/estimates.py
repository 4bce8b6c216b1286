"""What the compiler asks of measurement, and the answer of one who has measured nothing.

The compiler is pure: whoever has the recorded runs fills this protocol (`ramify.runtime.estimates.recorded_runs`), or, where there
are none, who knows a gateway that has seen the workflow's calls (`ramify.runtime.estimates.gateway_history`). Every answer may be None,
"not known"; a pass that needs it then leaves the graph as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ramify.compiler.plan import OpId, StagePlan


class CallEstimate(Protocol):
    """The model calls of one operation, made at once."""

    @property
    def calls(self) -> int: ...

    @property
    def prefill(self) -> float:
        """Tokens of each."""
        ...

    @property
    def output(self) -> float:
        """Tokens, the median of a call."""
        ...

    @property
    def seconds(self) -> float:
        """Until the last has answered."""
        ...


class Estimates(Protocol):
    def valid_for_code(self, workflow: str, steps: Mapping[str, str]) -> Estimates:
        """What still holds for code of these digests: a changed step may take another time and write other files, and
        in a changed workflow an operation of the same name may be another one."""
        ...

    def step_s(self, step: str) -> float | None:
        """Median seconds that go by in a step."""
        ...

    def rerun_s(self, step: str) -> float | None:
        """Median seconds of its code alone: what doing it again takes, on a world that stands."""
        ...

    def calls(self, op: OpId) -> CallEstimate | None:
        """The model calls made at, or inside, this operation."""
        ...

    def stages(self) -> tuple[StagePlan, ...]:
        """The stages of a run in their order, whatever way it went: as many as every recorded run had."""
        ...

    def width(self, fork: OpId) -> int | None:
        """How many branches that FORK makes."""
        ...

    def seal_s(self) -> float | None:
        """Median seconds of sealing a changed world and recording it."""
        ...

    def wrote(self, step: str) -> Mapping[str, tuple[str, ...]]:
        """The `files` and `channels` that it changed in recorded runs: no bound on what it may change."""
        ...

    def begins_without(self, path: str) -> bool:
        """Whether runs begin with nothing at that path of their workspace, and two who make it there must meet."""
        ...


class Unmeasured:
    """Nothing was recorded yet."""

    def valid_for_code(self, workflow: str, steps: Mapping[str, str]) -> Estimates:
        return self

    def step_s(self, step: str) -> float | None:
        return None

    def rerun_s(self, step: str) -> float | None:
        return None

    def calls(self, op: OpId) -> CallEstimate | None:
        return None

    def stages(self) -> tuple[StagePlan, ...]:
        return ()

    def width(self, fork: OpId) -> int | None:
        return None

    def seal_s(self) -> float | None:
        return None

    def wrote(self, step: str) -> Mapping[str, tuple[str, ...]]:
        return {}

    def begins_without(self, path: str) -> bool:
        return True  # on no workspace


UNMEASURED = Unmeasured()
