"""Measured runs as files: what is read, and what is refused with its line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.fidelity.measured_run import read_run

ENGINE: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 256}
_EPOCH = 1_777_000_000.0  # the client's clock; the engine's began at 500


def rows(count: int = 10) -> list[dict[str, Any]]:
    return [
        {
            "input_toks": 100 + i,
            "output_toks": 10,
            "arrival_time": _EPOCH + i,
            "queued_ts": 500.002 + i,
            "first_token_ts": 500.1 + i,
            "last_token_ts": 501.0 + i,
        }
        for i in range(count)
    ]


def written(folder: Path, requests: list[Any], engine: Any = None) -> Path:
    (folder / "meta.json").write_text(json.dumps({"engine_kwargs": ENGINE if engine is None else engine}))
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, requests)))
    return folder


def test_a_run_is_read_in_the_order_of_its_arrivals_on_one_clock(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, rows()[::-1]))
    assert (run.slots, run.step_tokens, len(run.requests)) == (4, 256, 10)
    assert [one.prompt for one in run.requests] == [100 + i for i in range(10)]
    assert [one.arrived for one in run.requests] == pytest.approx([float(i) for i in range(10)], abs=1e-3)
    assert run.requests[3].ttft == pytest.approx(0.098, abs=1e-3)


def test_gzip_crlf_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    plain = read_run(written(tmp_path, rows())).requests
    for name in ("meta.json", "requests.jsonl"):
        text = "\ufeff" + (tmp_path / name).read_text().replace("\n", "\r\n")
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / name).unlink()
    assert read_run(tmp_path).requests == plain


def test_a_request_without_an_arrival_arrived_when_it_was_queued(tmp_path: Path) -> None:
    some = rows()
    del some[3]["arrival_time"]
    some[4]["arrival_time"] = None
    for one in some[3:5]:
        one["queued_ts"] += 0.05
    at = [one.arrived for one in read_run(written(tmp_path, some)).requests]
    assert at == pytest.approx([0, 1, 2, 3.05, 4.05, 5, 6, 7, 8, 9], abs=1e-3)


def _third(**changes: Any) -> Callable[[list[dict[str, Any]]], list[Any]]:
    return lambda good: [*good[:2], {**good[2], **changes}, *good[3:]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (_third(first_token_ts=None), "requests.jsonl, line 3: .*a request has input_toks"),
        (_third(queued_ts=float("nan")), "line 3: .*the times are out of order"),
        (_third(last_token_ts=float("inf")), "line 3: .*the times are out of order"),
        (_third(last_token_ts=0.0), "line 3: .*the times are out of order"),
        (_third(arrival_time=float("nan")), "line 3: .*the times are out of order"),
        (_third(scheduled_ts=502.0), "line 3: .*scheduled at 502.0, tokens from 502.1: the times are out of order"),
        (_third(scheduled_ts=502_050.0), "line 3: .*scheduled at 502050.0, .*the times are out of order"),
        (_third(input_toks=-1), "line 3: .*lengths of -1"),
        (_third(output_toks=10**12), "line 3: .*lengths of 102 and 1000000000000"),
        (_third(input_toks=float("inf")), "line 3"),
        (_third(input_toks="many"), "line 3"),
        (_third(error="out of memory"), "line 3: .*it failed .out of memory."),
        (lambda good: [*good[:2], [1, 2], *good[3:]], "line 3"),
        (lambda good: good[:7], "7 requests are too few"),
        (lambda good: [], "0 requests are too few"),
        (lambda good: [{**one, "output_toks": 1} for one in good], "its first half took time"),
        (
            lambda good: [*good[:5], *({**one, "last_token_ts": one["first_token_ts"]} for one in good[5:])],
            "its second half took time",
        ),
        (
            lambda good: [{**one, "arrival_time": 0.0, "queued_ts": 500.0, "first_token_ts": 500.0} for one in good],
            "first half has its first token as it arrives",
        ),
    ],
)
def test_a_malformed_run_is_refused_with_its_line(
    tmp_path: Path, changed: Callable[[list[dict[str, Any]]], list[Any]], said: str
) -> None:
    with pytest.raises(BadTrace, match=said) as caught:
        read_run(written(tmp_path, changed(rows())))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({}, "meta.json names no engine.*max_num_seqs"),
        ([], "meta.json names no engine"),
        ({**ENGINE, "max_num_seqs": None}, "meta.json names no engine"),
        ({**ENGINE, "data_parallel_size": 4}, "4 engines.*the file does not say whether they run in lockstep"),
        ({**ENGINE, "data_parallel_size": 65, "enable_expert_parallel": True}, "65 engines.*at most 64"),
        ({**ENGINE, "data_parallel_size": -1}, "-1 engines"),
        ({**ENGINE, "data_parallel_size": "many"}, "meta.json names no engine"),
        ({**ENGINE, "max_num_seqs": 0}, "0 sequences in steps of 256 tokens"),
        ({**ENGINE, "max_num_batched_tokens": 3}, "4 sequences in steps of 3 tokens"),
    ],
)
def test_impossible_engine_settings_are_refused(tmp_path: Path, engine: Any, said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        read_run(written(tmp_path, rows(), engine))


@pytest.mark.parametrize("said", [False, True, None])
def test_scheduling_settings_come_from_the_arguments(tmp_path: Path, said: bool | None) -> None:
    names = ("async_scheduling", "enable_chunked_prefill", "enable_prefix_caching")
    run = read_run(written(tmp_path, rows(), ENGINE | dict.fromkeys(names, said)))
    assert {run.overlap, run.chunked_prefill, run.prefix_cache} == {said is not False}


def test_the_resolved_configuration_takes_precedence(tmp_path: Path) -> None:
    written(tmp_path, rows(), {**ENGINE, "enable_chunked_prefill": True, "block_size": 16})
    meta = json.loads((tmp_path / "meta.json").read_text())
    scheduler = {"async_scheduling": False, "enable_chunked_prefill": False, "max_num_seqs": 9, "policy": "fcfs"}
    meta["resolved_config"] = {
        "scheduler_config": scheduler,
        "cache_config": {"num_gpu_blocks": 50, "block_size": 32, "enable_prefix_caching": False},
        "speculative_config": None,
    }
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    run = read_run(tmp_path)
    assert (run.slots, run.overlap, run.chunked_prefill) == (9, False, False)
    assert (run.blocks, run.block_size, run.prefix_cache) == (50, 32, False)
    meta["resolved_config"]["speculative_config"] = {"method": "ngram"}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(BadTrace, match=r"speculative_config is .*ngram.*: such an engine cannot be replayed"):
        read_run(tmp_path)


def test_engines_that_share_experts_are_one_run(tmp_path: Path) -> None:
    assert read_run(written(tmp_path, rows())).engines == 1
    engine = {**ENGINE, "data_parallel_size": 2, "enable_expert_parallel": True}
    assert read_run(written(tmp_path, rows(), engine)).engines == 2


@pytest.mark.parametrize("broken", ["cut", "garbled", "no text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, broken: str) -> None:
    written(tmp_path, rows())
    (tmp_path / "requests.jsonl").unlink()
    whole = gzip.compress(json.dumps(rows()).encode())
    wrong = {"cut": whole[:-20], "garbled": whole[:20] + b"\xff" * 20 + whole[40:], "no text": b"\xff\xfe\xfd"}
    (tmp_path / "requests.jsonl.gz").write_bytes(wrong[broken])
    with pytest.raises(BadTrace, match=r"requests\.jsonl\.gz: cannot be read"):
        read_run(tmp_path)
    with pytest.raises(BadTrace, match=r"neither meta\.json nor meta\.json\.gz"):
        read_run(tmp_path / "elsewhere")


def test_the_replay_has_the_kv_of_the_run(tmp_path: Path) -> None:
    written(tmp_path, rows())
    assert read_run(tmp_path).blocks is None
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "kv_cache": {"num_gpu_blocks": 40, "block_size": 32}}))
    assert (read_run(tmp_path).blocks, read_run(tmp_path).block_size) == (40, 32)
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "kv_cache": {"num_gpu_blocks": 4, "block_size": 16}}))
    with pytest.raises(BadTrace, match="a KV of 4 blocks of 16 tokens cannot hold a request of 119"):
        read_run(tmp_path)


def test_simultaneous_arrivals_are_ordered_by_their_queue_time(tmp_path: Path) -> None:
    """The order of the file does not matter."""
    burst = [{**row, "arrival_time": _EPOCH, "queued_ts": 500.0 + 0.001 * i} for i, row in enumerate(rows())]
    shuffled = [burst[i] for i in (7, 2, 9, 0, 5, 1, 8, 3, 6, 4)]
    assert [one.prompt for one in read_run(written(tmp_path, shuffled)).requests] == [100 + i for i in range(10)]


@pytest.mark.parametrize(
    "odd",
    [
        {"speculative_config": {"method": "ngram"}},
        {"pipeline_parallel_size": 2},
        {"scheduling_policy": "priority"},
        {"long_prefill_token_threshold": 512},
    ],
)
def test_an_engine_that_cannot_be_replayed_is_refused(tmp_path: Path, odd: dict[str, Any]) -> None:
    with pytest.raises(BadTrace, match=next(iter(odd))):
        read_run(written(tmp_path, rows(), ENGINE | odd))
    usual = {"speculative_config": None, "pipeline_parallel_size": 1, "scheduling_policy": "fcfs"}
    assert read_run(written(tmp_path, rows(), ENGINE | usual)).slots == 4


def test_the_kv_may_be_given_in_the_engine_arguments(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, rows(), ENGINE | {"num_gpu_blocks_override": 77, "block_size": 32}))
    assert (run.blocks, run.block_size) == (77, 32)


def test_arrivals_in_another_unit_are_refused(tmp_path: Path) -> None:
    some = [{**one, "arrival_time": one["arrival_time"] * 1000} for one in rows()]
    with pytest.raises(BadTrace, match="arrival_time is not in the seconds of queued_ts"):
        read_run(written(tmp_path, some))


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e9])
def test_engine_times_in_another_unit_are_refused(tmp_path: Path, factor: float) -> None:
    """Detected by token times that are too slow for any engine, else by the arrivals."""
    some = [{name: at * factor if name.endswith("_ts") else at for name, at in one.items()} for one in rows()]
    with pytest.raises(BadTrace, match=r"requests\.jsonl: the engine's times are not all in seconds: .*a token and"):
        read_run(written(tmp_path, some))
    with pytest.raises(BadTrace, match="the engine's times are not all in seconds"):
        read_run(written(tmp_path, [{**one, "arrival_time": None} for one in some]))
    # 3 ms a token and 50 to the first, as a small model has: the figures alone might be a slow engine's seconds.
    quick = [{**one, "first_token_ts": one["queued_ts"] + 50, "last_token_ts": one["queued_ts"] + 77} for one in some]
    with pytest.raises(BadTrace, match="queued_ts is not in the seconds of arrival_time: requests arrived over 9 of"):
        read_run(written(tmp_path, quick))


@pytest.mark.parametrize("odd", [("queued_ts", 1e-3), ("first_token_ts", 1e3), ("last_token_ts", 1e3)])
def test_one_time_field_in_another_unit_is_refused(tmp_path: Path, odd: tuple[str, float]) -> None:
    name, factor = odd
    later = [{key: at + 499_500.0 if key.endswith("_ts") else at for key, at in one.items()} for one in rows()]
    some = [{**one, name: one[name] * factor} for one in later]
    if name == "first_token_ts":
        some = [{**one, "last_token_ts": one["last_token_ts"] * factor} for one in some]
    with pytest.raises(BadTrace, match="the engine's times are not all in seconds"):
        read_run(written(tmp_path, some))


def test_a_burst_is_not_taken_for_another_unit(tmp_path: Path) -> None:
    burst = [{**one, "arrival_time": _EPOCH + 0.001 * i} for i, one in enumerate(rows())]
    assert read_run(written(tmp_path, burst)).requests[9].ttft == pytest.approx(9.1, abs=0.1)


def test_without_chunked_prefill_no_request_is_longer_than_a_step(tmp_path: Path) -> None:
    whole = {**ENGINE, "enable_chunked_prefill": False}
    assert read_run(written(tmp_path, rows(), {**whole, "max_num_batched_tokens": 119})).step_tokens == 119
    with pytest.raises(BadTrace, match=r"119 tokens, in steps of 118 without chunked prefill: .*put into meta"):
        read_run(written(tmp_path, rows(), {**whole, "max_num_batched_tokens": 118}))
    assert read_run(written(tmp_path, rows(), {**ENGINE, "max_num_batched_tokens": 118})).step_tokens == 118


def _one_after_the_other(slots: int) -> list[dict[str, Any]]:
    """All requests arrive at once, and a fixed number is served at a time, for 10 s each."""
    return [
        {
            **row,
            "arrival_time": _EPOCH,
            "queued_ts": 500.0 + 0.001 * i,
            "scheduled_ts": 500.01 + 10 * (i // slots),
            "first_token_ts": 500.1 + 10 * (i // slots),
            "last_token_ts": 510.0 + 10 * (i // slots),
        }
        for i, row in enumerate(rows(16))
    ]


def test_waiting_with_free_slots_reveals_an_unknown_kv(tmp_path: Path) -> None:
    assert read_run(written(tmp_path, _one_after_the_other(4))).blocks is None, "they waited for slots"
    with pytest.raises(BadTrace, match=r"how large the KV was, .*: \d\d% of the time to first tokens.*add kv_cache"):
        read_run(written(tmp_path, _one_after_the_other(2)))
    assert (
        read_run(written(tmp_path, _one_after_the_other(2), {**ENGINE, "num_gpu_blocks_override": 20})).blocks == 20
    )
    untold = [{**one, "scheduled_ts": None} for one in _one_after_the_other(2)]
    assert read_run(written(tmp_path, untold)).blocks is None, "whether a slot was free is not known"


def test_waiting_for_earlier_prompts_is_not_waiting_for_kv(tmp_path: Path) -> None:
    """One prompt after the other is computed all the time, while slots are free."""
    some = [
        {**one, "queued_ts": 500.0 + 0.001 * i, "scheduled_ts": 500.1 + i, "first_token_ts": 501.1 + i}
        | {"arrival_time": _EPOCH, "last_token_ts": 501.9 + i}
        for i, one in enumerate(rows())
    ]
    assert read_run(written(tmp_path, some)).requests[9].ttft == pytest.approx(10.1, abs=0.1)


@pytest.mark.parametrize(
    ("sample", "refused"),
    [
        ("2,5,99.8", True),
        ("4,5,99.8", False),  # no slot is free
        ("2,0,99.8", False),  # nobody waits
        ("2,5,60.0", False),
    ],
)
def test_samples_with_a_full_kv_reveal_an_unknown_kv(tmp_path: Path, sample: str, refused: bool) -> None:
    written(tmp_path, rows())
    series = "t,running,waiting,kv_cache_pct\n0.0,,,\n" + f"1.0,4,3,50.0\n2.0,{sample}\n" * 10
    (tmp_path / "timeseries.csv.gz").write_bytes(gzip.compress(series.encode()))
    if not refused:
        assert read_run(tmp_path).blocks is None
        return
    with pytest.raises(BadTrace, match=r"in 50% of timeseries\.csv's samples with waiting requests it was full"):
        read_run(tmp_path)


def test_few_or_empty_samples_are_ignored(tmp_path: Path) -> None:
    written(tmp_path, rows())
    head, full = "t,running,waiting,kv_cache_pct\n", "2.0,2,5,99.8\n"
    for series in ("", "t,power_w\n1.0,none\n", head + full, head + "2.0,4\n" * 20, head + "2.0,x,5,99%\n" * 20):
        (tmp_path / "timeseries.csv").write_text(series)
        assert read_run(tmp_path).blocks is None


def test_without_chunked_prefill_a_prompt_waits_for_a_step_and_not_for_kv(tmp_path: Path) -> None:
    waiting = _one_after_the_other(2)
    with pytest.raises(BadTrace, match="how large the KV was"):
        read_run(written(tmp_path, waiting))
    assert read_run(written(tmp_path, waiting, {**ENGINE, "enable_chunked_prefill": False})).blocks is None


def test_more_concurrent_requests_than_slots_are_refused(tmp_path: Path) -> None:
    """A last token is reported a few steps late: the next request has the slot by then."""
    together = [{**one, "last_token_ts": 520.0 + i} for i, one in enumerate(rows())]
    with pytest.raises(BadTrace, match=r"4 sequences at once .* but at least 9 were between their first"):
        read_run(written(tmp_path, together))
    for more in ({"max_num_seqs": 10}, {"data_parallel_size": 3, "enable_expert_parallel": True}):
        assert len(read_run(written(tmp_path, together, {**ENGINE, **more})).requests) == 10
