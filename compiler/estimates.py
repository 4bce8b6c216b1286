"""The protocol by which the compiler asks for measurements, and an implementation without any.

The compiler is pure, so whoever has recorded runs implements `Estimates` (`ramify.runtime.estimates.recorded_runs`),
or, if there are no runs, whoever knows a gateway that has seen the workflow's calls
(`ramify.runtime.estimates.gateway_history`). Any answer may be None for "not known"; a pass that needs it then leaves
the graph unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ramify.compiler.plan import OpId, StagePlan


class CallEstimate(Protocol):
    """The model calls of one operation, made at the same time."""

    @property
    def calls(self) -> int: ...

    @property
    def prefill(self) -> float:
        """Prompt tokens of each call."""
        ...

    @property
    def output(self) -> float:
        """Median output tokens of a call."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds until the last call has answered."""
        ...


class Estimates(Protocol):
    """What recorded runs of a workflow show."""

    def valid_for_code(self, workflow: str, steps: Mapping[str, str]) -> Estimates:
        """Return the estimates that still hold for code with these digests.

        A changed step may take another time and write other files. In a changed workflow, an operation of the same
        name may be another one.
        """
        ...

    def step_s(self, step: str) -> float | None:
        """Return the median seconds that a step takes."""
        ...

    def rerun_s(self, step: str) -> float | None:
        """Return the median seconds of the step's code alone: the time of running it again on an existing world."""
        ...

    def calls(self, op: OpId) -> CallEstimate | None:
        """Return the model calls made at, or inside, an operation."""
        ...

    def stages(self) -> tuple[StagePlan, ...]:
        """Return the stages of a run in their order, on whatever path: as many as every recorded run had."""
        ...

    def width(self, fork: OpId) -> int | None:
        """Return how many branches a FORK makes."""
        ...

    def seal_s(self) -> float | None:
        """Return the median seconds of sealing a changed world and recording it."""
        ...

    def wrote(self, step: str) -> Mapping[str, tuple[str, ...]]:
        """Return the `files` and `channels` that a step changed in recorded runs. It may change others."""
        ...

    def begins_without(self, path: str) -> bool:
        """Return whether runs begin without a file at this path, so that two branches that create it conflict."""
        ...


class Unmeasured:
    """Estimates without any recorded run."""

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
        return True


UNMEASURED = Unmeasured()
