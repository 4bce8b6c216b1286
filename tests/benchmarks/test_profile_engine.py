"""`ramify bench profile`: the file it writes is one that a replay reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.replay.fidelity import step_probe
from benchmarks.replay.fidelity.step_probe import Stream
from benchmarks.replay.inputs.step_times import load
from ramify.cli.main import cli


class Endpoint:
    """4 ms a step, 0.1 ms a prompt token."""

    model = "a-model"

    async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
        first = 0.004 + sum(prompts) * 0.0001
        return [Stream(p, 0.0, tuple(first + 0.004 * i for i in range(tokens))) for p in prompts]


def test_it_writes_a_model_with_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def find(client: object, model: str | None = None) -> Endpoint:
        return Endpoint()

    monkeypatch.setattr(step_probe.HttpEndpoint, "find", find)
    out = tmp_path / "steps.json"
    asked = ["bench", "profile", "--base-url", "http://engine/v1", "--device", "a GPU", "--out", str(out), "--json"]
    done = CliRunner().invoke(cli, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found = load(out)
    assert (found.model, found.device) == ("a-model", "a GPU")
    assert "ramify bench profile" in found.source and "http://engine/v1" in found.source
    assert found.step.step_ms(16, 8000) == pytest.approx(4.0, rel=0.05)
    assert found.step.per_prefill_ms == pytest.approx(0.1, rel=0.05)
    assert json.loads(done.output)["path"] == str(out)


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    asked = [
        "bench",
        "profile",
        "--base-url",
        "http://127.0.0.1:9/v1",
        "--out",
        str(tmp_path / "nowhere" / "steps.json"),
    ]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 2 and "is its folder there?" in done.output


def test_a_list_that_is_none_is_wrong_usage() -> None:
    done = CliRunner().invoke(cli, ["bench", "profile", "--base-url", "http://e/v1", "--batches", "one,two"])
    assert done.exit_code == 2 and "1,4,16" in done.output
