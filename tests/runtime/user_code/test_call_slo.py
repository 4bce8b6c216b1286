"""`ramify.slo`: what a block says of its model calls reaches their tags, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify import slo
from ramify.runtime.user_code.call_slo import NOTHING_SAID, call_slo
from ramify.serving.protocol.tags import SLOTags

RUN = SLOTags(slo_class="compound", compound_id="run", slo_deadline_s=60.0, compound_last=0)
TIMES = st.none() | st.floats(0.001, 1000)


def test_what_is_said_holds_in_its_block_and_the_inner_block_wins() -> None:
    with slo(weight=3, per_token="200ms"):
        with slo(stream=True, per_token=0.1, last=True):
            inner = call_slo().on(RUN)
        outer = call_slo().on(RUN)
    assert (inner.slo_class, inner.slo_tbt_s, inner.compound_last, inner.goodput_weight) == ("stream", 0.1, 1, 3)
    assert (outer.slo_class, outer.slo_tbt_s, outer.compound_last, outer.goodput_weight) == ("compound", 0.2, 0, 3)
    assert call_slo() is NOTHING_SAID
    assert NOTHING_SAID.on(RUN) == RUN


@given(TIMES, TIMES, TIMES, TIMES)
def test_what_is_not_said_stays_as_the_run_says_it(
    first: float | None, token: float | None, think: float | None, weight: float | None
) -> None:
    with slo(first_token=first, per_token=token, think=think, weight=weight):
        tags = call_slo().on(RUN)
    assert (tags.slo_ttft_s, tags.slo_tbt_s, tags.slo_think_s, tags.goodput_weight) == (first, token, think, weight)
    assert (tags.slo_class, tags.compound_id, tags.slo_deadline_s) == ("compound", "run", 60.0)


@pytest.mark.parametrize("said", [{"weight": 0}, {"weight": float("inf")}, {"think": -1}, {"first_token": "soon"}])
def test_a_time_or_weight_that_is_not_above_0_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"above 0|duration"), slo(**said):  # type: ignore[arg-type]
        pass
