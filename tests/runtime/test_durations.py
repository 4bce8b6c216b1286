from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ramify.runtime.durations import seconds


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(90, 90), (1.5, 1.5), ("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), (" 1.5 h ", 5400)],
)
def test_durations_are_parsed(text: Any, wanted: float) -> None:
    assert seconds(text) == wanted
    assert seconds(timedelta(seconds=wanted)) == wanted


@pytest.mark.parametrize("text", ["", "soon", "5 parsecs", "-5s", 0, -1, float("nan"), float("inf"), True, "1e3"])
def test_an_invalid_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        seconds(text)


@pytest.mark.parametrize("value", [0, 0.0, "0", "0s", timedelta(0)])
def test_no_time_at_all_is_a_duration_where_that_is_said(value: Any) -> None:
    assert seconds(value, zero=True) == 0
    with pytest.raises(ValueError, match="positive"):
        seconds(value)
