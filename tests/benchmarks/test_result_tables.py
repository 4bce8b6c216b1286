"""benchmarks/result_tables.py writes figures between their marks, and nothing from a log that was cut short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACHINE = {"cores": 2, "cpu": "CPU 9, avx2", "loop_ms": 12.5, "kernel": "6.1", "python": "3.11.7"}
ROW = {"name": "fork", "ours": 0.4724, "spread": [0.41, 2.0], "unit": "ms", "peer": "cp -a", "peer_value": 3309.5}
DOCUMENT = "# Words\n<!-- fork: begin -->\nold\n<!-- fork: end -->\nmore words\n"


def page(at: Path, said: str, name: str = "fork") -> subprocess.CompletedProcess[str]:
    document, log = at / "measured.md", at / "fork.log"
    document.write_text(DOCUMENT)
    log.write_text(f"progress\n{said}\n")
    command = [sys.executable, ROOT / "benchmarks/result_tables.py", document, f"{name}={log}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_rows_are_written_between_the_marks_and_the_rest_is_kept(tmp_path: Path) -> None:
    rows = [
        {**ROW, "ratio": 7005, "target": 1.0, "met": True},
        {**ROW, "name": "a|b", "ours": None, "spread": None, "target": "<= 1", "met": False, "floor": "0.3 ms"},
        {**ROW, "name": "c", "target": None, "met": None, "peer_value": 999.7},
    ]
    done = page(tmp_path, json.dumps({"rows": rows, "machine": MACHINE}))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "measured.md").read_text() == (
        "# Words\n<!-- fork: begin -->\n\n"
        "2 cores, CPU 9, avx2 (the loop of `benchmarks/machine.py`: 12.5 ms), Linux 6.1, Python 3.11.7:\n\n"
        "| row | measured | target | | beside it |\n|---|---|---|---|---|\n"
        "| fork | 0.4724 ms [0.41 to 2] | 1 | met | cp -a 3,310, ratio 7,005 |\n"
        "| a\\|b | – | <= 1 | **missed** | cp -a 3,310; floor 0.3 ms |\n"
        "| c | 0.4724 ms [0.41 to 2] | reported | – | cp -a 999.7 |\n"
        "\n<!-- fork: end -->\nmore words\n"
    )


def test_a_truncated_log_or_missing_marks_write_nothing(tmp_path: Path) -> None:
    whole = json.dumps({"rows": [], "machine": MACHINE})
    refused = [(whole[:-5], "fork", "cut short"), ("[1]", "fork", "cut short"), (whole, "x", "x: begin")]
    for said, name, words in refused:
        done = page(tmp_path, said, name)
        assert done.returncode == 1
        assert done.stderr.startswith("page: ")
        assert words in done.stderr
        assert (tmp_path / "measured.md").read_text() == DOCUMENT
