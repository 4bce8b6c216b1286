"""The errors of the serving layer.

ServingError
├── ModelMissing          the weights are not here (the message says how to fetch them)
├── ModelCorrupt          the weights do not match their sha256
├── DownloadFailed        the weights could not be fetched
├── EngineFailed          the local engine did not start, or died
├── Exposed               the gateway would let in everybody in the network
├── BadSettings           a setting of a gateway that nothing reads, or that contradicts another
├── BadTags               a tag is malformed; `.field` names it
├── LLMError              a call gave no result; nothing of it counts as done
│   ├── LLMUnavailable    down, refusing, 5xx, or a cut stream: retried within the deadline, then this
│   ├── LLMTimeout        no answer before the deadline
│   ├── LLMRejected       the server refused the request (4xx): a retry would not help
│   ├── UsedAfterFork     a client with open connections was used in a forked child
│   └── DeadlineInfeasible  422: the deadline cannot be met; `.earliest_feasible_s`
├── ScalingError          replicas cannot be added or taken away as asked
│   ├── BadPool           a number of a pool makes no sense
│   ├── NoRoom            the hosts have no room for so many replicas
│   └── ScalingUnsupported  this engine's replicas are not ours to start
└── AnalyzerError         an error of the request analyzer; none of these stops scheduling
    ├── AnalyzerDown      its process cannot be reached, or does not start
    ├── AnalyzerApart     another gateway's process cannot be shared; `.folder` is for one's own
    ├── BadFrame          a message on its socket cannot be read
    └── CheckpointCorrupt its saved state is damaged; it starts without it, and says so

PluginError               an error of the vLLM plug-in, raised while vLLM builds its scheduler, before it serves
├── UnsupportedVllm       there is no adapter for this version of vLLM
└── BadOptions            --additional-config '{"ramify": …}' is not valid
"""

from __future__ import annotations


class ServingError(Exception):
    """Base class of the errors of the serving layer."""


class ModelMissing(ServingError):
    """The weights are not on this machine."""


class ModelCorrupt(ServingError):
    """The weights do not match their sha256."""


class DownloadFailed(ServingError):
    """The weights could not be fetched or written."""


class EngineFailed(ServingError):
    """The local engine did not start, or died."""


class Exposed(ServingError):
    """The gateway would listen beyond this machine, and no API keys are set."""


class BadSettings(ServingError, ValueError):
    """A setting of a gateway that nothing would read, that contradicts another, or that is out of range. The message
    names settings in backticks, by their fields of `GatewaySettings`."""


class BadTags(ServingError, ValueError):
    """A tag is malformed."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}")


class LLMError(ServingError):
    """A call gave no result."""


class LLMUnavailable(LLMError):
    """The server is down, fails, or cut the stream, and retries did not help in time."""


class LLMTimeout(LLMError):
    """The server did not answer before the deadline."""


class LLMRejected(LLMError):
    """The server refused the request (4xx)."""

    def __init__(self, message: str, *, status: int, code: str | None = None) -> None:
        self.status = status
        self.code = code
        super().__init__(message)


class UsedAfterFork(LLMError):
    """A client whose connections were opened by another process was used in a forked child."""


class DeadlineInfeasible(LLMError):
    """The gateway refused the call, because its deadline cannot be met."""

    def __init__(self, message: str, *, earliest_feasible_s: float | None) -> None:
        self.earliest_feasible_s = earliest_feasible_s
        super().__init__(message)


class ScalingError(ServingError):
    """Replicas cannot be added or taken away as asked."""


class BadPool(ScalingError, ValueError):
    """A number of a pool makes no sense."""


class NoRoom(ScalingError):
    """The hosts have no room for so many replicas."""


class ScalingUnsupported(ScalingError):
    """This engine's replicas are not ours to start."""


class AnalyzerError(ServingError):
    """Anything that the analyzer reports."""


class AnalyzerDown(AnalyzerError):
    """The analyzer's process cannot be reached, or does not start."""


class AnalyzerApart(AnalyzerError):
    """Another gateway's process cannot be shared: it is of another version, or on another machine. `.folder` is the
    name of a folder below for a process of one's own."""

    def __init__(self, message: str, folder: str) -> None:
        self.folder = folder
        super().__init__(message)


class BadFrame(AnalyzerError):
    """A message on the analyzer's socket that cannot be read, or asks for something unknown."""


class CheckpointCorrupt(AnalyzerError):
    """A checkpoint that cannot be read whole."""


class PluginError(Exception):
    """Base of the plug-in's errors."""


class UnsupportedVllm(PluginError):
    """There is no adapter for this version of vLLM."""

    def __init__(self, found: str, known: tuple[str, ...]) -> None:
        super().__init__(
            f"vLLM {found}: ConcordScheduler supports {' and '.join(known)} only, because the scheduler's interface "
            f"is not public and changes. Install one of these, or start vLLM without --scheduler-cls"
        )


class BadOptions(PluginError):
    """An option under "ramify" in --additional-config is not valid."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f'--additional-config, "ramify": {option}: {problem}')
