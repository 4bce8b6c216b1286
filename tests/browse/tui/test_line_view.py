from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from textual.app import App, ComposeResult

from ramify.browse.tui.line_view import LineView, matches
from ramify.browse.tui.styled_lines import StyledLine, line


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
