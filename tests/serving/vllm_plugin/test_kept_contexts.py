"""Contexts of programs that wait for tools stay in vLLM's KV, and go when they must."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramify.serving.policy.kv_retention import CostAware, IdleContext, Room
from ramify.serving.vllm_plugin.messages_and_reports import GatewayMessages

pytestmark = pytest.mark.vllm

BLOCK = 16
PROMPT = 40 * BLOCK


class KeepAll:
    """Gives up what running calls need, and nothing else."""

    backfills = True

    def hopeless(self, idle: Sequence[IdleContext], now: float) -> Sequence[str]:
        return ()

    def left(self, program: str, at: float) -> None:
        pass

    def over(self, program: str) -> None:
        pass

    def returned(self, program: str, after_s: float) -> None:
        self.after_s = after_s

    def release(self, idle: Sequence[IdleContext], room: Room, now: float) -> Sequence[str]:
        return [one.program for one in idle] if room.free < room.growth else []


def prompt(program: int, tokens: int = PROMPT) -> list[int]:
    return [1 + program] * tokens


def tags(program: int, stage: int, last: bool = False) -> dict[str, object]:
    return {"compound_id": f"p{program}", "compound_stage": stage, "compound_last": int(last)}


def served(engine: Any, name: str, ids: list[int], given: dict[str, object] | None = None) -> int:
    """Serve a call to its end, and return how many prompt tokens were computed."""
    before = engine.prefilled
    engine.add(name, ids, 4, given)
    engine.until(lambda: name in engine.ended)
    return int(engine.prefilled - before)


@pytest.fixture
def kept(engine: Callable[..., Any]) -> Callable[[Any], Any]:
    def make(retention: Any) -> Any:
        made = engine(concord={}, blocks=100)  # 99 blocks: two contexts and a half
        made.scheduler.keep_by(retention)
        return made

    return make


def test_the_context_survives_what_others_compute_meanwhile(kept: Callable[[Any], Any]) -> None:
    for retention, most in ((KeepAll(), 2 * BLOCK), (None, PROMPT)):
        engine = kept(retention)
        served(engine, "a", prompt(0), tags(0, 0))
        for other in range(1, 4):
            served(engine, f"b{other}", prompt(other))
        again = served(engine, "c", prompt(0) + [99] * BLOCK, tags(0, 1, last=True))
        assert again <= most if retention else again >= most


def test_all_blocks_are_free_when_the_programs_are_over(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    for stage in range(3):
        served(engine, f"a{stage}", prompt(0, PROMPT + stage * BLOCK), tags(0, stage, last=stage == 2))
    engine.step()
    assert pool.get_num_free_blocks() == free
    assert len(engine.scheduler._contexts) == 0
    assert not engine.scheduler._contexts._branches


def test_a_running_call_is_not_preempted_for_a_context_that_waits(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    served(engine, "a", prompt(0), tags(0, 0))
    engine.add("long", prompt(1), 30 * BLOCK)
    engine.until(lambda: "long" in engine.ended)
    assert engine.scheduler.decision_log.preemptions == 0
    assert engine.ended["long"].output.finish_reason is not None


def test_running_calls_grow_by_a_block_only_when_their_last_one_is_full(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    pool, growth = engine.scheduler.kv_cache_manager.block_pool, engine.scheduler._adapter.growth_tokens
    engine.add("a", prompt(0), 3 * BLOCK)
    engine.add("b", prompt(1, PROMPT - 5), 3 * BLOCK)
    engine.step()
    seen = set()
    for _ in range(2 * BLOCK):
        free, said = pool.get_num_free_blocks(), growth(engine.scheduler)
        engine.step()
        assert (free - pool.get_num_free_blocks()) * BLOCK == said
        seen.add(said)
    assert seen == {0, BLOCK}


def test_ours_gives_a_context_up_for_a_call_that_could_not_start(kept: Callable[[Any], Any]) -> None:
    engine = kept(CostAware())
    for program in range(2):
        served(engine, f"a{program}", prompt(program), tags(program, 0))
    assert served(engine, "b", prompt(7), None) >= PROMPT - 1
    assert len(engine.scheduler._contexts) == 1


def test_a_call_that_fails_leaves_nothing_held(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    engine.add("a", prompt(0), 100, tags(0, 0))
    engine.step(3)
    engine.cancel(["a"])
    engine.step()
    assert len(engine.scheduler._contexts) == 0


def test_the_next_stage_tells_how_long_the_tool_took(kept: Callable[[Any], Any]) -> None:
    retention = KeepAll()
    engine = kept(retention)
    served(engine, "a", prompt(0), tags(0, 0))
    engine.now += 7.5
    served(engine, "b", prompt(0), tags(0, 1, last=True))
    assert retention.after_s == pytest.approx(7.5, abs=0.2)


def test_branches_are_kept_apart_and_go_when_they_are_released(kept: Callable[[Any], Any], tmp_path: Path) -> None:
    engine = kept(KeepAll())
    path = str(tmp_path / "socket")
    engine.scheduler._messages = GatewayMessages(path)
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    for branch in range(2):
        served(engine, f"a{branch}", prompt(branch), tags(0, branch) | {"compound_branch": f"b{branch}"})
    engine.step()
    assert len(engine.scheduler._contexts) == 2
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as gateway:
        gateway.sendto(b'{"compound_id": "p0", "branches": ["b0", "other"]}', path)
        served(engine, "x", [77] * 4)
        assert len(engine.scheduler._contexts) == 1
        assert served(engine, "c", prompt(1) + [99] * BLOCK, tags(0, 2) | {"compound_branch": "b1"}) <= 2 * BLOCK
        gateway.sendto(b'{"compound_id": "p0"}', path)
        served(engine, "y", [78] * 4)
    engine.step()
    assert len(engine.scheduler._contexts) == 0
    assert pool.get_num_free_blocks() == free
    engine.scheduler._messages.close()


@pytest.mark.parametrize("branches", [None, ["b0"]])
def test_a_branch_that_is_released_while_its_call_runs_is_not_held_after_it(
    kept: Callable[[Any], Any], branches: list[str] | None
) -> None:
    engine = kept(KeepAll())
    contexts, pool = engine.scheduler._contexts, engine.scheduler.kv_cache_manager.block_pool
    free, of_branch = pool.get_num_free_blocks(), {"compound_branch": "b0"}
    engine.add("a", prompt(0), 8, tags(0, 0) | of_branch)
    engine.step(3)
    for _ in range(2):
        contexts.release(engine.scheduler, "p0", branches)
    engine.until(lambda: "a" in engine.ended)
    engine.step()
    assert (len(contexts), pool.get_num_free_blocks()) == (0, free)
    assert not contexts._branches and not contexts._released
    served(engine, "b", prompt(0), tags(0, 1) | of_branch)
    assert len(contexts) == 1, "it goes on after all"


def test_a_call_that_arrives_after_the_release_is_held_as_any(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    contexts = engine.scheduler._contexts
    contexts.release(engine.scheduler, "p0", ["b0", "never seen"])
    contexts.release(engine.scheduler, "p0")
    assert not contexts._branches and not contexts._released, "what is not here leaves nothing"
    engine.add("a", prompt(0), 8, tags(0, 0))
    engine.step(2)
    contexts.release(engine.scheduler, "p0")
    engine.add("b", prompt(0), 8, tags(0, 1))
    engine.until(lambda: "a" in engine.ended and "b" in engine.ended)
    served(engine, "c", prompt(0), tags(0, 2))
    assert len(contexts) == 1


def test_contexts_of_less_than_a_block_are_not_held(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    for number in range(5):
        served(engine, f"a{number}", [1 + number] * (BLOCK // 2), tags(number, 0))
    assert len(engine.scheduler._contexts) == 0


def test_what_is_known_of_branches_is_bounded(engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All share one prompt, so that its blocks bound nothing. Their clients send a next call and cancel it."""
    monkeypatch.setattr("ramify.serving.vllm_plugin.kept_contexts._PROGRAMS", 20)
    monkeypatch.setattr("ramify.serving.vllm_plugin.kept_contexts._HELD", 10)
    made = engine(concord={}, blocks=1000)
    made.scheduler.keep_by(KeepAll())
    contexts = made.scheduler._contexts
    for number in range(60):
        branch = {"compound_branch": f"b{number}", "compound_ttl_s": 0.0 if number % 3 == 0 else 9e6}
        served(made, f"a{number}", prompt(0), tags(0, 0) | branch)
        made.add(f"b{number}", prompt(0), 4, tags(0, 1) | branch)
        made.cancel([f"b{number}"])
    assert len(contexts._kept) <= 10
    assert len(contexts._left) <= 20
    assert len(contexts._over) <= 20
    assert sum(map(len, contexts._branches.values())) <= 30
    assert not (contexts._open or contexts._crowded or contexts._released)
    contexts.release(made.scheduler, "p0")
    made.step()
    assert not (contexts._kept or contexts._left or contexts._branches)


def test_calls_at_once_under_one_name_are_no_chain(kept: Callable[[Any], Any]) -> None:
    """A client may give all its calls the same name."""
    engine = kept(KeepAll())
    pool = engine.scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    same = {"compound_id": "all"}
    for number in range(2):
        engine.add(f"a{number}", prompt(number), 4, same)
    engine.until(lambda: "a0" in engine.ended and "a1" in engine.ended)
    engine.step()
    assert len(engine.scheduler._contexts) == 0
    assert pool.get_num_free_blocks() == free
    served(engine, "b", prompt(3), same)
    assert len(engine.scheduler._contexts) == 1, "later it is one again"


def test_a_client_that_names_no_stages_comes_back_too(kept: Callable[[Any], Any]) -> None:
    retention = KeepAll()
    engine = kept(retention)
    served(engine, "a", prompt(0), {"compound_id": "p"})
    engine.now += 7.5
    assert served(engine, "b", prompt(0) + [99] * BLOCK, {"compound_id": "p"}) <= 2 * BLOCK
    assert retention.after_s == pytest.approx(7.5, abs=0.2)


def test_clients_that_come_back_after_all_are_not_believed(kept: Callable[[Any], Any]) -> None:
    engine = kept(KeepAll())
    over = {"compound_id": "p", "compound_ttl_s": 0.0}
    served(engine, "a", prompt(0), over)
    assert len(engine.scheduler._contexts) == 0
    for number in range(3):
        served(engine, f"b{number}", prompt(0), over)
    assert len(engine.scheduler._contexts) == 1


class Busy(CostAware):
    """Of an engine that gains nothing from one more call while others run."""

    @staticmethod
    def _spare(room: Room) -> float:
        return 0.0 if room.running else 1.0


def test_a_call_that_left_before_it_started_holds_nothing_for_good(engine: Callable[..., Any]) -> None:
    """A client may announce a return, send it and cancel it."""
    made = engine(concord={}, blocks=100, slots=2)
    made.scheduler.keep_by(CostAware())
    served(made, "a", prompt(0), tags(0, 0))
    made.add("long", [50] * 8, 2000)
    made.add("short", [51] * 8, 20)
    made.step(3)
    made.add("back", prompt(0), 4, tags(0, 1))
    made.step()
    made.cancel(["back"])
    made.add("large", prompt(1, 75 * BLOCK), 4)
    made.until(lambda: "large" in made.ended)
    assert "long" not in made.ended


def test_what_a_call_needs_is_counted_again_when_its_prefix_is_freed(engine: Callable[..., Any]) -> None:
    """Otherwise an engine with nothing to run waits for a call that lacks memory."""
    made = engine(concord={}, blocks=100, slots=2)
    made.scheduler.keep_by(Busy())
    served(made, "a", prompt(0), tags(0, 0) | {"plan_rest": [1.0, 1.0, 1.0, 1e9]})
    made.add("first", prompt(1, 20 * BLOCK), 100)
    made.step(3)
    made.add("more of it", prompt(1, 20 * BLOCK) + prompt(2, 50 * BLOCK), 4)
    began = made.now
    made.until(lambda: "more of it" in made.ended)
    assert made.now - began < 10


@pytest.mark.parametrize(("limit", "within_s"), [({}, 70.0), ({"slo_deadline_s": 20.0}, 14.0)])
def test_programs_without_an_end_do_not_starve_a_call(
    engine: Callable[..., Any], limit: dict[str, object], within_s: float
) -> None:
    made = engine(concord={}, blocks=100, slots=3, step_s=0.25)
    made.scheduler.keep_by(Busy())
    served(made, "a", prompt(0, 60 * BLOCK), tags(0, 0))
    made.add("long", [50] * 8, 400)
    made.step(2)
    began = made.now
    made.add("large", prompt(1, 45 * BLOCK), 4, limit)
    stage = 1
    while "large" not in made.ended and made.now < began + 2 * within_s:
        made.add(f"a{stage}", prompt(0, 60 * BLOCK), 4, tags(0, stage))
        made.step(8)
        stage += 1
    assert made.now - began < within_s
    assert "long" not in made.ended
