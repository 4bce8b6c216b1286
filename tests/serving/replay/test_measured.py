"""Measured runs as files: what is read of them, and what is refused with its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.serving.replay.errors import BadTrace
from ramify.serving.replay.measured import read_run

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
        (_third(queued_ts=float("nan")), "line 3: .*no order of times"),
        (_third(last_token_ts=float("inf")), "line 3: .*no order of times"),
        (_third(last_token_ts=0.0), "line 3: .*no order of times"),
        (_third(arrival_time=float("nan")), "line 3: .*no order of times"),
        (_third(input_toks=-1), "line 3: .*lengths of -1"),
        (_third(output_toks=10**12), "line 3: .*lengths of 102 and 1000000000000"),
        (_third(input_toks=float("inf")), "line 3"),
        (_third(input_toks="many"), "line 3"),
        (lambda good: [*good[:2], [1, 2], *good[3:]], "line 3"),
        (lambda good: good[:7], "7 requests are too few"),
        (lambda good: [], "0 requests are too few"),
        (lambda good: [{**one, "output_toks": 1} for one in good], "its first half took time"),
        (
            lambda good: [*good[:5], *({**one, "last_token_ts": one["first_token_ts"]} for one in good[5:])],
            "its second half took time",
        ),
        (
            lambda good: [{**one, "arrival_time": 0.0, "queued_ts": 5.0, "first_token_ts": 5.0} for one in good],
            "first half has its first token as it arrives",
        ),
    ],
)
def test_what_is_no_run_is_refused_with_its_line(
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
        ({**ENGINE, "data_parallel_size": 4}, "4 engines side by side.*whether their steps wait for each other"),
        ({**ENGINE, "data_parallel_size": 65, "enable_expert_parallel": True}, "65 engines side by side.*at most 64"),
        ({**ENGINE, "data_parallel_size": -1}, "-1 engines side by side"),
        ({**ENGINE, "data_parallel_size": "many"}, "meta.json names no engine"),
        ({**ENGINE, "max_num_seqs": 0}, "0 sequences in steps of 256 tokens"),
        ({**ENGINE, "max_num_batched_tokens": 3}, "4 sequences in steps of 3 tokens"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(tmp_path: Path, engine: Any, said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        read_run(written(tmp_path, rows(), engine))


@pytest.mark.parametrize("said", [False, True, None])
def test_how_the_engine_scheduled_is_as_its_arguments_say(tmp_path: Path, said: bool | None) -> None:
    run = read_run(written(tmp_path, rows(), {**ENGINE, "async_scheduling": said, "enable_chunked_prefill": said}))
    assert (run.overlap, run.chunked_prefill) == ((False, False) if said is False else (True, True))


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


def test_the_kv_that_the_run_had_is_the_replays(tmp_path: Path) -> None:
    written(tmp_path, rows())
    assert read_run(tmp_path).blocks is None
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "kv_cache": {"num_gpu_blocks": 40, "block_size": 32}}))
    assert (read_run(tmp_path).blocks, read_run(tmp_path).block_size) == (40, 32)
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "kv_cache": {"num_gpu_blocks": 4, "block_size": 16}}))
    with pytest.raises(BadTrace, match="a KV of 4 blocks of 16 tokens cannot hold a request of 119"):
        read_run(tmp_path)


def test_who_came_at_once_was_queued_one_after_the_other(tmp_path: Path) -> None:
    """Whatever the order of the file."""
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
def test_an_engine_whose_schedule_would_be_another_is_refused(tmp_path: Path, odd: dict[str, Any]) -> None:
    with pytest.raises(BadTrace, match=next(iter(odd))):
        read_run(written(tmp_path, rows(), ENGINE | odd))
    usual = {"speculative_config": None, "pipeline_parallel_size": 1, "scheduling_policy": "fcfs"}
    assert read_run(written(tmp_path, rows(), ENGINE | usual)).slots == 4


def test_a_kv_that_stands_among_the_engines_arguments_is_the_replays(tmp_path: Path) -> None:
    run = read_run(written(tmp_path, rows(), ENGINE | {"num_gpu_blocks_override": 77, "block_size": 32}))
    assert (run.blocks, run.block_size) == (77, 32)


def test_arrivals_in_another_unit_are_refused(tmp_path: Path) -> None:
    some = [{**one, "arrival_time": one["arrival_time"] * 1000} for one in rows()]
    with pytest.raises(BadTrace, match="arrival_time is not in the seconds of queued_ts"):
        read_run(written(tmp_path, some))
