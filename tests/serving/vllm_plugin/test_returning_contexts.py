"""Contexts that were given up come back from vLLM's own CPU tier before their programs do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from benchmarks.replay.types import TierSettings
from ramify.serving.policy.kv_retention import IdleContext, Room

pytestmark = pytest.mark.vllm

BLOCK = 16
PROMPT = 40 * BLOCK
TOOL_S = 20.0


class KnowsReturns:
    """Expects each program back after TOOL_S, and gives up what a waiting call needs."""

    backfills = False

    def hopeless(self, idle: Sequence[IdleContext], now: float) -> Sequence[str]:
        return ()

    def left(self, program: str, at: float) -> None:
        pass

    def over(self, program: str) -> None:
        pass

    def returned(self, program: str, after_s: float) -> None:
        pass

    def back_in(self, one: IdleContext, now: float) -> float:
        return one.since + TOOL_S - now

    def release(self, idle: Sequence[IdleContext], room: Room, now: float) -> Sequence[str]:
        given, free = list[str](), room.free
        for one in idle:
            if free < room.growth + room.wanted:
                given.append(one.program)
                free += one.tokens
        return given


def prompt(program: int, tokens: int = PROMPT) -> list[int]:
    return [(1 << 40) + program] * tokens  # ids as large as those of a replay


def tags(program: int, stage: int, last: bool = False) -> dict[str, object]:
    return {"compound_id": f"p{program}", "compound_stage": stage, "compound_last": int(last)}


def served(engine: Any, name: str, ids: list[int], given: dict[str, object] | None = None, tokens: int = 4) -> int:
    """Serve a call to its end, and return how many prompt tokens were computed."""
    before = engine.prefilled
    engine.add(name, ids, tokens, given)
    engine.until(lambda: name in engine.ended)
    return int(engine.prefilled - before)


@pytest.fixture
def tiered(engine: Callable[..., Any]) -> Callable[..., Any]:
    def make(bring_back: bool = True, **more: Any) -> Any:
        tier = TierSettings(tokens=400 * BLOCK, copy_ms=0.5)  # 0.32 s for a context
        made = engine(concord={}, blocks=100, tier=tier, **more)  # 99 blocks: two contexts and a half
        made.scheduler.keep_by(KnowsReturns(), bring_back=bring_back)
        return made

    return make


def loaded(engine: Any) -> int:
    return int(engine.tier.loaded)


def evicted(engine: Any) -> None:
    """Serve one call of a program, and then others that take its memory."""
    served(engine, "a", prompt(0), tags(0, 0))
    for other in range(1, 4):
        served(engine, f"b{other}", prompt(other, 90 * BLOCK))
    assert not len(engine.scheduler._contexts)


def test_a_context_is_back_before_its_program_is(tiered: Callable[..., Any]) -> None:
    engine = tiered()
    evicted(engine)
    assert not loaded(engine), "nobody is expected yet"
    began = engine.now
    engine.add("long", prompt(9, BLOCK), 1000)
    engine.until(lambda: engine.now > began + TOOL_S - 3)
    assert not loaded(engine)
    engine.until(lambda: engine.now > began + TOOL_S)
    assert loaded(engine) >= 39 and len(engine.scheduler._contexts) == 1
    before, asked = loaded(engine), engine.prefilled
    engine.add("c", prompt(0) + [99] * BLOCK, 4, tags(0, 1, last=True))
    engine.step(2)
    assert engine.prefilled - asked <= 2 * BLOCK + 4, "it starts at once, and computes what is new"
    engine.until(lambda: "c" in engine.ended)
    assert loaded(engine) == before, "and nothing is loaded for it"


def test_without_that_its_next_call_waits_for_the_copy(tiered: Callable[..., Any]) -> None:
    engine = tiered(bring_back=False)
    evicted(engine)
    began = engine.now
    engine.add("long", prompt(9, BLOCK), 1000)
    engine.until(lambda: engine.now > began + TOOL_S)
    assert not loaded(engine)
    engine.add("c", prompt(0) + [99] * BLOCK, 4, tags(0, 1, last=True))
    engine.step(3)
    assert not engine.tokens["c"]
    engine.until(lambda: "c" in engine.ended)
    assert loaded(engine) >= 39


def test_an_engine_that_falls_idle_brings_back_what_fits(tiered: Callable[..., Any]) -> None:
    engine = tiered()
    evicted(engine)
    for _ in range(1000):
        if not engine.scheduler.has_requests():
            break
        engine.step()
    assert not engine.scheduler.has_requests(), "it rests when they are there"
    assert loaded(engine) >= 39 and len(engine.scheduler._contexts) == 1


def test_an_idle_engine_brings_nothing_back_that_nobody_hopes_for(tiered: Callable[..., Any]) -> None:
    engine = tiered()
    engine.scheduler._contexts._returning._back_in = lambda one, now: inf
    evicted(engine)
    for _ in range(100):
        engine.step()
    assert not loaded(engine)


def test_nothing_comes_back_into_memory_that_calls_need(tiered: Callable[..., Any]) -> None:
    engine = tiered()
    evicted(engine)
    began = engine.now
    engine.add("long", prompt(9, 70 * BLOCK), 16 * BLOCK)
    engine.until(lambda: engine.now > began + TOOL_S or "long" in engine.ended)
    assert not loaded(engine) and not engine.scheduler.decision_log.preemptions


@pytest.mark.parametrize("released", [False, True])
def test_all_memory_is_free_when_the_program_is_over(tiered: Callable[..., Any], released: bool) -> None:
    engine = tiered()
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    evicted(engine)
    contexts = engine.scheduler._contexts
    engine.until(lambda: bool(contexts._returning._flights))
    if released:  # while its context is on its way
        contexts.release(engine.scheduler, "p0")
    else:
        served(engine, "c", prompt(0) + [99] * BLOCK, tags(0, 1, last=True))
    for _ in range(1000):
        if not engine.scheduler.has_requests():
            break
        engine.step()
    assert pool.get_num_free_blocks() == free
    assert not engine.scheduler.requests and not len(contexts) and not contexts._branches
    assert not contexts._returning._away and not contexts._returning._flights


def test_a_load_that_fails_is_not_used(tiered: Callable[..., Any]) -> None:
    engine = tiered()
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    evicted(engine)
    contexts = engine.scheduler._contexts
    engine.until(lambda: bool(contexts._returning._flights))
    contexts.load_failed(engine.scheduler)
    for _ in range(1000):
        if not engine.scheduler.has_requests():
            break
        engine.step()
    assert not len(contexts) and pool.get_num_free_blocks() == free
    assert served(engine, "c", prompt(0) + [99] * BLOCK, tags(0, 1, last=True)) <= 2 * BLOCK, "loaded by itself"
    assert loaded(engine) >= 78


def test_what_is_remembered_is_bounded(tiered: Callable[..., Any]) -> None:
    engine = tiered()
    for program in range(40):
        served(engine, f"a{program}", prompt(program), tags(program, 0))
    back = engine.scheduler._contexts._returning
    assert back._tokens == sum(len(one.known.tokens) for one in back._away.values()) <= 4 * 100 * BLOCK
    assert 0 < len(back._away) < 40


def rested(engine: Any) -> None:
    for _ in range(1000):
        if not engine.scheduler.has_requests():
            return
        engine.step()
    raise AssertionError("the engine never rests")


def test_held_contexts_do_not_keep_vllm_from_resetting_its_prefix_cache(tiered: Callable[..., Any]) -> None:
    """As it does before a sleep and when weights change: it raises if a block is held."""
    engine = tiered()
    scheduler = engine.scheduler
    served(engine, "a", prompt(0), tags(0, 0))
    rested(engine)
    assert len(scheduler._contexts) == 1
    assert scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert not len(scheduler._contexts) and not scheduler._contexts._returning._away
    assert served(engine, "b", prompt(0), tags(0, 1)) >= PROMPT - 1, "what old weights computed is not used"
    rested(engine)
    assert len(scheduler._contexts) == 1, "it goes on as before"


def test_a_paused_engine_brings_nothing_back(tiered: Callable[..., Any]) -> None:
    from vllm.v1.core.sched.interface import PauseState

    engine = tiered()
    evicted(engine)
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for _ in range(100):
        engine.step()
    assert not loaded(engine) and not engine.scheduler.has_requests()
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    for _ in range(100):
        engine.step()
    assert loaded(engine)


@pytest.mark.parametrize("there", [False, True])
def test_loads_that_vllm_aborts_with_all_requests_leave_room_for_others(
    tiered: Callable[..., Any], there: bool
) -> None:
    from vllm.v1.request import RequestStatus

    engine = tiered()
    scheduler = engine.scheduler
    pool, contexts = scheduler.kv_cache_manager.block_pool, scheduler._contexts
    free = pool.get_num_free_blocks()
    evicted(engine)
    engine.until(lambda: bool(contexts._returning._flights))
    if there:  # copied, and not yet taken note of
        engine.until(lambda: bool(scheduler.finished_recving_kv_req_ids))
    scheduler.finish_requests(None, RequestStatus.FINISHED_ABORTED)
    rested(engine)
    engine.step()
    assert not contexts._returning._flights
    assert not scheduler.requests and pool.get_num_free_blocks() == free


def test_contexts_that_begin_alike_come_back_one_after_the_other(tiered: Callable[..., Any]) -> None:
    """vLLM's tier puts off a load while another one loads a part of it."""
    engine = tiered()
    shared = prompt(0, 20 * BLOCK)
    for program in (1, 2):
        served(engine, f"a{program}", shared + prompt(program, 20 * BLOCK), tags(program, 0))
    for other in range(3, 6):
        served(engine, f"b{other}", prompt(other, 90 * BLOCK))
    contexts = engine.scheduler._contexts
    assert not len(contexts)
    rested(engine)
    for _ in range(20):  # later steps of an engine that had been idle
        engine.now += 1.0
        engine.step()
        rested(engine)
    assert set(contexts._kept) == {"p1", "p2"} and not contexts._returning._away
