from __future__ import annotations

import math
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from ramify.inspect.text import age, clipped, count, escaped, fitted, instant, quoted_path, seconds, size_of, table


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


def test_the_size_of_a_long_text_is_in_bytes() -> None:
    assert fitted("€" * (1 << 20), 60).endswith("€… (3.0 MB in all; --json prints it whole)")
    assert size_of("\ud800") == "3 B"


def test_clipped() -> None:
    assert (clipped("abc", 3), clipped("abcd", 3)) == ("abc", "ab…")


def test_control_and_format_characters_are_written_out() -> None:
    text = "two\n\tlines,\r\n\N{FAMILY} é\u200d\x1b[2J\r\x07\x9b1m\u202e\u2066\u2028\U000e0041"
    assert escaped(text) == (
        "two\n\tlines,\r\n\N{FAMILY} é\u200d\\x1b[2J\\x0d\\x07\\x9b1m\\u202e\\u2066\\u2028\\U000e0041"
    )


def test_every_character_that_a_terminal_may_obey_is_written_out() -> None:
    kept = "\t\n\u200c\u200d"
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") and char not in kept:
            assert char not in escaped(char), f"{code:x}"


def test_only_colours_are_kept() -> None:
    colour, title, clipboard = "\x1b[1;31m", "\x1b]0;title\x07", "\x1b]52;c;cm0gLXJm\x1b\\"
    assert escaped(colour, colours=True) == colour
    assert escaped(colour) == "\\x1b[1;31m"
    for sequence in (title, clipboard, "\x1b[2J", "\x1b[1;31", "\x1bc"):
        assert "\x1b" not in escaped(sequence, colours=True)


@pytest.mark.parametrize(
    "name", ["plain name", "é", "a\nb", "\x1b[2J", 'quo"te', "back\\slash", "\u202etxt.exe", "\udce9", "\x7f\a"]
)
def test_paths_are_quoted_as_by_git(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    listed = subprocess.run(
        ["git", "-c", "core.quotePath=true", "ls-files"], cwd=tmp_path, capture_output=True, check=True
    )
    assert quoted_path(name).encode() + b"\n" == listed.stdout


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300])
def test_times_of_a_damaged_row_are_shown(value: float) -> None:
    assert all((age(value), seconds(value), instant(value)))
