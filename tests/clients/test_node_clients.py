"""Node's clients. `RAMIFY_TEST_NODE_MODULES` names the folder in which npm has installed them (`.ci/run clients`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("node_clients.mjs")
PACKAGES = ("openai", "@anthropic-ai/sdk", "ai", "@ai-sdk/openai")


@pytest.fixture
def installed() -> Path:
    folder = os.environ.get("RAMIFY_TEST_NODE_MODULES")
    if folder is None or shutil.which("node") is None:
        pytest.skip("needs Node and RAMIFY_TEST_NODE_MODULES, as .ci/run clients sets it")
    missing = [name for name in PACKAGES if not (Path(folder) / "node_modules" / name).is_dir()]
    if missing:
        pytest.skip(f"not installed there: {', '.join(missing)}")
    return Path(folder)


@pytest.mark.model
def test_node_clients_work_unchanged(served: str, installed: Path) -> None:
    script = installed / SCRIPT.name  # Node looks for modules beside the script
    shutil.copyfile(SCRIPT, script)
    ran = subprocess.run(["node", script, served], capture_output=True, text=True, timeout=150, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "ok"), ran.stderr
