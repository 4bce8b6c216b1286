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


@pytest.mark.parametrize(
    "text",
    ["9" * 400, "9" * 5000 + "d", 10**400, -(10**400), 1e300, "36501d", "1s" + " 1s" * 60 + "!", None, "-1e999"],
)
def test_what_no_timer_takes_is_refused_in_a_line(text: Any) -> None:
    with pytest.raises(ValueError, match=r"duration") as raised:
        seconds(text)
    assert len(str(raised.value)) < 160


def test_the_longest_duration_is_a_hundred_years() -> None:
    assert seconds("36500d") == 36500 * 86400
    assert seconds("1d 2h  3m\t4s 5ms ") == 86400 + 7200 + 180 + 4.005
