"""`FastScheduler`: vLLM's AsyncScheduler for a simulated engine, in a fraction of its time.

Of 64 decoding requests about four in each step need a KV block, end, or have a block to be hashed. To the others a
step does the same as the one before: one more computed token, one more in flight, one more output token. These are
*quiet*. They are left out while `super().schedule()` and `super().update_from_output()` run over the rest, and get
here what vLLM would have written to them. vLLM's own KV state says which steps are quiet. A step that could do more
to them is left to vLLM alone: if a prompt is cut in pieces (the order of the running requests divides the token
budget), and if free KV blocks are scarce (vLLM then chooses among all whom to preempt).

Every state and every result is the same as without, to the bit: `tests/serving/vllm_plugin/test_fast_scheduler.py`
compares. But for one thing: without a prefix cache who only decodes gets his next block here, so that a block's
number may be another request's. Nothing depends on it. Tokens are made up in a simulated engine, and nobody reads an
output but for its length: a quiet request gets no EngineCoreOutput; `quiet_ids` names who got a token without one.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.request import Request, RequestStatus

from ramify.serving.vllm_plugin.scheduler import ConcordScheduler

_NEVER = -1
_TAIL = 3  # the last steps of an answer are vLLM's own


class FastRequest(Request):
    """A request that knows until when it is quiet. `_NEVER`: it has to be looked at."""

    quiet_computed: int = _NEVER  # schedule() changes nothing else of it while it has computed no more tokens,
    quiet_flying: int = _NEVER  # and exactly so many of its output tokens are in flight;
    quiet_held: int = 0  # its blocks hold so many tokens
    quiet_output: int = _NEVER  # update_from_output() neither, while it has so many output tokens at most


class FastScheduler(AsyncScheduler):
    """Raises ValueError if the engine uses something else: speculation, several KV groups, an encoder."""

    running: list[Any]
    max_num_scheduled_tokens: int
    max_num_active_reqs: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        managers = self.kv_cache_manager.coordinator.single_type_managers
        unknown = {
            "several KV groups": len(managers) != 1,
            "an encoder's connector": self.ec_connector is not None,
            "speculation": self.num_spec_tokens > 0,
            "the second model runner": self.use_v2_model_runner,
            "a limit on long prefills": self.scheduler_config.long_prefill_token_threshold > 0,
        }
        if any(unknown.values()):
            raise ValueError(f"not for an engine with {', '.join(name for name, has in unknown.items() if has)}")
        self._kv = managers[0]
        self._caches: bool = self.kv_cache_manager.enable_caching
        self.quiet_ids: list[str] = []

    def schedule(self, throttle_prefills: bool = False) -> Any:
        running: list[FastRequest] = self.running
        step = self.current_step + 1
        quiet: set[str] = set()
        growing: list[FastRequest] = []  # quiet requests that need a block: only without a prefix cache
        cut = False
        for r in running:
            computed = r.num_computed_tokens
            if (
                computed <= r.quiet_computed
                and r.num_output_placeholders == r.quiet_flying
                and r.next_decode_eligible_step <= step
            ):
                quiet.add(r.request_id)
                if computed >= r.quiet_held:
                    growing.append(r)
            elif r.is_prefill_chunk:
                cut = True
        if (
            not quiet
            or cut
            or self.kv_cache_manager.block_pool.get_num_free_blocks() <= len(running)
            or len(running) >= self.max_num_scheduled_tokens
        ):
            return self._learnt(super().schedule(throttle_prefills))
        if len(quiet) == len(running):  # vLLM checks whether any request runs
            quiet.discard(running[0].request_id)
        for r in growing:
            if r.request_id in quiet:
                tokens = r.num_computed_tokens + 1
                self._kv.allocate_new_blocks(r.request_id, tokens, tokens)
                r.quiet_held += self._kv.block_size
        whole = self._without(quiet)
        try:
            output = super().schedule(throttle_prefills)
        finally:
            self._restore(running, quiet, whole)
        self._learnt(output)
        return self._together(output, running, quiet)

    def _without(self, quiet: set[str]) -> tuple[int, int, int]:
        config, count = self.scheduler_config, len(quiet)
        whole = self.max_num_scheduled_tokens, config.max_num_batched_tokens, self.max_num_active_reqs
        self.running = [r for r in self.running if r.request_id not in quiet]
        self.max_num_scheduled_tokens = whole[0] - count
        config.max_num_batched_tokens = whole[1] - count
        self.max_num_active_reqs = whole[2] - count
        return whole

    def _restore(self, before: list[FastRequest], quiet: set[str], whole: tuple[int, int, int]) -> None:
        loud = len(before) - len(quiet)
        self.running = before + self.running[loud:]  # no request was preempted: there were blocks for all
        self.max_num_scheduled_tokens, self.scheduler_config.max_num_batched_tokens, self.max_num_active_reqs = whole

    def _together(self, output: Any, running: list[FastRequest], quiet: set[str]) -> Any:
        """Do to the quiet requests what vLLM would have done, and return its output with all requests in running
        order.
        """
        scheduled = output.num_scheduled_tokens
        together: dict[str, int] = {}
        for r in running:
            request_id = r.request_id
            if request_id in quiet:
                r.num_computed_tokens += 1
                r.num_in_flight_tokens += 1
                r.num_output_placeholders += 1
                together[request_id] = 1
            elif request_id in scheduled:
                together[request_id] = scheduled[request_id]
        together.update(scheduled)  # those that were admitted
        self.prev_step_scheduled_req_ids.update(quiet)
        output.num_scheduled_tokens = together
        output.total_num_scheduled_tokens += len(quiet)
        return output

    def _learnt(self, output: Any) -> Any:
        """Note for the requests that vLLM scheduled until when they are quiet."""
        size = self._kv.block_size
        for request_id, tokens in output.num_scheduled_tokens.items():
            r = self.requests[request_id]
            if tokens != 1 or r.is_prefill_chunk or r.num_output_placeholders < 1:
                continue
            flying = (
                r.num_output_placeholders - 1
            )  # as it will be when it is scheduled again, after one step has ended
            held = len(self._kv.req_to_blocks[request_id]) * size
            most = min(r.num_prompt_tokens + r.max_tokens, self.max_model_len) - _TAIL
            if self._caches:
                cached = self._kv.num_cached_block.get(request_id, 0)
                most = min(most, held - 1, (cached + 1) * size - 2 + flying)
            r.quiet_flying, r.quiet_computed, r.quiet_held = flying, most, held
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        requests, sampled = self.requests, model_runner_output.sampled_token_ids
        self.quiet_ids = quiet_ids = []
        loud: dict[str, int] = {}
        for (request_id, tokens), new in zip(scheduler_output.num_scheduled_tokens.items(), sampled, strict=True):
            r = requests.get(request_id)
            if r is None or len(r._output_token_ids) > r.quiet_output or tokens != 1 or not new:
                loud[request_id] = tokens
                continue
            r.num_in_flight_tokens -= 1
            r.num_output_placeholders -= 1
            r._output_token_ids += new
            r._all_token_ids += new
            quiet_ids.append(request_id)
        scheduler_output.num_scheduled_tokens = loud
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request_id in loud:
            if (r := requests.get(request_id)) is not None:
                self._landed(r)
        return outputs

    def _landed(self, r: Any) -> None:
        """Note until when vLLM would do nothing else with the next tokens of this request."""
        prompt = r.is_prefill_chunk or not r.num_output_tokens
        if prompt or r.status != RequestStatus.RUNNING or r.num_stale_output_tokens:
            return
        tokens = self.max_model_len - _TAIL
        if self._caches:
            size, cached = self._kv.block_size, self._kv.num_cached_block.get(r.request_id, 0)
            tokens = min(tokens, (len(r.block_hashes) + 1) * size - 2, (cached + 1) * size - 1)
        r.quiet_output = min(tokens - r.num_prompt_tokens, r.max_tokens - _TAIL)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        request.quiet_computed = request.quiet_output = _NEVER
        super()._preempt_request(request, *args, **kwargs)


class FastConcordScheduler(ConcordScheduler, FastScheduler):
    """The production plug-in on top of FastScheduler: `super()` of the one is the other."""
