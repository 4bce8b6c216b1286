"""After `kill -9` at chosen points, `invoke(None)` gives the same files and state, and no finished node runs
again."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.samples import sample
from tests.warm_process import WarmInterpreter

APP = Path(__file__).with_name("kill_app.py")
EXPECTED = {
    "said": [f"about {name}{i}" for name in "ablrz" for i in (1, 2)],
    "files": {"a": "", "b": "a", "l": "a b", "r": "a b", "z": "a b l r"},
}
POINTS = ["in a", "RUN a", "after b, before its writes", "in l", "RUN l", "MERGE merged l", "in z", "RUN z"]


AS = {
    "graph": POINTS,
    "entrypoint": ["in a", "RUN a", "after b, before its writes", "in l", "RUN z", "in z"],
    "subgraph": ["in b", "RUN b", "MERGE back in b", "after b, before its writes"],
    "fork": ["in a", "RUN a", "SEAL a", "RUN b"],  # LangGraph runs the first node of a fork before it saves the fork
}


WAYS = [("sync", "graph"), ("async", "graph"), ("async", "entrypoint"), ("sync", "fork"), ("async", "subgraph")]
"""With `RAMIFY_DEEP=1`, each point both sync and async."""
if "RAMIFY_DEEP" in os.environ:
    WAYS = [(mode, what) for what in AS for mode in ("sync", "async")]


@pytest.mark.parametrize(("mode", "what"), WAYS)
def test_a_killed_thread_goes_on_where_it_was(
    mode: str, what: str, tmp_path: Path, warm_langgraph: WarmInterpreter
) -> None:
    points = AS[what][:: sample(3, 1)]
    ran = warm_langgraph.run_file(APP, tmp_path, mode, what, *points, timeout=150)
    assert ran.returncode == 0, ran.stderr
    trials = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [trial["point"] for trial in trials] == points
    for trial in trials:
        point = trial["point"]
        assert (trial["first"], trial["second"]) == (-signal.SIGKILL, 0), f"{point}: {ran.stderr}"
        assert trial["result"] == EXPECTED, point
        assert not trial["twice"], point
        lines = Counter(trial["log"])
        for name in "ablrz":
            # nodes that were running when killed: a sibling, and nodes that run while the row of the merge before
            # them is written
            beside = (name == "r" and point.endswith(" l")) or (name == "z" and point.startswith("MERGE"))
            once = (1, 2) if beside else (1,)
            assert lines[f"begin {name}"] == 2 if point == f"in {name}" else lines[f"begin {name}"] in once, point
            for line in (f"end {name}", f"model {name}1", f"model {name}2"):
                assert lines[line] in once, (point, line)
