"""benchmarks/durability/trace_hit_rates.py: how calls are read from traces, and that wrong hits are counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.durability import trace_hit_rates as traces
from benchmarks.replay.errors import BadTrace


def trajectory(*calls: tuple[str, dict[str, Any], str]) -> dict[str, Any]:
    said: list[dict[str, Any]] = [{"role": "system", "content": "be good"}]
    for name, arguments, result in calls:
        call = {"id": "same", "function": {"name": name, "arguments": json.dumps(arguments)}}
        said += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "same", "content": result},
        ]
    return {"task_id": 0, "trial": 0, "traj": said}


def test_reads_are_shared_across_histories_but_not_across_writes() -> None:
    look = ("get_order", {"id": 1}, "open")
    first = trajectory(
        ("list_orders", {}, "1"), look, ("return_order", {"id": 1}, "ok"), ("get_order", {"id": 1}, "back")
    )
    calls = [*traces.tool_trajectories([first, trajectory(look)])]
    assert traces.rate(calls, traces.by_state) == traces.Rate(calls=5, hits=1, wrong=0)
    assert traces.rate(calls, traces.by_history) == traces.Rate(calls=5, hits=0, wrong=0)


def test_a_failed_write_and_an_empty_result() -> None:
    look = ("get_order", {"id": 1}, "open")
    refused = trajectory(look, ("return_order", {"id": 1}, "Error: no"), look)
    calls = [*traces.tool_trajectories([refused])]
    assert traces.rate(calls, traces.by_state).hits == 1
    refused["traj"].insert(3, {"role": "tool", "tool_call_id": "other", "content": "?"})
    assert traces.rate([*traces.tool_trajectories([refused])], traces.by_state).hits == 0


def test_a_wrong_hit_is_seen() -> None:
    polls = [trajectory(("get_status", {}, "busy"), ("get_status", {}, "done"))]
    assert traces.rate([*traces.tool_trajectories(polls)], traces.by_state) == traces.Rate(2, 1, 1)


def test_proposals_with_wrong_arithmetic_are_not_calls(tmp_path: Path) -> None:
    lines = ["4 + 5 = 9 (left: 6 9 10)\n", "5 + 6 = 12 (left: 4 10 12)\n", "6 + 7 = 13 (left: 4 5)\n"]
    deeper = ["4 + 5 = 9 (left: 6 9 10)\n6 + 9 = 15 (left: 10 15)\n", "6 + 4 = 10 (left: 5 10 10)\nnothing\n"]
    game = {"steps": [{"x": "4 5 6 10", "new_ys": [*lines, *deeper, ""]}]}
    path = tmp_path / "games.json.gz"
    path.write_bytes(gzip.compress(json.dumps([game]).encode()))
    tools, games = traces.rows([path])
    assert (tools["ours"], games["calls"]) == (None, 2)


def test_a_manifest_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('[{"what": 1}]')
    with pytest.raises(ValueError, match="no trace of a kind"):
        traces.rows([path])


def test_trajectories_without_tools_and_steps_that_failed(tmp_path: Path) -> None:
    talks: list[Any] = [{"task_id": 1}, {"traj": None}, None, {"traj": [{"role": "assistant", "content": None}]}]
    failed: list[Any] = [None, {"steps": None}, {"steps": [{"step": 0, "x": "1 2", "new_ys": None}, {"step": 1}]}]
    for name, trace in (("talks.json", talks), ("failed.json", failed)):
        (tmp_path / name).write_text(json.dumps(trace))
    tools, games = traces.rows([tmp_path / "talks.json", tmp_path / "failed.json"])
    for one in (tools, games):
        assert (one["ours"], one["met"]) == (None, None) and "no tool call" in one["note"]


def test_calls_with_arguments_as_an_object_and_results_without_a_call() -> None:
    one = trajectory(("get_order", {"id": 1}, "open"))
    other = trajectory(("get_order", {"id": 1}, "open"))
    other["traj"][1]["tool_calls"][0]["function"]["arguments"] = {"id": 1}
    nameless = trajectory(("get_order", {"id": 1}, "closed"))
    del nameless["traj"][1]["tool_calls"][0]["id"], nameless["task_id"]
    calls = [*traces.tool_trajectories([one, other, nameless])]
    assert traces.rate(calls, traces.by_state) == traces.Rate(2, 1, 0)


@pytest.mark.parametrize(
    "text", ["[", "", "[]", '{"traj": []}', '[{"traj": [1]}]', '[{"steps": [{"new_ys": ["a"]}]}]']
)
def test_what_is_no_trace_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadTrace, match=r"other\.json: ") as caught:
        traces.rows([path])
    assert "\n" not in str(caught.value)
