"""After `kill -9`, the nodes that run again with `Saver(…, linger_s=0)` are those that run again with SqliteSaver."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.warm_process import WarmInterpreter

SCRIPT = Path(__file__).with_name("kill_saver.py")
AGAIN = {
    "at put_writes": ["b"],
    "after put_writes": [],
    "at put": [],
    "after put": [],
    "while a sibling runs": ["r"],
}


def trials(whose: str, mode: str, folder: Path, warm: WarmInterpreter) -> Any:
    ran = warm.run_file(SCRIPT, folder, whose, mode, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_kill_repeats_what_it_repeats_with_sqlite_saver(
    mode: str, tmp_path: Path, warm_langgraph: WarmInterpreter
) -> None:
    theirs, ours = (trials(whose, mode, tmp_path, warm_langgraph) for whose in ("sqlite", "ours"))
    for point, trial in ours.items():
        assert trial["ends"] == [-signal.SIGKILL, 0], point
        assert trial["result"] == ["a", "b", "l", "r", "z"], point
    assert {point: trial["again"] for point, trial in ours.items()} == AGAIN
    assert ours == theirs
