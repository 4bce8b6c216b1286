from __future__ import annotations

import sys

import pytest

from ramify.inspect.text import age, clipped, count, fitted, harmless, seconds, table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.000 s"),
        (0.0042, "0.004 s"),
        (0.0996, "0.10 s"),
        (1.534, "1.53 s"),
        (9.996, "10.0 s"),
        (99.96, "1m40s"),
        (200, "3m20s"),
        (3599.7, "1h00m"),
        (7500, "2h05m"),
        (-3.0, "-3.00 s"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(-5, "0 s ago"), (59, "59 s ago"), (60, "1 minute ago"), (7300, "2 hours ago"), (200_000, "2 days ago")],
)
def test_age(value: float, text: str) -> None:
    assert age(value) == text


def test_count() -> None:
    assert (count(1, "branch"), count(2, "branch"), count(0, "step")) == ("1 branch", "2 branches", "0 steps")


def test_table_aligns_numbers_to_the_right() -> None:
    assert table(("NAME", "N"), [("a", "1"), ("long", "100")], right={"N"}) == ["NAME    N", "a       1", "long  100"]
    assert table(("NAME", "WHY"), []) == ["NAME  WHY"]


def test_long_cell_does_not_widen_other_rows() -> None:
    long = "x" * 500
    assert table(("NAME", "WHY"), [("a", "b"), (long, "c")]) == ["NAME  WHY", "a     b", f"{long}  c"]


def test_text_is_not_clipped_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitted("x" * 500, 30) == "x" * 500
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert fitted("x" * 500, 30) == "x" * 29 + "…"


def test_clipped() -> None:
    assert (clipped("abc", 3), clipped("abcd", 3)) == ("abc", "ab…")


def test_control_characters_are_removed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "two\n\tlines,\r\n\N{FAMILY} é\x1b[2J\r\x07\x9b1m"
    assert harmless(text, sys.stdout) == text, "in a pipe as it is"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert harmless(text, sys.stdout) == "two\n\tlines,\r\n\N{FAMILY} é�[2J���1m"
