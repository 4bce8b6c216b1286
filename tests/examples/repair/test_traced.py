"""`--engine` with `--trace`: what the workflow's deadline has become where it reaches the engine."""

from __future__ import annotations

import shutil
from pathlib import Path

from examples.repair.traced import serving
from examples.repair.workflow import repair
from ramify import Runtime
from ramify.serving.testing import ScriptedModel, ScriptedServer
from ramify.serving.types import ChatRequest

PROGRAMS = Path(__file__).parents[3] / "examples" / "repair" / "programs"


def script(request: ChatRequest) -> dict[str, float]:
    return {"A": 3, "B": 1}


async def test_a_first_run_has_stage_deadlines_down_to_the_engine(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "programs"
    shutil.copytree(PROGRAMS / "binary_search", folder / "binary_search")
    model = ScriptedModel(script)
    async with (
        ScriptedServer(model) as engine,
        serving(engine.base_url, home=home, reads_tags=True) as served,
        Runtime(home=home, sandbox="copy", llm=served.client) as runtime,
    ):
        await runtime.run(repair, ["binary_search"], 1, workspace=folder, deadline="500s")
        told = [call.body["vllm_xargs"] for call in model.calls]
        shown = "\n".join(served.trace(await runtime.record(), await runtime.llm_calls()))
    stages: dict[int, dict[str, float]] = {}
    for tags in told:
        assert isinstance(tags, dict)
        assert tags["compound_id"] == runtime.last_run_id
        stages.setdefault(tags["compound_stage"], tags)
    assert sorted(stages) == [0, 1, 2], "the model's own line, then its votes in both orders"
    for stage, tags in stages.items():
        assert 0 < tags["slo_deadline_s"] <= 500
        part = tags["compound_due_s"] / tags["slo_deadline_s"]
        assert abs(part - 1 / (stage + 2)) < 0.05, "of a loop of unknown length"
        assert f"stage {stage}: " in shown
    assert "compound_due_s=" in shown
