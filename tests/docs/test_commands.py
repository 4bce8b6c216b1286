"""What README.md and docs/ show of the command line is there: every command, every option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ramify.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENDS = {"--", "|", "||", "&&", ";", ">", ">>", "<", "&", "2>", "#"}


def fenced(text: str) -> Iterator[str]:
    """The lines of fenced blocks, those that a backslash joins as one."""
    for block in re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        yield from block.replace("\\\n", " ").splitlines()


def spoken(text: str) -> Iterator[str]:
    """What stands in single backquotes, in running text."""
    running = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (found.replace("\n", " ") for found in re.findall(r"`([^`]+)`", running))


def calls(line: str) -> Iterator[list[str]]:
    """The words of each `ramify …` of a line; an option in brackets, as in a synopsis, is an option too."""
    line = re.sub(r"\$\(|\)", " ; ", re.sub(r"[][]", " ", line.strip().removeprefix("$ ")))
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe
        return
    begun: list[str] | None = None
    for at, word in enumerate([*words, ";"]):
        if word in ENDS:
            if begun is not None:
                yield begun
            begun = None
        elif begun is not None:
            begun.append(word)
        elif word == "ramify" and (at == 0 or words[at - 1] in ENDS or "=" in words[at - 1]):
            begun = []


def shown(page: Path) -> list[list[str]]:
    text = page.read_text()
    return [words for line in (*fenced(text), *spoken(text)) for words in calls(line) if words]


def unknown(words: list[str]) -> str | None:
    """What of these no command has."""
    command: click.Command = cli
    options = {"--help", "-h", *_options(cli)}
    names = iter(words)
    for word in names:
        if word.startswith("-") and word != "-":
            option = word.partition("=")[0]
            if missing := [one for one in option.split("|") if one not in options]:
                return missing[0]
            if command is cli and option in ("--home", "--database") and "=" not in word:
                next(names, None)
        elif isinstance(command, click.Group):
            found = command.get_command(click.Context(command), word)
            if found is None:
                return None if re.fullmatch(r"[A-Z…]+|…|\.\.\.", word) else word
            command = found
            options |= _options(command)
        elif word == "--":
            return None
    return None


def _options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_pages_show_commands() -> None:
    assert sum(len(shown(page)) for page in PAGES) > 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_exists(page: Path) -> None:
    missing = [(f"ramify {' '.join(words)}", name) for words in shown(page) if (name := unknown(words)) is not None]
    assert missing == [], "each command with what it does not have"
