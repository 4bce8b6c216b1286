"""Options of the plug-in."""

from __future__ import annotations

from typing import Any

import pytest

from ramify.serving.errors import BadOptions
from ramify.serving.policy.types import StepModel
from ramify.serving.vllm_plugin.options import PluginOptions


def test_wrong_options_are_named() -> None:
    assert PluginOptions.of({}) == PluginOptions.of(None) == PluginOptions()
    read = PluginOptions.of({"ramify": {"policy": "edf", "step": {"base_ms": 2}}, "another": 1})
    assert (read.policy, read.step) == ("edf", StepModel(base_ms=2))
    wrong: dict[str, dict[str, Any]] = {
        "polcy": {"polcy": "edf"},
        "calibrate": {"calibrate": "yes"},
        "refresh_steps": {"refresh_steps": 0},
        "socket": {"socket": 3},
        "report": {"report": ""},
        "trace": {"trace": "a\0b"},
        "step": {"step": {"base_ms": -1}},
        "policy_options": {"policy_options": []},
    }
    for name, given_options in wrong.items():
        with pytest.raises(BadOptions, match=name):
            PluginOptions.of({"ramify": given_options})


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e300, True, "4", None])
def test_a_step_takes_a_finite_time(value: object) -> None:
    with pytest.raises(BadOptions, match="step"):
        PluginOptions.of({"ramify": {"step": {"base_ms": value}}})


def test_a_step_takes_time() -> None:
    with pytest.raises(BadOptions, match="a step takes time"):
        PluginOptions.of({"ramify": {"step": {"base_ms": 0, "per_seq_ms": 0}}})


def test_each_rank_has_files_of_its_own() -> None:
    options = PluginOptions(socket="s", report="r.json")
    assert options.of_rank(0) == options
    assert options.of_rank(2) == PluginOptions(socket="s.dp2", report="r.json.dp2")
