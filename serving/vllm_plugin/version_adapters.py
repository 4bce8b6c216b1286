"""One adapter for each version of vLLM whose scheduler the plug-in supports.

vLLM's scheduler interface is not public. The `Adapter` protocol names everything that the plug-in does to vLLM's
scheduler beyond calling its methods. Each adapter was written against the source of its version. A version without an
adapter is refused when vLLM starts.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Protocol

from ramify.serving.errors import UnsupportedVllm

HELD = 1 << 62  # a step that never comes: vLLM skips a running request until its next eligible step
_NAME = attrgetter("request_id")
_TIERS = (
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
)  # what --kv-offloading-size uses: others fetch from peers


class SamplingLike(Protocol):
    extra_args: Mapping[str, object] | None


class RequestLike(Protocol):
    """The fields of vllm.v1.request.Request that the plug-in reads or writes."""

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


@dataclass(frozen=True, slots=True)
class Remembered:
    """What names a context in the engine's caches: the whole blocks of a call that has ended."""

    tokens: array[int]
    block_hashes: tuple[Any, ...]
    lora_request: Any
    cache_salt: str | None


class Later(Enum):
    """A question that is asked again."""

    LATER = "later"


LATER = Later.LATER


class Adapter(Protocol):
    version: str

    def reorder(self, scheduler: Any, best_first: Sequence[RequestLike]) -> None:
        """Make vLLM admit `best_first` in this order, then all other waiting requests in their present order."""

    def order_running(self, scheduler: Any, last: Iterable[str]) -> None:
        """Move these requests to the end of the running list. vLLM preempts from there when KV runs out."""

    def preempt(self, scheduler: Any, request: RequestLike, stamp: float) -> None:
        """Take a running request's slot and KV. It waits again. `stamp` is the time of vLLM's event."""

    def hold(self, scheduler: Any, request: RequestLike) -> None:
        """Pause a running request: it keeps its KV and gets no steps."""

    def release(self, scheduler: Any, request: RequestLike) -> None:
        """End the pause of a request."""

    def cached_tokens(self, scheduler: Any, request: RequestLike) -> int:
        """Return how many tokens of the request's prompt are in the prefix cache now."""

    def free_tokens(self, scheduler: Any) -> int:
        """Return how many tokens the free KV blocks hold."""

    def keep_blocks(self, scheduler: Any, request: RequestLike) -> tuple[Any, int]:
        """Add a reference to each of the request's KV blocks. Return them, and how many tokens they hold."""

    def drop_blocks(self, scheduler: Any, blocks: Any) -> None:
        """Drop the references that `keep_blocks` added."""

    def growth_tokens(self, scheduler: Any) -> int:
        """Return how many tokens of KV the running requests need beyond what they have: the rest of their prompts,
        and what their next step adds.
        """

    def unheld_tokens(self, scheduler: Any, request: RequestLike) -> int:
        """Return how many tokens of free KV the waiting request needs to start: what it finds in the prefix cache
        takes none if a reference to it is held.
        """

    def tier_token_bytes(self, scheduler: Any) -> int:
        """Return the bytes of a token's KV if vLLM loads KV from a tier in host memory; 0 if it has none."""

    def remember(self, scheduler: Any, request: RequestLike) -> Remembered:
        """Return what names the request's whole blocks. Call it before vLLM frees the request."""

    def begin_load(self, scheduler: Any, known: Remembered, name: str) -> tuple[RequestLike, int] | Later | None:
        """Begin to load a context from the tier, as a request of that name. Return it, and the tokens to be loaded;
        None if the tier has nothing that is missing, or memory does not suffice; LATER if the tier does not know yet,
        or loads a part of it for others.
        """

    def is_loaded(self, scheduler: Any, request: RequestLike) -> bool:
        """Is the load over? If so, what it brought is in the prefix cache, and the request holds it."""

    def end_load(self, scheduler: Any, request: RequestLike) -> None:
        """End a load and its request. vLLM waits for a copy that is on its way before it uses the memory again."""

    def refuse(self, scheduler: Any, requests: Sequence[RequestLike]) -> None:
        """End the requests. Their KV and slots are free when this returns."""

    def refusal_output(self, request: RequestLike, text: str) -> Any:
        """Return the EngineCoreOutput that gives the client the reason `text`."""


class V032:
    """vLLM 0.32: vllm/v1/core/sched/scheduler.py, request_queue.py, vllm/v1/engine/__init__.py."""

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
        scheduler._preempt_request(request, stamp)  # puts it at the head of the queue; `reorder` follows
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

    def keep_blocks(self, scheduler: Any, request: RequestLike) -> tuple[Any, int]:
        groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        blocks = [block for group in groups for block in group if block.block_hash is not None]
        scheduler.kv_cache_manager.block_pool.touch(blocks)
        return blocks, len(blocks) * scheduler.block_size

    def drop_blocks(self, scheduler: Any, blocks: Any) -> None:
        scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))  # the end of a context is evicted first

    def growth_tokens(self, scheduler: Any) -> int:
        size, tokens, adds = scheduler.block_size, 0, 1 + scheduler.num_spec_tokens
        for request in scheduler.running:
            if -request.num_computed_tokens % size < adds:  # its last block is full
                tokens += size
            if request.is_prefill_chunk:
                tokens += max(0, request.num_prompt_tokens - request.num_computed_tokens)
        return tokens

    def unheld_tokens(self, scheduler: Any, request: RequestLike) -> int:
        manager, size = scheduler.kv_cache_manager, scheduler.block_size
        whole = -(-(request.num_prompt_tokens + request.num_output_tokens) // size)
        if not manager.enable_caching:
            return int(whole * size)
        groups = manager.get_computed_blocks(request)[0].blocks
        held = min((sum(block.ref_cnt > 0 for block in group) for group in groups), default=0)
        return int((whole - held) * size)

    def tier_token_bytes(self, scheduler: Any) -> int:
        config = scheduler.kv_cache_config
        known = type(scheduler.connector).__name__ in _TIERS and len(config.kv_cache_groups) == 1
        if not known or not config.kv_cache_tensors:
            return 0
        return int(config.kv_cache_tensors[0].size // (config.num_blocks * scheduler.block_size))

    def remember(self, scheduler: Any, request: Any) -> Remembered:
        size, each = scheduler.block_size, scheduler.hash_block_size
        whole = len(request.block_hashes) * each // size * size
        tokens = array("q", request.all_token_ids[:whole])
        return Remembered(
            tokens, tuple(request.block_hashes[: whole // each]), request.lora_request, request.cache_salt
        )

    def begin_load(self, scheduler: Any, known: Remembered, name: str) -> tuple[Any, int] | Later | None:
        """Do as `schedule` does with a request whose KV is loaded while it waits."""
        from vllm import SamplingParams
        from vllm.v1.request import Request, RequestStatus

        manager, connector = scheduler.kv_cache_manager, scheduler.connector
        prompt = [*known.tokens, 0]  # vLLM never takes a prompt's last token from a cache
        salt, lora = known.cache_salt, known.lora_request
        request = Request(name, prompt, SamplingParams(max_tokens=1), None, lora_request=lora, cache_salt=salt)
        request.block_hashes = list(known.block_hashes)
        scheduler.requests[name] = request
        connector.on_new_request(request)
        blocks, here = manager.get_computed_blocks(request)[:2]
        there, apart = (0, False)
        if here % scheduler.block_size == 0:
            there, apart = connector.get_num_new_matched_tokens(request, here)
        fits = None
        if there and apart:
            fits = manager.allocate_slots(
                request,
                0,
                num_new_computed_tokens=here,
                new_computed_blocks=blocks,
                num_external_computed_tokens=there,
                delay_cache_blocks=True,
                reserved_blocks=scheduler._inflight_prefill_reserved_blocks(),
                has_scheduled_reqs=bool(scheduler.running),
                skip_zeroing_group_ids=connector.get_loaded_kv_cache_group_ids(request),
            )
        if fits is None:
            self.end_load(scheduler, request)
            return LATER if there is None else None
        connector.update_state_after_alloc(request, manager.get_blocks(name), there)
        request.status, request.num_computed_tokens = RequestStatus.WAITING_FOR_REMOTE_KVS, here + there
        return request, there

    def is_loaded(self, scheduler: Any, request: RequestLike) -> bool:
        if request.request_id not in scheduler.finished_recving_kv_req_ids:
            return False
        return bool(scheduler._handle_blocked_waiting_request(request))

    def end_load(self, scheduler: Any, request: RequestLike) -> None:
        from vllm.v1.request import RequestStatus

        scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)

    def refuse(self, scheduler: Any, requests: Sequence[RequestLike]) -> None:
        from vllm.v1.request import RequestStatus

        scheduler.finish_requests([request.request_id for request in requests], RequestStatus.FINISHED_ABORTED)

    def refusal_output(self, request: RequestLike, text: str) -> Any:
        """Return an abort with the reason in `stop_reason`, which an OpenAI answer carries in `choices[0]`.

        This version turns an error output into "500 Internal Server Error" without the message.
        """
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        return EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ABORT, stop_reason=text)

    @staticmethod
    def _by_priority(scheduler: Any) -> bool:
        return bool(scheduler.policy.value == "priority")


class V033(V032):
    """vLLM 0.33: as 0.32, but the message of a request's error reaches the client."""

    version = "0.33"

    def tier_token_bytes(self, scheduler: Any) -> int:
        """Return 0: how this version loads KV has not been compared with `begin_load`."""
        return 0

    def refusal_output(self, request: RequestLike, text: str) -> Any:
        """Return an error with code `validation_error`: vLLM answers it with 400 and the message, any other with
        500.
        """
        from vllm.outputs import RequestError
        from vllm.v1.engine import EngineCoreOutput, FinishReason

        return EngineCoreOutput(
            request.request_id,
            [],
            finish_reason=FinishReason.ERROR,
            error=RequestError(code="validation_error", message=text),
        )


_ADAPTERS: dict[str, type[Adapter]] = {"0.32": V032, "0.33": V033}


def adapter_for(version: str) -> Adapter:
    """Return the adapter for a vLLM version such as "0.32.1". Raises UnsupportedVllm if there is none."""
    minor = ".".join(version.split(".")[:2])
    if minor not in _ADAPTERS:
        raise UnsupportedVllm(version, tuple(_ADAPTERS))
    return _ADAPTERS[minor]()
