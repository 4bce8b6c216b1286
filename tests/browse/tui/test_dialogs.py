"""Dialogs show what a home names as text."""

from __future__ import annotations

import pytest
from textual.app import App
from textual.containers import Vertical
from textual.content import Content

from ramify.browse.tui.dialogs import AnswerDialog, OutputDialog, ResumeProcess, Waiting

MARKUP = "[@click=app.quit]x[/]"


@pytest.mark.parametrize("kind", [AnswerDialog, OutputDialog])
async def test_names_are_no_markup(kind: type) -> None:
    """A question's or a run's id comes from the rows of the home."""
    app: App[None] = App()
    async with app.run_test():
        asked = Waiting(MARKUP, "which?") if kind is AnswerDialog else ResumeProcess(MARKUP, lambda: None)
        dialog = kind(asked)
        await app.push_screen(dialog)
        title = dialog.query_one(Vertical).border_title
        assert title is not None and MARKUP in Content.from_markup(title).plain
