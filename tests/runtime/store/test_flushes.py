"""How often a superstep writes to disk, counted by strace: one fsync, and one syncfs only if files changed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("flushed.py")
CALLS = "trace=fsync,fdatasync,syncfs,sync,sync_file_range,access,faccessat,faccessat2"
TIMES = 6

DATABASE, FILES = "database", "files"
EXPECTED = {
    # of each superstep or step: flushes of the database, and of the file system that the layers lie on
    "step": (1, 0),
    "step-file": (1, 1),
    "step-answer": (2, 0),  # the model's answer outlives a kill of its step
    "step-tool": (2, 1),  # so does what a command gave; its files are flushed with the step's
    "nothing-sync": (1, 0),
    "nothing-async": (1, 0),
    "file-sync": (1, 1),
    "answer-sync": (2, 0),
    "fan-sync": (2, 2),  # four siblings that changed files, and the node that joins them
}


@pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls: needs strace")
def test_a_superstep_is_one_commit(tmp_path: Path) -> None:
    """LangGraph's checkpoint, the rows of the nodes and their snapshots share it; an answer inside a step is one
    more."""
    trace = tmp_path / "trace"
    command = ["strace", "-f", "--seccomp-bpf", "-e", CALLS, "-o", trace, sys.executable, SCRIPT, tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if ran.returncode and "PTRACE" in ran.stderr:
        pytest.skip(f"strace may not trace here: {ran.stderr.splitlines()[0]}")
    assert ran.returncode == 0, ran.stderr
    found = counted(trace.read_text())
    assert found.keys() == EXPECTED.keys()
    for part, (database, files) in EXPECTED.items():
        # two more: SQLite's log is moved into the file now and then; a slow machine splits a group now and then
        assert database * TIMES <= found[part][DATABASE] <= database * TIMES + 4, (part, found)
        assert files * TIMES <= found[part][FILES] <= (files * TIMES + 2 if files else 0), (part, found)


def counted(trace: str) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    part = None
    for line in trace.splitlines():
        if mark := re.search(r'"/(begin|end)-([\w-]+)"', line):
            part = mark[2] if mark[1] == "begin" else None
            found.setdefault(mark[2], Counter())
        elif part is not None and (call := re.search(r"\b(\w*sync\w*)\(", line)):
            found[part][FILES if call[1] in ("syncfs", "sync") else DATABASE] += 1
    return found
