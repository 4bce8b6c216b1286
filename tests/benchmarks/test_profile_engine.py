"""`benchmarks/profile_engine.py` writes a step-time model that a replay can read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import profile_engine
from benchmarks.replay.fidelity import step_probe
from benchmarks.replay.fidelity.step_probe import Stream
from benchmarks.replay.inputs.step_times import load


class Endpoint:
    """4 ms a step, 0.1 ms a prompt token."""

    model = "a-model"

    async def batch(self, prompts: Sequence[int], tokens: int) -> list[Stream]:
        first = 0.004 + sum(prompts) * 0.0001
        return [Stream(p, 0.0, tuple(first + 0.004 * i for i in range(tokens))) for p in prompts]


def test_it_writes_a_model_with_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def find(client: object, model: str | None = None) -> Endpoint:
        return Endpoint()

    monkeypatch.setattr(step_probe.HttpEndpoint, "find", find)
    out = tmp_path / "steps.json"
    arguments = ["--base-url", "http://engine/v1", "--device", "a GPU", "--out", str(out), "--json"]
    assert profile_engine.main(arguments) == 0
    found = load(out)
    assert (found.model, found.device) == ("a-model", "a GPU")
    assert "profile_engine.py" in found.source and "http://engine/v1" in found.source
    assert found.step.step_ms(16, 8000) == pytest.approx(4.0, rel=0.05)
    assert found.step.per_prefill_ms == pytest.approx(0.1, rel=0.05)
    assert json.loads(capsys.readouterr().out)["path"] == str(out)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--out", "/no/such/folder/steps.json"], "cannot be written"),
        (["--batches", "one,two"], "'one,two' is no list of whole numbers like 1,4,16"),
    ],
)
def test_wrong_usage_is_refused_before_anything_is_measured(
    wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        profile_engine.main(["--base-url", "http://127.0.0.1:9/v1", *wrong])
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_plan_or_an_engine_that_cannot_be_measured_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile_engine.main(["--base-url", "http://127.0.0.1:9/v1", "--tokens", "2"]) == 1
    assert "profile_engine: 2 tokens of answer are too few" in capsys.readouterr().err
