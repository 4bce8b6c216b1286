"""The code blocks of a page, and what a reader would do with each.

    ```python title="app.py"        is written to that file
    ```python                       is executed, one namespace a page
    ```console                      lines after "$ " are run, one shell a page; what follows is what they print
    ```console {data-needs="gpu"}   cannot be run everywhere
    ```sh                           is not run; its `ramify` commands and options have to exist

What a page needs and does not show stands in a comment, as Python: `<!-- before: ... -->`. In output, `…` stands for
anything; ids, durations, dates and the widths of columns are not compared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    ROOT / "docs" / "tutorial.md",
    ROOT / "docs" / "tutorial-forks.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "examples").glob("*.md")),
]
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^<!-- before:\n(?P<before>.*?)^-->$|^(?P<indent> *)```(?P<info>\S[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    title: str | None = None
    needs: str | None = None


@dataclass(frozen=True)
class Command:
    """A line after "$ ", with the lines it goes on in, and what the page says that it prints (empty: not said)."""

    text: str
    output: str


def blocks(page: Path) -> list[Block]:
    found = []
    text = page.read_text()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["before"] is not None:
            found.append(Block("python", match["before"], line))
            continue
        language, _, rest = match["info"].partition(" ")
        said = dict(re.findall(r'([\w-]+)="([^"]*)"', rest))
        body = "".join(one.removeprefix(match["indent"]) for one in match["text"].splitlines(keepends=True))
        found.append(Block(language, body, line, said.get("title"), said.get("data-needs")))
    return found


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        elif found and found[-1].text.endswith("\\"):
            found[-1] = Command(f"{found[-1].text}\n{line}", "")
        elif found:
            found[-1] = Command(found[-1].text, f"{found[-1].output}{line}\n")
    return found


ELIDED = (
    (re.compile(r"\b[0-9a-f]{10,64}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( UTC)?"), "DATE"),
    (re.compile(r"\b\d+(\.\d+)?m?(\d+(\.\d+)?)? ?(ms|s|seconds?|minutes?)\b"), "TIME"),
    (re.compile(r"[ \t─┬┴]+"), " "),
)


def plain(text: str) -> str:
    """Without what differs from run to run."""
    for pattern, word in ELIDED:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def agrees(shown: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in plain(shown).split("…"))
    return re.fullmatch(pattern, plain(printed), re.DOTALL) is not None
