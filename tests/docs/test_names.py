"""Pages name nothing that is not there: exported names, decisions, files; and each page can be found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import ramify
from tests.changed import PACKAGES

sys.path.insert(0, str(Path(__file__).parent))
from blocks import ALL_PAGES, ROOT, agrees, blocks, commands


def test_all_that_is_exported_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    documented = re.findall(r"^::: ramify\.(\w+)$", page, re.MULTILINE)
    assert sorted(name for name in documented if name != "graph") == sorted(ramify.__all__)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in ALL_PAGES[1:]}
    assert listed == {page for page in pages if not page.startswith("decisions/")}


@pytest.mark.parametrize("example", sorted(p.parent.name for p in (ROOT / "examples").glob("*/__main__.py")))
def test_every_example_has_its_page(example: str) -> None:
    assert f"python -m examples.{example}" in (ROOT / "docs" / "examples" / f"{example}.md").read_text()


def test_what_is_shown_is_compared() -> None:
    block = next(block for block in blocks(ROOT / "docs" / "tutorial.md") if block.language == "console")
    assert commands(block)
    assert agrees("run 0123456789ab took 1.2 s\n", "run ba9876543210   took 33 s")
    assert agrees("a\n…\nz\n", "a\nb\nc\nz\n")
    assert not agrees("a\n", "a\nb\n")
    assert not agrees("3 steps", "4 steps")


@pytest.mark.parametrize(("listing", "docs"), [("README.md", "docs/"), ("docs/index.md", "")])
def test_every_page_can_be_found(listing: str, docs: str) -> None:
    text = (ROOT / listing).read_text()
    pages = {str(page.relative_to(ROOT / "docs")) for page in ALL_PAGES[1:]} - {"index.md"}
    assert {name for name in pages if not name.startswith("decisions/") and f"({docs}{name}" not in text} == set()


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_a_decision_has_its_number(page: Path) -> None:
    for words, file in re.findall(r"\[([^\]]*)\]\([^)]*decisions/([^)]+\.md)\)", page.read_text()):
        assert [number for number in re.findall(r"\b\d{3}\b", words) if not file.startswith(number)] == [], (
            words,
            file,
        )


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/how-to/extend.md"])
def test_every_file_that_a_newcomer_is_sent_to_is_there(name: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / name).read_text(), flags=re.DOTALL)
    named = set(re.findall(r"`((?:\w[\w.-]*/)+[\w.-]*)`", text))
    assert len(named) > 10
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[(\d{3})\]\((\d{3}-[\w-]+\.md)\)", (folder / "index.md").read_text(), re.MULTILINE)
    assert {name for _, name in listed} == {page.name for page in folder.glob("[0-9]*.md")}
    assert [number for number, name in listed if not name.startswith(number)] == []


def test_every_variable_of_the_environment_is_listed() -> None:
    """But for those that Ramify's own processes give each other."""
    own = {"RAMIFY_OPTIONS", "RAMIFY_REPORT", "RAMIFY_ENGINE_KEY", "RAMIFY_COMPLETE"}
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    read = {name for file in files for name in re.findall(r"RAMIFY_[A-Z_]*[A-Z]", file.read_text())}
    listed = set(re.findall(r"`(RAMIFY_[A-Z_]+)`", (ROOT / "docs" / "reference" / "cli.md").read_text()))
    assert read - own == listed


def test_the_figures_of_the_readme_are_those_of_the_measurements() -> None:
    section = (ROOT / "README.md").read_text().partition("## Measurements")[2].partition("\n## ")[0]
    figure = r"(?<![\w.])\d[\d.,]*\d(?: (?:ms|s|kB|MB|GB)\b)?"
    measured = "".join((ROOT / "docs" / page).read_text() for page in ("measured.md", "evaluation.md"))
    rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("| ")]
    shown = {found for cells in rows for cell in cells for found in re.findall(figure, cell)}
    assert len(shown) > 15
    assert shown - set(re.findall(figure, measured)) == set()
