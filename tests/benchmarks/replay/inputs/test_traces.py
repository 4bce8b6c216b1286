"""Variants of traces that are read, beside those of `test_inputs.py`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay.errors import BadTrace
from benchmarks.replay.inputs.traces import files_of, load, read, response_pairs

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([HEADER, "5.5,100,10", "2.25,200,20"], [(0.0, 200, 20), (3.25, 100, 10)]),
        ([HEADER, "1700158546,374.0,44", "1700158550.5,396,109.0"], [(0.0, 374, 44), (4.5, 396, 109)]),
        ([HEADER, "2023-11-16T18:15:46Z,0,0", "2023-11-16T18:15:46Z,7,1"], [(0.0, 1, 1), (0.0, 7, 1)]),
        (["", " ", HEADER, "", " , ,", "1,2,3", "2,4,5"], [(0.0, 2, 3), (1.0, 4, 5)]),
        (["GeneratedTokens,x,TIMESTAMP,ContextTokens", "3,é,1,2", '5,"a,b",2,4,more'], [(0.0, 2, 3), (1.0, 4, 5)]),
    ],
    ids=["seconds", "Unix time and lengths of a float", "the same time and no tokens", "blank lines", "columns"],
)
def test_csv_variants(tmp_path: Path, lines: Sequence[str], said: Sequence[tuple[float, int, int]]) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("\n".join(lines), "utf-8")
    found = [(one.at, one.call.prompt, one.call.output) for one in read(path).arrivals]
    assert found == [(pytest.approx(at), prompt, output) for at, prompt, output in said]


@pytest.mark.parametrize("at", ["1700158546680", "20231116", "16/11/2023", "", "-1"])
def test_a_time_in_an_unknown_unit_is_refused_with_its_line(tmp_path: Path, at: str) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(f"{HEADER}\n\n2023-11-16 18:15:46,374,44\n{at},396,109\n")
    if at == "20231116":  # seconds: 231 days
        assert len(read(path).arrivals) == 2
        return
    with pytest.raises(BadTrace, match="line 4: ") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_blocks_may_have_names_or_numbers_of_64_bits(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    ids: list[list[Any]] = [[5, "a", 2**64 - 1], [5, "a", 2**64 - 2], [5, "b", -1]]
    lines = [{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": one} for one in ids]
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second, third = [one.call.blocks for one in read(path).arrivals]
    assert first[:2] == second[:2] and first[2] != second[2]
    assert first[0] == third[0] == 5 and len({*first, *second, *third}) == 6
    assert all(0 <= block < 1 << 40 for one in (first, second, third) for block in one)


def session(*requests: dict[str, Any]) -> str:
    return json.dumps({"id": "s", "unknown": [1], "requests": list(requests)})


def call(t: float, **more: Any) -> dict[str, Any]:
    return {"t": t, "in": 100, "out": 0, **more}


def test_sub_agents_of_sub_agents_are_read_on_their_clocks(tmp_path: Path) -> None:
    own = {"t": 50.0, "type": "subagent", "requests": [call(2.0), call(0.0)]}  # begins with the sub-agent
    inner = {"t": 10.0, "type": "subagent", "requests": [call(0.5), own, call(70.0)]}
    (tmp_path / "a.json").write_text(session(call(0.0), inner, call(5.0, out=None), {"t": 6.0, "type": "s"}))
    trace = read(tmp_path)
    assert [one.at for one in trace.arrivals] == [0.0, 10.5, 60.0, 62.0, 80.0]
    assert [one.call.output for one in trace.arrivals] == [1] * 5


def test_blocks_of_sessions_are_never_the_same_however_they_are_numbered(tmp_path: Path) -> None:
    for name, block in (("a.json", 1_000_000), ("b.json.gz", 0)):
        whole = session(call(0.0, hash_ids=[block, "x", 2**63]), call(9.0, hash_ids=[block]))
        (tmp_path / name).write_bytes(gzip.compress(whole.encode()) if name.endswith("gz") else whole.encode())
    (tmp_path / "._a.json").write_text("of macOS")
    one, other = [turn.turns for turn in read(tmp_path).sessions]
    assert one[0].calls[0].blocks[:1] == one[1].calls[0].blocks
    assert not {*one[0].calls[0].blocks} & {*other[0].calls[0].blocks}


@pytest.mark.parametrize(
    "whole",
    [
        session({"t": 0, "requests": [[1]]}),
        session({"requests": [call(0.0)]}),
        session(call(0.0, hash_ids=[[1]])),
        json.dumps({"requests": {"t": 1}}),
        json.dumps([call(0.0)]),
        '{"requests": ' + '[{"t": 0, "requests": ' * 600,
    ],
)
def test_other_sessions_are_refused_in_a_line(tmp_path: Path, whole: str) -> None:
    (tmp_path / "a.json").write_text(whole)
    with pytest.raises(BadTrace, match=r"a\.json: not an agent session") as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)


def test_responses_may_be_empty_of_no_data_set_and_of_any_text(tmp_path: Path) -> None:
    path = tmp_path / "model.jsonl"
    path.write_text('{"prompt": "日本 \\ud83d\\ude00", "response": "", "dataset": null, "more": 1}\n')
    (pair,) = response_pairs(path)
    assert (pair["prompt"], pair["response"], pair["dataset"]) == ("日本 😀", "", "")


def test_files_of_a_folder_may_be_gzipped_and_json_is_read_or_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("[1]")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"[2]"))
    (tmp_path / "c.jsonl").write_text("")
    assert [load(path) for path in files_of(tmp_path, ".json")] == [[2], [1]]
    assert files_of(tmp_path / "none", ".json") == []
    (tmp_path / "b.json").write_text("[1")
    with pytest.raises(BadTrace, match=r"b\.json: is no JSON"):
        load(tmp_path / "b.json")
