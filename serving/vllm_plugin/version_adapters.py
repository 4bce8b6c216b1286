"""All that the plug-in does to vLLM's scheduler beyond calling its methods: one small class for each version.

vLLM says that the scheduler's interface is not public. So what we touch is named here as a protocol, each version's
adapter was written with that version's source at hand, and a version without an adapter is refused at the start.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from ramify.serving.vllm_plugin.errors import UnsupportedVllm

_NAME = attrgetter("request_id")


class V032:
    version = "0.32"

    def reorder(self, scheduler: Any, best_first: Sequence[RequestLike]) -> None:
        queue = scheduler.waiting
        placed = set(map(_NAME, best_first))
        order = [*best_first, *[request for request in queue if request.request_id not in placed]]
        if self._by_priority(scheduler):
            for rank, request in enumerate(order):
                request.priority = rank
            queue._heap[:] = order
            heapq.heapify(queue._heap)
        else:
            queue.clear()
            queue.extend(order)

    def order_running(self, scheduler: Any, last: Iterable[str]) -> None:
        behind = set(last)
        if not behind:
            return
        running = scheduler.running
        tail = [request for request in running if request.request_id in behind]
        running[:] = [request for request in running if request.request_id not in behind] + tail
        if self._by_priority(scheduler):
            for request in tail:
                request.priority = HELD

    def preempt(self, scheduler: Any, request: RequestLike, stamp: float) -> None:
        scheduler.running.remove(request)
        scheduler._preempt_request(request, stamp)  # puts it at the head of the queue; reorder follows
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)

    def hold(self, scheduler: Any, request: RequestLike) -> None:
        request.next_decode_eligible_step = HELD

    def release(self, scheduler: Any, request: RequestLike) -> None:
        request.next_decode_eligible_step = 0

    def cached_tokens(self, scheduler: Any, request: RequestLike) -> int:
        if not scheduler.kv_cache_manager.enable_caching:
            return 0
        return int(scheduler.kv_cache_manager.get_computed_blocks(request)[1])

    def free_tokens(self, scheduler: Any) -> int:
        return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks() * scheduler.block_size)

    def refuse(self, scheduler: Any, requests: Sequence[RequestLike]) -> None:
        from vllm.v1.request import RequestStatus

        scheduler.finish_requests([request.request_id for request in requests], RequestStatus.FINISHED_ABORTED)

    def refusal_output(self, request: RequestLike, text: str) -> Any:
        """An error output becomes "500 Internal Server Error" without a word here, so it is an abort, with the reason
        where an OpenAI answer carries it: `choices[0].stop_reason`."""
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        return EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ABORT, stop_reason=text)

    @staticmethod
    def _by_priority(scheduler: Any) -> bool:
        return bool(scheduler.policy.value == "priority")


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
    pass
    from ramify.serving.vllm_plugin.v033 import V033

    known: dict[str, type[Adapter]] = {"0.32": V032, "0.33": V033}
    minor = ".".join(version.split(".")[:2])
    if minor not in known:
        raise UnsupportedVllm(version, tuple(known))
    return known[minor]()
