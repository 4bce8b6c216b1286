"""`SimulatedEngine`: vLLM's real scheduler and KV cache manager without weights or kernels, on a virtual clock.

The tokens of a step are made up, and a model gives its time, so a minute of serving passes in seconds. The
plug-in's tests, its benchmark and replay use it. It takes about 20 µs for each request and step.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.replay.simulation.cpu_tier import SimulatedTier
from benchmarks.replay.types import TierSettings, Watch, WatchedStep
from ramify.serving.policy.kv_retention import Retention
from ramify.serving.policy.types import Policy, StepModel

_TOKEN = 7  # the token that every request generates
_LOOK_S = 0.001  # a step without a token
_TIER_PAGE = 4096  # vLLM's tier holds blocks in pages of so many bytes
_TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1 << 24,  # no call is too long for the model; KV limits them
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
}


@dataclass(frozen=True, slots=True)
class SimulatedEngineSettings:
    slots: int = 10  # max_num_active_seqs
    room: int = 10  # paused requests beyond the slots
    blocks: int = 4000
    block_size: int = 16
    step_tokens: int = 8192  # max_num_batched_tokens
    context: int = 8192
    concord: Mapping[str, object] | None = field(default_factory=dict)  # the plug-in's options; None: stock vLLM
    policy: str = "fcfs"
    prefix_cache: bool = True
    chunked_prefill: bool = True
    overlap: bool = (
        False  # a step is scheduled while the one before it runs, as vLLM's engine does with --async-scheduling
    )
    tier: TierSettings | None = None  # vLLM's CPU tier
    bring_back: bool = True  # the plug-in brings contexts back from it
    fast: bool = False  # use FastScheduler: the same results in less time, without vLLM's statistics


@dataclass(frozen=True, slots=True)
class Ended:
    at: float
    output: Any  # vLLM's EngineCoreOutput


class SimulatedEngine:
    """A scheduler and a clock. The config of the made-up model is written to `folder`."""

    def __init__(
        self,
        folder: Path,
        settings: SimulatedEngineSettings,
        step: Callable[[Any, Any], float],
        now: float = 0.0,
        policy: Policy | None = None,
        retention: Retention | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`step` returns the seconds of a step from the scheduler and its output. `policy` replaces that of the
        options, and `retention` that of the plug-in. `watch` is shown every step.
        """
        self.settings, self.now, self.steps, self.generated = settings, now, 0, 0
        self.prefilled = 0  # prompt tokens computed, those that were computed before too
        self.preemptions = 0  # by the policy, and by vLLM itself where KV runs out
        self.tokens: dict[str, list[float]] = {}  # times of each request's tokens
        self.ended: dict[str, Ended] = {}
        self.scheduler, self._request = _scheduler(folder, settings)
        self._step_s, self._watch = step, watch
        tier = settings.tier
        self.tier = None if tier is None else SimulatedTier(tier.copy_ms, settings.block_size)
        self._flying: deque[tuple[Any, list[str], list[list[int]], float]] = deque()
        self._hasher = _hasher(settings)
        if settings.concord is not None:
            self.scheduler.clock = self.scheduler.stamp = lambda: self.now
            if policy is not None:
                self.scheduler.decide_by(policy)
            self.scheduler.keep_by(retention, bring_back=settings.bring_back)

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int,
        tags: Mapping[str, object] | None = None,
        priority: int = 0,
        at: float | None = None,
        limit: int | None = None,
    ) -> None:
        """Add a request that arrives now, or arrived at `at` while the last step ran, and generates `max_tokens`.

        `limit`: the client's limit, if the answer ends before it by itself: then the limit tells nobody its length.
        """
        from vllm import SamplingParams

        asked = max_tokens if limit is None else max(limit, max_tokens)
        params = SamplingParams(max_tokens=asked, ignore_eos=True, extra_args=dict(tags or {}))
        self.tokens[name] = []
        request = self._request(
            name,
            list(prompt),
            params,
            None,
            arrival_time=self.now if at is None else at,
            priority=priority,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)
        request.max_tokens = max_tokens  # made-up tokens have no end of text, so the answer ends here

    def step(self, count: int = 1) -> list[str]:
        """Do `count` steps, and return the requests that ended in them, for any reason."""
        over: list[str] = []
        for _ in range(count):
            self._schedule()
            if self.settings.overlap and len(self._flying) == 1:
                self._schedule()
            over += self._land()
        return over

    def _schedule(self) -> None:
        output = self.scheduler.schedule()
        requests = self.scheduler.requests
        names = list(output.num_scheduled_tokens)
        sampled = [[] if requests[name].is_prefill_chunk else [_TOKEN] for name in names]
        self.prefilled += output.total_num_scheduled_tokens - sum(map(len, sampled))
        self.preemptions += len(output.preempted_req_ids or ())
        if self._watch is not None and names:
            self._watch.stepped(_watched(self.scheduler, output, self.now))
        seconds = self._step_s(self.scheduler, output)
        if self.tier is not None:
            self.tier.submitted(output.kv_connector_metadata, self.now)
            if not names:  # vLLM only looks whether a copy is over
                at = self.tier.next_at
                seconds = _LOOK_S if at is None else max(_LOOK_S, at - self.now)
        self._flying.append((output, names, sampled, seconds))

    def _land(self) -> list[str]:
        """End the oldest step: its tokens are there."""
        from vllm.v1.outputs import ModelRunnerOutput

        output, names, sampled, seconds = self._flying.popleft()
        self.now += seconds
        self.steps += 1
        result = ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled)
        if self.tier is not None:
            result.kv_connector_output = self.tier.finished(self.now)
        over = []
        answers = self.scheduler.update_from_output(output, result)
        if self.settings.fast:
            now, tokens, quiet = self.now, self.tokens, self.scheduler.quiet_ids
            for name in quiet:
                tokens[name].append(now)
            self.generated += len(quiet)
        for outputs in answers.values():
            for one in outputs.outputs:
                new = len(one.new_token_ids)
                self.tokens[one.request_id] += [self.now] * new
                self.generated += new
                if one.finish_reason is not None:
                    self.ended[one.request_id] = Ended(self.now, one)
                    over.append(one.request_id)
        return over

    def cancel(self, names: Sequence[str]) -> None:
        """End requests whose client has gone."""
        from vllm.v1.request import RequestStatus

        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def until(self, condition: Callable[[], bool], most: int = 5000) -> None:
        """Step until the condition holds. Raises AssertionError after `most` steps."""
        for _ in range(most):
            if condition():
                return
            self.step()
        raise AssertionError(f"not within {most} steps; ended: {sorted(self.ended)}")

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]


def step_seconds_by(model: StepModel) -> Callable[[Any, Any], float]:
    """Return a function that gives the seconds of a step by the model."""

    def seconds(scheduler: Any, output: Any) -> float:
        context = _context(scheduler, output)
        sequences = len(output.num_scheduled_tokens)
        prefill = max(0, output.total_num_scheduled_tokens - sequences)
        return model.step_ms(sequences, context, prefill) / 1000

    return seconds


def _context(scheduler: Any, output: Any) -> int:
    """Return the tokens in KV of the calls in a step."""
    return sum(scheduler.requests[name].num_computed_tokens for name in output.num_scheduled_tokens)


def _watched(scheduler: Any, output: Any, at: float) -> WatchedStep:
    inside, waiting, aside = output.num_scheduled_tokens, 0, 0
    for name, request in scheduler.requests.items():
        made = request.num_output_tokens + request.num_output_placeholders
        if name not in inside and made < request.max_tokens:  # else its last token is in flight
            waiting, aside = waiting + (made == 0), aside + (made > 0)
    kv = scheduler.kv_cache_manager.usage
    return WatchedStep(at, len(inside), _context(scheduler, output), kv, waiting, aside)


def _hasher(settings: SimulatedEngineSettings) -> Any:
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    if not settings.prefix_cache:
        return None
    init_none_hash(sha256)
    return get_request_block_hasher(settings.block_size, _fast_hash if settings.fast else sha256)


def _fast_hash(block: tuple[bytes, tuple[int, ...], object]) -> bytes:
    """Return 128 bits for a block and what is before it. A tuple's hash suffices where nobody attacks."""
    before, tokens, _ = block  # a simulation has no images or LoRA adapters
    parent = int.from_bytes(before, "little")
    pair = hash((parent, tokens)), hash((tokens, parent, len(before)))
    return b"".join([part.to_bytes(8, "little", signed=True) for part in pair])


def _scheduler(folder: Path, settings: SimulatedEngineSettings) -> tuple[Any, Any]:
    """Return a scheduler, and the class of its requests."""
    import torch
    from vllm.config import CacheConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
    from vllm.v1.structured_output import StructuredOutputManager

    (folder / "config.json").write_text(json.dumps(_TINY))
    attention = FullAttentionSpec(block_size=settings.block_size, num_kv_heads=1, head_size=32, dtype=torch.bfloat16)
    page, tensors, transfer = attention.page_size_bytes, list[Any](), None
    if settings.tier is not None:
        slot = -(-page // _TIER_PAGE) * _TIER_PAGE
        kept = {"cpu_bytes_to_use": settings.tier.tokens // settings.block_size * slot}
        transfer = KVTransferConfig(
            kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=kept
        )
        tensors.append(KVCacheTensor(settings.blocks * page, ["layer"], settings.blocks * page, page))
    model = ModelConfig(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=settings.context)
    config = VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=settings.block_size, enable_prefix_caching=settings.prefix_cache),
        scheduler_config=SchedulerConfig(
            max_num_seqs=settings.slots + settings.room,
            max_num_active_seqs=settings.slots,
            max_num_batched_tokens=settings.step_tokens,
            max_model_len=settings.context,
            is_encoder_decoder=False,
            enable_chunked_prefill=settings.chunked_prefill,
            policy=settings.policy,
            async_scheduling=True,
        ),
        additional_config={} if settings.concord is None else {"ramify": dict(settings.concord)},
        kv_transfer_config=transfer,
    )
    config.cache_config.num_gpu_blocks = settings.blocks
    kv = KVCacheConfig(settings.blocks, tensors, [KVCacheGroupSpec(["layer"], attention)])
    scheduler, request = _kinds(settings)
    structured = StructuredOutputManager(config)
    made = scheduler(config, kv, structured, block_size=settings.block_size, log_stats=not settings.fast)
    return made, request


def _kinds(settings: SimulatedEngineSettings) -> tuple[Any, Any]:
    if settings.fast:
        from benchmarks.replay.simulation.fast_scheduler import FastConcordScheduler, FastRequest, FastScheduler

        return (FastScheduler if settings.concord is None else FastConcordScheduler), FastRequest
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.request import Request

    from ramify.serving.vllm_plugin.scheduler import ConcordScheduler

    return (AsyncScheduler if settings.concord is None else ConcordScheduler), Request
