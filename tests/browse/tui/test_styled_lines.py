from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, overload

from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from ramify.browse.tui.activity_tabs import command_lines
from ramify.browse.tui.styled_lines import LineView, StyledLine, json_lines, line, matches, wrapped
from ramify.sandboxes.contract import RunResult

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet="ab é\\\"'$", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet="abé", max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def read_back(text: str, width: int) -> Any:
    return json.loads("".join(one.text[2:] for one in json_lines(text, width)))


def squeezed(text: str) -> str:
    return "".join(text.split())


@given(JSON)
def test_json_layout_preserves_values(value: object) -> None:
    text = json.dumps(value)
    assert read_back(text, 1000) == value
    narrow = "".join(one.text for one in json_lines(text, 60))  # cut anywhere: white space is not told from indents
    assert squeezed(narrow) == squeezed(json.dumps(value, ensure_ascii=False))
    if len(text) < 200:
        assert len([*json_lines(text, 1000)]) == 1


@given(st.text(alphabet="ab cd\n", max_size=300), st.integers(25, 60))
def test_wrapping_keeps_every_word_within_the_view(text: str, width: int) -> None:
    shown = [one.text for one in wrapped(text, width, indent="  ")]
    assert all(len(one) <= width for one in shown)
    assert "".join("".join(shown).split()) == "".join(text.split())


def test_lines_have_no_control_characters_and_a_bounded_length() -> None:
    assert line("a\x1b[2J\tb\u202e").text == "a\N{REPLACEMENT CHARACTER}[2J   b\N{REPLACEMENT CHARACTER}"
    assert len(line("x" * 100_000).text) < 4_100


def test_command_is_shown_with_output_and_status() -> None:
    result = RunResult("make\ntest", 124, b"one\ntwo\n", b"bad\n", 1.0, timed_out=True, truncated=True)
    shown = [one.text for one in command_lines(result)]
    assert shown == ["$ make", "  test", "one", "two", "bad", "exit 124, timed out, output cut"]


class Watched(Sequence[StyledLine]):
    """A million lines, and which of them were asked for one by one."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def __len__(self) -> int:
        return 1_000_000

    @overload
    def __getitem__(self, at: int) -> StyledLine: ...
    @overload
    def __getitem__(self, at: slice) -> list[StyledLine]: ...
    def __getitem__(self, at: int | slice) -> StyledLine | list[StyledLine]:
        if isinstance(at, slice):
            return [line(f"line {one}") for one in range(*at.indices(100))]
        self.asked.add(at)
        return line(f"line {at}")

    def __iter__(self) -> Iterator[StyledLine]:
        raise AssertionError("all of them")


class Bare(App[None]):
    def compose(self) -> ComposeResult:
        yield LineView(id="lines")


async def test_only_visible_lines_are_drawn() -> None:
    async with Bare().run_test(size=(40, 10)) as pilot:
        view = pilot.app.query_one(LineView)
        lines = Watched()
        view.show(lines)
        await pilot.press("G", "k", "pageup")
        await pilot.pause()
        assert view.cursor == 999_989
        assert len(lines.asked) < 60
        assert view.render_line(view.cursor - round(view.scroll_y)).text.startswith("line 999989")
        assert 0 <= view.cursor - round(view.scroll_y) < 10  # in sight


async def test_a_view_without_lines_takes_every_key() -> None:
    async with Bare().run_test(size=(40, 10)) as pilot:
        view = pilot.app.query_one(LineView)
        view.show(())
        await pilot.press("j", "k", "G", "g", "enter", "l", "h", "space")
        assert (view.cursor, view.current) == (0, None)
        view.show([StyledLine(passed=True)])
        await pilot.press("j", "k")
        assert view.cursor == 0


async def test_long_lines_scroll_sideways_and_matches_are_marked() -> None:
    async with Bare().run_test(size=(20, 4)) as pilot:
        view = pilot.app.query_one(LineView)
        view.show([line("0123456789" * 5), line("Über uns")])
        await pilot.press("l")
        await pilot.pause()
        assert view.render_line(0).text.startswith("89012")
        view.needle = "01"
        assert "01" in [segment.text for segment in view.render_line(0)]


def test_search_is_case_sensitive_if_the_needle_has_capitals() -> None:
    assert matches("Release", "release")
    assert matches("Release", "Rel")
    assert not matches("release", "Rel")
