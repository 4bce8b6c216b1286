"""benchmarks/durability/trace_hit_rates.py: how calls are read from traces, and that wrong hits are counted."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.durability import trace_hit_rates as traces


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
