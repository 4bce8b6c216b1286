"""`python -m examples.repair --engine vllm --trace`: one printed trace, from the workflow's deadline to vLLM."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from ramify.paths import home as ramify_home
from ramify.serving.engine import models
from ramify.serving.engine.vllm import PYTHON_VARIABLE
from ramify.serving.errors import ModelMissing

PROGRAMS = Path(__file__).parents[3] / "examples" / "repair" / "programs"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_trace_ends_in_what_vllms_scheduler_was_given(tmp_path: Path, home: Path) -> None:
    """With one fork no program is repaired: the model's calls come before it, and they are what is looked at."""
    if os.environ.get(PYTHON_VARIABLE) is None and importlib.util.find_spec("vllm") is None:
        pytest.skip(f"vLLM is not installed here, and {PYTHON_VARIABLE} names no interpreter that has it")
    try:
        weights = models.locate(ramify_home(None))
    except ModelMissing as missing:
        pytest.skip(str(missing))
    home.mkdir()
    (home / "models").symlink_to(weights.parent)
    shutil.copytree(PROGRAMS / "binary_search", tmp_path / "programs" / "binary_search")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.repair", "--engine", "vllm", "--trace", "--sandbox", "copy"),
        *("--programs", str(tmp_path / "programs"), "--budget", "1", "--deadline", "500s", "--home", str(home)),
        cwd=Path(__file__).parents[3],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        said, complained = await asyncio.wait_for(process.communicate(), 500)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    shown = said.decode()
    run = re.search(r"^workflow (\S+): deadline 500 s, 3 calls of the model$", shown, re.MULTILINE)
    assert run, f"{shown}\n{complained.decode()[-3000:]}"
    trace = shown[run.end() :]
    stages = re.findall(
        r"^  stage (\d): 1 calls, sent with (.*)\n    gateway: .*\n    engine:  extra_args (.*)$", trace, re.M
    )
    assert [stage for stage, _, _ in stages] == ["0", "1", "2"], trace
    before = 500.0
    for stage, sent, arrived in stages:
        given = json.loads(arrived)
        assert (given["compound_id"], given["compound_stage"]) == (run[1], int(stage))
        promised = float(re.search(r"slo_deadline_s=([0-9.]+)", sent)[1])  # type: ignore[index]
        due = float(re.search(r"compound_due_s=([0-9.]+)", sent)[1])  # type: ignore[index]
        assert 0 < given["slo_deadline_s"] <= promised + 0.1 <= before + 0.2, (
            "the workflow's, with less left each time"
        )
        assert 0 < given["compound_due_s"] <= due + 0.1 < promised, "the stage's share of it"
        before = promised
