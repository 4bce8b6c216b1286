"""`ramify serve` with the embedded engine, as a process of its own, for clients that know nothing of Ramify."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def served(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL."""
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / weights.name).symlink_to(weights)
    command = [sys.executable, "-m", "ramify", "serve", "--port", "0", "--slots", "2", "--no-analyzer", "--no-log"]
    process = subprocess.Popen(
        command, env={**os.environ, "RAMIFY_HOME": str(home)}, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = ""
    try:
        for line in process.stderr:
            said += line
            if found := re.search(r"at (http://\S+)", line):
                yield found[1]
                break
        else:
            raise AssertionError(f"ramify serve ended: {said}")
    finally:
        process.terminate()
        process.stderr.close()
        process.wait()
