"""Each supported version of vLLM has an adapter; a refusal keeps its reason on the way to the client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import UnsupportedVllm
from ramify.serving.protocol.wire import refusal_from_line, refusal_to_line
from ramify.serving.vllm_plugin.version_adapters import adapter_for


@given(st.text(max_size=60), st.none() | st.floats(0, 1e6).map(lambda x: round(x, 3)))
def test_a_refusal_survives_its_way_to_the_client(reason: str, least: float | None) -> None:
    told = refusal_from_line(refusal_to_line(reason, least))
    assert told is not None
    if "[earliest_feasible_s=" not in reason:
        assert told[0] == reason
        assert least is None or told[1] == pytest.approx(least)


@pytest.mark.parametrize("other", [None, 3, "", "stop", "the deadline_infeasible: word"])
def test_any_other_stop_reason_is_no_refusal(other: object) -> None:
    assert refusal_from_line(other) is None


def test_each_known_version_has_its_adapter_and_no_other() -> None:
    assert (adapter_for("0.32.0").version, adapter_for("0.33.1").version) == ("0.32", "0.33")
    with pytest.raises(UnsupportedVllm, match=r"vLLM 0\.31\.0.*0\.32 and 0\.33"):
        adapter_for("0.31.0")
