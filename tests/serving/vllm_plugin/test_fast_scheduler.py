"""The fast scheduler against vLLM's own: the same state after every step."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from benchmarks.replay.types import TierSettings

pytestmark = pytest.mark.vllm

# What each case is for: plenty; KV so scarce that vLLM preempts; prompts cut in pieces; no overlap; no prefix cache,
# also with KV scarce; a policy that pauses, preempts and refuses; the same with KV scarce, and without the cache.
CASES: dict[str, dict[str, Any]] = {
    "plenty": {"concord": None},
    "scarce": {"concord": None, "blocks": 28},
    "pieces": {"concord": None, "step_tokens": 48},
    "not-overlapped": {"concord": None, "overlap": False},
    "uncached": {"concord": None, "prefix_cache": False},
    "uncached-scarce": {"concord": None, "prefix_cache": False, "blocks": 28},
    "concord-uncached": {"concord": {}, "prefix_cache": False},
    "concord": {"concord": {}},
    "concord-scarce": {"concord": {}, "blocks": 28},
    "tier": {"concord": None, "blocks": 28, "tier": TierSettings(tokens=1024, copy_ms=1.0)},
    "concord-tier": {"concord": {}, "blocks": 28, "tier": TierSettings(tokens=1024, copy_ms=1.0)},
}


def state(engine: Any) -> list[Any]:
    """Return all state that decides vLLM's next step. Without a prefix cache, the number of blocks and not which."""
    scheduler = engine.scheduler
    kv = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    blocks: Callable[[list[int]], object] = list if engine.settings.prefix_cache else len
    requests = [
        (
            name, str(r.status), r.num_computed_tokens, r.num_output_placeholders, r.num_in_flight_tokens,
            r.num_stale_output_tokens, r.is_prefill_chunk, r.num_preemptions, list(r.all_token_ids),
            len(r.block_hashes), blocks([block.block_id for block in kv.req_to_blocks.get(name, [])]),
            kv.num_cached_block.get(name),
        )
        for name, r in sorted(scheduler.requests.items())
    ]  # fmt: skip
    free = [block.block_id for block in scheduler.kv_cache_manager.block_pool.free_block_queue.get_all_free_blocks()]
    return [requests, engine.running, engine.waiting, blocks(free), sorted(scheduler.prev_step_scheduled_req_ids)]


def tags(chance: Random) -> dict[str, Any]:
    kind = chance.choice(("latency", "deadline", "best"))
    if kind == "latency":
        return {"slo_class": "latency", "slo_ttft_s": 2.0, "slo_tbt_s": 0.2}
    if kind == "deadline":
        return {"slo_class": "deadline", "slo_deadline_s": chance.choice((3.0, 8.0, 30.0))}
    return {}


def driven(engine: Any, seed: int, steps: int, seen: Callable[[Any], None]) -> None:
    chance, number = Random(seed), 0
    for _ in range(steps):
        if chance.random() < 0.3:
            shared = [1] * (16 * chance.randrange(4))
            prompt = shared + [100 + number] * chance.randrange(1, 90)
            engine.add(str(number), prompt, chance.randrange(1, 70), tags(chance))
            number += 1
        if chance.random() < 0.02 and engine.scheduler.requests:
            engine.cancel([chance.choice(sorted(engine.scheduler.requests))])
        if engine.scheduler.requests or engine._flying:
            engine.step()
        seen(engine)


@pytest.mark.parametrize("case", CASES)
def test_every_step_leaves_vllm_in_the_same_state(case: str, engine: Callable[..., Any]) -> None:
    settings = {"slots": 6, "room": 3, "overlap": True, "context": 1024, **CASES[case]}
    traces: dict[bool, list[Any]] = {False: [], True: []}
    made = {}
    for fast, trace in traces.items():
        made[fast] = engine(fast=fast, **settings)
        driven(made[fast], 7, 300, lambda one, trace=trace: trace.append(state(one)))
    for step, (own, fast) in enumerate(zip(traces[False], traces[True], strict=True)):
        assert own == fast, f"step {step}"
    assert made[False].tokens == made[True].tokens
    if "tier" in settings:
        assert made[True].tier.loaded
    assert {n: e.at for n, e in made[False].ended.items()} == {n: e.at for n, e in made[True].ended.items()}
    preempted = sum(r[7] > 0 for step in traces[True] for r in step[0])
    assert len(made[True].ended) > 20 and (preempted > 0 or "scarce" not in case), "the case shows what it is for"


def test_most_requests_of_a_step_are_quiet(engine: Callable[..., Any]) -> None:
    one = engine(fast=True, concord=None, slots=10, overlap=True)
    for i in range(10):
        one.add(str(i), [i + 1] * (20 + i), 200)
    one.step(20)
    quiet = 0
    for _ in range(100):
        one.step()
        quiet += len(one.scheduler.quiet_ids)
    assert quiet > 0.85 * 10 * 100
