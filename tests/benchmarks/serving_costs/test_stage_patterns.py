"""What is read of agent sessions and tool trajectories, and that few of them are no error."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replay.errors import BadTrace
from benchmarks.serving_costs import pattern_cohorts
from benchmarks.serving_costs.stage_patterns import pattern_rows, sessions, trajectories


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("agent_sessions", "tool_trajectories"):
        (tmp_path / name).mkdir()
    return tmp_path


def call(**more: Any) -> dict[str, Any]:
    return {"t": 0.0, "in": 100, "out": 0, **more}


def test_a_session_without_times_and_models_and_with_sub_agents(data: Path) -> None:
    sub = {"t": 1.0, "type": "subagent", "requests": [call()]}
    requests = [call(), sub, call(stop="end_turn"), call(out=None), {"t": 3.0, "type": "s"}, call(model=None)]
    whole = gzip.compress(json.dumps({"requests": requests}).encode())
    (data / "agent_sessions" / "a.json.gz").write_bytes(whole)
    (data / "agent_sessions" / "b.json").write_text('{"requests": []}')
    assert [(name, graph.stages) for name, graph in sessions(data)] == [("a.json.gz", 2), ("a.json.gz", 1)]


def test_trajectories_without_tools_or_messages(data: Path) -> None:
    runs = [{"task_id": 1, "traj": [{"role": "user", "content": None}, {"role": "assistant"}]}, {"traj": None}, None]
    (data / "tool_trajectories" / "t.json").write_text(json.dumps(runs))
    assert [(name, graph.stages) for name, graph in trajectories(data)] == [("1", 1)]


def test_what_cannot_be_measured_with_few_traces_says_so(data: Path) -> None:
    assert [one["ours"] for one in pattern_rows(data)] == [None]
    (data / "agent_sessions" / "a.json").write_text(json.dumps({"requests": [call()] * 9}))
    match, error = pattern_rows(data)
    assert match["ours"] is not None and error["ours"] is None and "of 1 has as many" in error["note"]
    assert ["at least 8" in one["note"] for one in pattern_cohorts.rows(data)] == [True, True]


@pytest.mark.parametrize("text", ["[", "[]", '{"requests": [1]}', '{"requests": [{"in": -1, "out": 1}]}'])
def test_what_is_no_session_is_refused_in_a_line(data: Path, text: str) -> None:
    (data / "agent_sessions" / "a.json").write_text(text)
    with pytest.raises(BadTrace, match=r"a\.json: ") as caught:
        list(sessions(data))
    assert "\n" not in str(caught.value)
