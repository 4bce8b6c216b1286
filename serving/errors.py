"""What can go wrong between a workflow and its model.

ServingError
├── ModelMissing          the weights are not here (and how to fetch them)
├── ModelCorrupt          the weights do not match their sha256
├── DownloadFailed        the weights could not be fetched
├── EngineFailed          the local engine did not start or died
├── Exposed               the gateway would let in everybody in the network
├── BadTags               a tag is malformed; `.field` names it
└── LLMError              a call did not give a result; nothing of it counts as done
    ├── LLMUnavailable    down, refusing, 5xx, a cut stream: retried within the deadline, then this
    ├── LLMTimeout        it did not answer in the time there was
    ├── LLMRejected       the server said no (4xx): a retry would not help
    ├── UsedAfterFork     a client with open connections was used in a forked child
    └── DeadlineInfeasible  422: it cannot be done in time; `.earliest_feasible_s`
"""

from __future__ import annotations


class ServingError(Exception):
    """Anything that the serving layer reports."""


class ModelMissing(ServingError):
    """The weights are not on this machine."""


class ModelCorrupt(ServingError):
    """The weights are not the bytes that they should be."""


class DownloadFailed(ServingError):
    """The weights could not be fetched."""


class EngineFailed(ServingError):
    """The local engine did not start, or died."""


class Exposed(ServingError):
    """The gateway would listen beyond this machine, and no keys are set."""


class BadTags(ServingError, ValueError):
    """A tag is malformed."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}")


class LLMError(ServingError):
    """A call gave no result."""


class LLMUnavailable(LLMError):
    """The server is down, fails, or cut the stream, and retrying did not help in time."""


class LLMTimeout(LLMError):
    """No answer in the time there was."""


class LLMRejected(LLMError):
    """The server refused the request as such."""

    def __init__(self, message: str, *, status: int, code: str | None = None) -> None:
        self.status = status
        self.code = code
        super().__init__(message)


class UsedAfterFork(LLMError):
    """A client whose connections another process opened was used in a forked child of it."""


class DeadlineInfeasible(LLMError):
    """The deadline cannot be met, the gateway says so at once."""

    def __init__(self, message: str, *, earliest_feasible_s: float | None) -> None:
        self.earliest_feasible_s = earliest_feasible_s
        super().__init__(message)


class AnalyzerError(ServingError):
    """Anything that the analyzer reports."""


class AnalyzerDown(AnalyzerError):
    """The analyzer's process cannot be reached, or does not start."""


class BadFrame(AnalyzerError):
    """A frame that cannot be read, or asks for what there is not."""


class CheckpointCorrupt(AnalyzerError):
    """A checkpoint that cannot be read whole."""
