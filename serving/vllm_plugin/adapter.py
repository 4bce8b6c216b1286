"""All that the plug-in does to vLLM's scheduler beyond calling its methods: one small class for each version.

vLLM says that the scheduler's interface is not public. So what we touch is named here as a protocol, each version's
adapter was written with that version's source at hand, and a version without an adapter is refused at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ramify.serving.vllm_plugin.errors import UnsupportedVllm

HELD = 1 << 62  # a step that never comes: the running loop passes by a request that is eligible only from there


class SamplingLike(Protocol):
    extra_args: Mapping[str, object] | None


class RequestLike(Protocol):
    """Of vllm.v1.request.Request, what is read or written."""

    request_id: str
    client_index: int
    arrival_time: float
    priority: int
    num_prompt_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    max_tokens: int
    next_decode_eligible_step: int
    sampling_params: SamplingLike | None
    status: Any

    @property
    def num_output_tokens(self) -> int: ...

    def is_finished(self) -> bool: ...


class Adapter(Protocol):
    version: str

    def reorder(self, scheduler: Any, best_first: Sequence[RequestLike]) -> None:
        """Make `best_first` the order in which vLLM admits; the others behind, as they stood."""

    def order_running(self, scheduler: Any, last: Iterable[str]) -> None:
        """Put these at the end of what runs: there vLLM takes its victims when KV runs out."""

    def preempt(self, scheduler: Any, request: RequestLike, stamp: float) -> None: ...

    def hold(self, scheduler: Any, request: RequestLike) -> None:
        """Keep its KV, and give it no more steps."""

    def release(self, scheduler: Any, request: RequestLike) -> None: ...

    def cached_tokens(self, scheduler: Any, request: RequestLike) -> int:
        """Of its prompt, in the prefix cache now."""

    def free_tokens(self, scheduler: Any) -> int: ...

    def refuse(self, scheduler: Any, requests: Sequence[RequestLike]) -> None:
        """End them: their KV and their places are free when this returns."""

    def refusal_output(self, request: RequestLike, text: str) -> Any:
        """The EngineCoreOutput that tells the client why."""


def adapter_for(version: str) -> Adapter:
    """Raises UnsupportedVllm."""
    from ramify.serving.vllm_plugin.v032 import V032
    from ramify.serving.vllm_plugin.v033 import V033

    known: dict[str, type[Adapter]] = {"0.32": V032, "0.33": V033}
    minor = ".".join(version.split(".")[:2])
    if minor not in known:
        raise UnsupportedVllm(version, tuple(known))
    return known[minor]()
