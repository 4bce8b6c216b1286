"""vLLM 0.32: vllm/v1/core/sched/scheduler.py, request_queue.py, vllm/v1/engine/__init__.py."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from ramify.serving.vllm_plugin.adapter import HELD, RequestLike

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
