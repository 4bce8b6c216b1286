"""ConcordScheduler over vLLM's real scheduler: verdicts are carried out on real queues and KV blocks."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ramify.serving.protocol.tags import SLOTags
from ramify.serving.protocol.wire import refusal_from_line

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
STEADY = {"calibrate": False, "step": {"base_ms": 50, "per_seq_ms": 0, "per_kctx_ms": 0, "per_prefill_ms": 0.01}}

Make = Callable[..., Any]


def add(
    engine: Any,
    name: str,
    tags: dict[str, object] | None = None,
    prompt: int = 32,
    max_tokens: int = 16,
    salt: int = 0,
) -> None:
    """Make a request. Prompts with the same `salt` share their beginning."""
    engine.add(name, [1 + salt + i % 7 for i in range(prompt)], max_tokens, tags)


def told(ended: Any) -> tuple[str, float | None] | None:
    """Return what the client of a refused request reads: a message in 0.33, a stop reason in 0.32."""
    error = getattr(ended.output, "error", None)
    return refusal_from_line(ended.output.stop_reason if error is None else error.message)


def ten_long(engine: Any) -> list[str]:
    names = [f"long{i}" for i in range(10)]
    for i, name in enumerate(names):
        add(engine, name, max_tokens=300, salt=i)
    engine.step(20)
    assert sorted(engine.running) == sorted(names)
    return names


def two_urgent(engine: Any) -> float:
    for name in ("urgent0", "urgent1"):
        add(engine, name, {"slo_class": "latency", "slo_ttft_s": 1.0}, max_tokens=8, salt=20)
    return float(engine.now)


def first_token_after(engine: Any, since: float, names: tuple[str, ...] = ("urgent0", "urgent1")) -> float:
    engine.until(lambda: all(engine.tokens[n] for n in names))
    return max(engine.tokens[n][0] for n in names) - since


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_two_urgent_behind_ten_long_pause_two_of_them_and_all_end(engine: Make, tmp_path: Path, policy: str) -> None:
    stock = engine(concord=None, policy=policy)
    ten_long(stock)
    stock_s = first_token_after(stock, two_urgent(stock))

    trace = tmp_path / "trace.jsonl"
    ours = engine(concord={**STEADY, "trace": str(trace)}, policy=policy)
    long = ten_long(ours)
    ours_s = first_token_after(ours, two_urgent(ours))
    assert stock_s >= 10 * ours_s
    ours.until(lambda: len(ours.ended) == 12)
    assert {str(one.finish_reason) for one in (e.output for e in ours.ended.values())} == {"length"}
    assert all(len(ours.tokens[name]) == 300 for name in long)

    moves = [json.loads(line) for line in trace.read_text().splitlines()]
    paused = [name for move in moves for name in move.get("pause", [])]
    resumed = [name for move in moves for name in move.get("resume", [])]
    assert len(paused) == 2
    assert sorted(paused) == sorted(resumed)
    assert not any("preempt" in move for move in moves)
    assert all(ours.scheduler.requests.get(name) is None for name in long)


def test_without_room_to_pause_it_preempts_and_the_preempted_end_too(engine: Make, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    ours = engine(room=0, concord={**STEADY, "trace": str(trace), "report": str(tmp_path / "report.json")})
    long = ten_long(ours)
    assert first_token_after(ours, two_urgent(ours)) <= 0.2
    ours.until(lambda: len(ours.ended) == 12)
    assert all(len(ours.tokens[name]) == 300 for name in long)
    moves = [json.loads(line) for line in trace.read_text().splitlines()]
    assert sum(len(move.get("preempt", [])) for move in moves) == 2
    totals = ours.scheduler._totals.totals
    assert totals.preemptions == 2 and totals.pauses == 0
    assert 0 < totals.preempted_tokens <= 2 * (32 + 30), "less than all of it: full blocks are still in the cache"
    assert 0.4 <= totals.preempted_s <= 4.0
    assert json.loads((tmp_path / "report.json").read_text())["preemptions"] == 2
    assert totals.steps == ours.steps and 0 < totals.verdicts < totals.steps and totals.policy_s > 0


@pytest.mark.parametrize("policy", ["edf", "calm-thesis", "concord"])
def test_no_tag_crashes_the_engine(engine: Make, tmp_path: Path, policy: str) -> None:
    """Values that vLLM passes on in `vllm_xargs` and `extra_args`: each for each field, and some together."""
    nasty = [math.nan, math.inf, -1, 0, 5e-324, 1e308, 2**63, True, None, "", "x", "a" * 257, "\ud800", b"x"]
    nasty += [[], [1e308] * 4, [math.nan] * 4, [0] * 4, [1e9] * 32, list(range(32)), ["x"] * 4, [[1]], {}]
    names = [*(field.name for field in fields(SLOTags)), "slo_typo", "other"]
    chance = random.Random(1)
    ours = engine(slots=4, room=4, concord={**STEADY, "policy": policy, "trace": str(tmp_path / "trace.jsonl")})
    asked = [{name: value} for name in names for value in nasty]
    asked += [{n: chance.choice([*nasty, 1, 2.5]) for n in chance.sample(names, 5)} for _ in range(100)]
    for i, tags in enumerate(asked):
        add(ours, f"r{i}", tags, max_tokens=4, salt=i % 3)
        ours.step(1)
    ours.until(lambda: len(ours.ended) == len(asked))
    assert not ours.scheduler.requests


@pytest.mark.parametrize("when", ["before a step", "with the next one", "after a step"])
def test_a_client_may_leave_before_its_tags_are_refused(engine: Make, when: str) -> None:
    """Otherwise the whole engine ended: the refused call was looked for."""
    ours = engine(slots=1, room=0, concord=STEADY)
    add(ours, "bad", {"slo_deadline_s": -1.0})
    if when == "after a step":
        ours.step()
    ours.cancel(["bad"])
    if when == "with the next one":
        add(ours, "bad", {"slo_deadline_s": -1.0})
    add(ours, "good", max_tokens=2, salt=1)
    ours.until(lambda: "good" in ours.ended)
    assert not ours.scheduler.requests


@pytest.mark.parametrize("policy", ["edf", "calm-thesis", "concord", "andes"])
def test_a_pause_of_vllm_that_waits_for_running_calls_ends(engine: Make, policy: str) -> None:
    """Paused calls run for vLLM. It would wait for ever for those that the policy keeps behind waiting ones."""
    from vllm.v1.core.sched.interface import PauseState

    ours = engine(slots=2, room=2, concord={**STEADY, "policy": policy})
    for name in ("long0", "long1"):
        add(ours, name, max_tokens=200, salt=len(name))
    ours.step(5)
    for number in range(8):
        add(ours, f"urgent{number}", {"slo_class": "latency", "slo_ttft_s": 60.0, "slo_tbt_s": 0.2}, salt=number)
    ours.step(3)
    ours.scheduler.set_pause_state(PauseState.PAUSED_NEW)
    ours.until(lambda: not ours.scheduler.has_unfinished_requests(), most=600)
    assert len(ours.running) == 0 and len(ours.waiting) > 0
    ours.scheduler.set_pause_state(PauseState.UNPAUSED)
    ours.until(lambda: len(ours.ended) == 10)
    assert all(len(ours.tokens[name]) == 200 for name in ("long0", "long1"))


def test_a_paused_request_keeps_its_kv_and_gets_no_tokens(engine: Make) -> None:
    ours = engine(concord=STEADY)
    ten_long(ours)
    two_urgent(ours)
    ours.step(3)
    paused = ours.scheduler._paused
    assert len(paused) == 2
    before = {name: len(ours.tokens[name]) for name in paused}
    blocks = {name: ours.scheduler.kv_cache_manager.get_blocks(name).get_block_ids() for name in paused}
    ours.step(2)
    assert {name: len(ours.tokens[name]) for name in paused} == before
    assert {n: ours.scheduler.kv_cache_manager.get_blocks(n).get_block_ids() for n in paused} == blocks


def test_a_paused_request_whose_kv_vllm_takes_still_ends(engine: Make) -> None:
    """40 blocks: the urgent requests grow until vLLM preempts the paused ones, which are last."""
    ours = engine(slots=4, room=4, blocks=40, concord=STEADY)
    for i in range(4):
        add(ours, f"long{i}", prompt=64, max_tokens=60, salt=i)
    ours.step(5)
    for i in range(3):
        tags = {"slo_class": "latency", "slo_ttft_s": 1.0}
        add(ours, f"urgent{i}", tags, prompt=64, max_tokens=64, salt=30 + i)
    ours.until(lambda: len(ours.ended) == 7)
    assert all(len(ours.tokens[f"long{i}"]) == 60 for i in range(4))


def test_a_refusal_has_a_reason_and_the_least_deadline(engine: Make) -> None:
    ours = engine(concord=STEADY)
    quantiles = [200.0] * 32
    add(ours, "hopeless", {"slo_deadline_s": 2.0, "length_quantiles": quantiles}, max_tokens=400)
    add(ours, "fine", {"slo_deadline_s": 30.0, "length_quantiles": quantiles}, max_tokens=400)
    ours.step(2)
    answer = told(ours.ended["hopeless"])
    assert answer is not None
    reason, least = answer
    assert "its deadline is in 2.000 s and it needs at least 10.0" in reason
    assert least == pytest.approx(10, abs=0.5)
    assert ours.running == ["fine"]
    assert ours.scheduler.requests.keys() == {"fine"}


def test_tags_that_cannot_be_read_end_the_request_and_name_the_field(engine: Make) -> None:
    ours = engine(concord=STEADY)
    add(ours, "bad", {"slo_deadline_s": -1})
    add(ours, "good")
    ours.step(2)
    answer = told(ours.ended["bad"])
    assert answer is not None
    assert "slo_deadline_s" in answer[0]
    assert ours.running == ["good"]


def test_the_most_urgent_waiting_request_is_admitted_first(engine: Make) -> None:
    ours = engine(slots=1, room=0, concord={**STEADY, "preempt": False})
    add(ours, "running", max_tokens=4)
    ours.step(2)
    for name, due in (("late", 60.0), ("soon", 8.0), ("middle", 30.0)):
        add(ours, name, {"slo_deadline_s": due}, max_tokens=4)
    ours.until(lambda: len(ours.ended) == 4)
    assert [n for n, _ in sorted(ours.ended.items(), key=lambda e: e[1].at)] == ["running", "soon", "middle", "late"]


def test_siblings_of_a_fork_group_prefill_their_prompt_once(engine: Make) -> None:
    ours = engine(slots=2, room=0, concord={**STEADY, "preempt": False})
    tags = {"fork_group": "g", "fork_size": 4, "fork_need": 2, "slo_deadline_s": 60.0}
    for i in range(4):
        add(ours, f"fork{i}", tags, prompt=512, max_tokens=4)
    add(ours, "other", {"slo_deadline_s": 50.0}, max_tokens=4, salt=9)
    ours.step(2)
    views = [seen.view for seen in ours.scheduler._views._seen.values() if seen.view.group]
    waiting = [view for view in views if view.state == "waiting"]
    assert waiting
    assert all(view.cached_tokens >= 496 for view in waiting)
    ours.until(lambda: len(ours.ended) == 5)


def test_cancelled_siblings_free_their_kv_at_once(engine: Make, tmp_path: Path) -> None:
    from vllm.v1.request import RequestStatus

    trace = tmp_path / "trace.jsonl"
    ours = engine(concord={**STEADY, "trace": str(trace)})
    free = ours.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    for i in range(4):
        add(ours, f"fork{i}", {"fork_group": "g", "fork_size": 4, "fork_need": 1}, max_tokens=200, salt=i)
    ours.step(40)
    assert ours.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() < free
    ours.scheduler.finish_requests([f"fork{i}" for i in range(4)], RequestStatus.FINISHED_ABORTED)
    assert ours.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    ends = [end for end in map(json.loads, trace.read_text().splitlines()) if "end" in end]
    assert [end["status"] for end in ends] == ["FINISHED_ABORTED"] * 4
    assert ends[0]["kv_free"] < ends[-1]["kv_free"] and ends[-1]["generated"] == 40


def test_a_new_sketch_by_the_socket_changes_what_the_policy_knows(engine: Make, tmp_path: Path) -> None:
    import socket

    path = str(tmp_path / "s")
    ours = engine(concord={**STEADY, "socket": path})
    add(ours, "one", max_tokens=400)
    ours.step(2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps({"request_id": "one", "length_quantiles": [123.0] * 32}).encode(), path)
        out.sendto(b"nonsense", path)
    ours.step(1)
    (seen,) = ours.scheduler._views._seen.values()
    assert seen.view.sketch.quantile(0.5) == 123.0
    assert ours.scheduler._messages.unreadable == 1


@pytest.mark.parametrize("policy", ["edf", "calm-thesis", "concord"])
def test_every_policy_ends_a_mixed_load(engine: Make, policy: str) -> None:
    ours = engine(slots=4, room=4, concord={**STEADY, "policy": policy})
    for i in range(24):
        tags = [
            {"slo_ttft_s": 60.0, "slo_tbt_s": 1.0},
            {"slo_deadline_s": 200.0},
            {"compound_id": f"c{i // 8}", "compound_stage": 1, "compound_deadline_s": 300.0, "compound_width": 2},
            {},
        ][i % 4]
        add(ours, f"r{i}", tags, max_tokens=8 + i, salt=i)
        ours.step(1)
    ours.until(lambda: len(ours.ended) == 24)
    assert not ours.scheduler.requests
    assert len(ours.scheduler._views) == 0
    refused = [n for n, e in ours.ended.items() if told(e)]
    assert policy == "calm-thesis" or not refused


def test_late_tokens_miss_the_slo(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = engine(concord={**STEADY, "policy_options": {"refuse": False}})
    seen = {}
    monkeypatch.setattr(ours.scheduler._decider, "observe", lambda done: seen.update({done.view.ttft: done}))
    begin = ours.now
    add(ours, "in time", {"slo_ttft_s": 1.0, "slo_tbt_s": 0.1}, max_tokens=10)
    add(ours, "late first", {"slo_ttft_s": 0.01}, max_tokens=10, salt=1)
    add(ours, "late last", {"slo_ttft_s": 0.3, "slo_tbt_s": 0.01}, max_tokens=10, salt=2)
    ours.until(lambda: len(ours.ended) == 3)
    found = {round(ttft - begin, 2): (done.met, done.delivered) for ttft, done in seen.items()}
    assert found[1.0] == (True, 10)
    assert found[0.01] == (False, 9)
    assert found[0.3][0] is False and 0 < found[0.3][1] < 10


def test_a_verdicts_budget_bounds_the_prompt_tokens_of_a_step(engine: Make) -> None:
    options = {"protect_tbt": True}
    ours = engine(concord={**STEADY, "policy_options": options})
    add(ours, "stream", {"slo_ttft_s": 60.0, "slo_tbt_s": 0.06}, max_tokens=100)
    ours.step(3)
    add(ours, "long", {"slo_deadline_s": 60.0}, prompt=3000, max_tokens=4, salt=1)
    largest = 0
    inner = ours.scheduler.schedule

    def watched() -> Any:
        nonlocal largest
        output = inner()
        largest = max(largest, output.total_num_scheduled_tokens)
        return output

    ours.scheduler.schedule = watched
    ours.until(lambda: "long" in ours.ended)
    assert largest == 1001, "10 ms at 0.01 ms a prompt token, and the stream's own"
    assert ours.scheduler.max_num_scheduled_tokens == 8192


def test_an_unknown_version_and_unknown_options_stop_the_start(engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramify.serving.errors import BadOptions, UnsupportedVllm
    from ramify.serving.vllm_plugin import scheduler

    with pytest.raises(BadOptions, match="polcy: no such option"):
        engine(concord={"polcy": "concord"})
    with pytest.raises(BadOptions, match="no policy is called 'fifo'"):
        engine(concord={"policy": "fifo"})
    monkeypatch.setattr(scheduler.vllm, "__version__", "0.34.1")
    with pytest.raises(UnsupportedVllm, match=r"vLLM 0\.34\.1"):
        engine(concord={})


def test_an_idle_engine_tests_a_pessimistic_pace(engine: Make) -> None:
    """A step takes 50 ms and the model says 2 s. Refusals alone would never show that."""
    slow = {"step": {"base_ms": 2000, "per_seq_ms": 0, "per_kctx_ms": 0, "per_prefill_ms": 0.01}}
    ours = engine(concord=slow)
    refused = 0
    for i in range(12):
        add(ours, f"call{i}", {"slo_deadline_s": 2.0, "length_quantiles": [16.0] * 32})
        ours.until(lambda i=i: f"call{i}" in ours.ended)
        refused += told(ours.ended[f"call{i}"]) is not None
        ours.now += 10.0
    assert 0 < refused < 8, "it was believed at first"
    assert told(ours.ended["call11"]) is None and len(ours.tokens["call11"]) == 16
    assert ours.scheduler._calibrator.model.base_ms < 200


def test_a_call_that_cannot_start_in_time_is_refused_on_arrival(engine: Make) -> None:
    ours = engine(slots=2, concord=STEADY)
    for i in range(12):
        add(ours, f"call{i}", {"slo_deadline_s": 3.0, "length_quantiles": [16.0] * 32}, salt=i)
    ours.step(3)
    refused = [name for name, ended in ours.ended.items() if told(ended) is not None]
    assert len(refused) == 4, "a fourth round would end after 3.2 s, which is too near to be sure of"
    ours.until(lambda: len(ours.ended) == 12)
    assert len([name for name in ours.tokens if len(ours.tokens[name]) == 16]) == 6


def test_under_andes_a_reader_ahead_lends_its_slot_and_gets_it_back_before_it_has_read_all(engine: Make) -> None:
    tags = {"slo_class": "stream", "slo_ttft_s": 1.0, "slo_tbt_s": 1.0}
    made = engine({**STEADY, "policy": "andes"}, slots=2, room=4)
    start = made.now
    for name in ("early0", "early1"):
        add(made, name, tags, max_tokens=120)
    made.step(60)  # a minute to read in 3 s
    begun = made.now
    add(made, "late", tags, max_tokens=120, salt=3)
    made.until(lambda: bool(made.tokens["late"]))
    assert made.now - begun < 1.0
    made.until(lambda: len(made.ended) == 3)
    for name in ("early0", "early1", "late"):
        times = made.tokens[name]
        first = (begun if name == "late" else start) + 1.0
        assert all(at <= first + i for i, at in enumerate(times)), name
