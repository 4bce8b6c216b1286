"""Makes docs/images/terminal.svg, terminal.cast and browse-files.svg: `python docs/images/terminal.py`.

A real session: the project and the workflow of the tutorial's section 6, run, looked at, forked with another file,
and resumed, each command in a shell with a terminal. The cast is asciicast version 2, for `asciinema play`; the
picture shows its screens one after the other, by CSS alone, and needs nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import html
import json
import os
import pty
import re
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.text import Text

from ramify.browse.tui.app import Browser
from ramify.inspect.home import Home
from ramify.runtime.records import RunId

HERE = Path(__file__).parent
COLUMNS, ROWS = 92, 21
CELLS = (118, 20)  # of the browser, which stands branches and details side by side
HOLD_S, TYPED_S = 5.0, 0.04  # how long a screen stands, and a key
PROMPT = "\x1b[32m$\x1b[0m "
COMMANDS = (
    "ramify run flow.py:mend",
    "ramify tree",
    "ramify log",
    "ramify diff @",
    "ramify checkout @~1 what-if; echo 'Slugs of titles.' > what-if/README",
    "ramify fork @~1 --files what-if",
    "ramify resume --quiet",
    "ramify ls",
    "ramify log",
)
INKS = {1: "#e06c75", 2: "#98c379", 3: "#e5c07b", 6: "#56b6c2", 8: "#7f848e"}  # by ANSI's numbers
PAPER, INK, FAINT = "#1e2127", "#d7dae0", "#7f848e"
LINE, WIDTH = 19, 8.43  # pixels of a line and of a column


def tell(folder: Path) -> list[tuple[str, str]]:
    """Each command and what came of it, as its terminal saw it."""
    page = (HERE.parent / "tutorial.md").read_text()
    for name, text in re.findall(r'```python title="([^"]+)"\n(.*?)```', page, re.DOTALL):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    environment = {**os.environ, "RAMIFY_HOME": str(folder / "home"), "PAGER": "less -FRX", "TERM": "xterm-256color"}
    environment |= {"COLUMNS": str(COLUMNS), "LINES": "999"}  # nothing is long enough to be paged
    return [(command, run(command, folder, environment)) for command in COMMANDS]


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Its output is a terminal; what it says beside that is no live display, whose cursor would go up and down."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        said = b""
        while chunk := _read(ours):
            said += chunk
        assert process.stderr is not None
        aside = process.stderr.read()
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command}: {aside.decode()}")
    return aside.decode() + said.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # how Linux says that the other end was closed
        return b""


def cast(told: list[tuple[str, str]]) -> str:
    """Typed at a steady pace; each answer comes at once and stands for a while."""
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "timestamp": int(time.time()), "title": "Ramify"}
    lines, now = [json.dumps(header)], 0.5
    for command, said in told:
        for key in (PROMPT, *command, "\r\n"):
            lines.append(json.dumps([round(now, 2), "o", key]))
            now += TYPED_S
        lines.append(json.dumps([round(now, 2), "o", said.replace("\n", "\r\n")]))
        now += HOLD_S / 2
    return "\n".join(lines) + "\n"


def picture(told: list[tuple[str, str]]) -> str:
    """The session's last lines after each command, each screen shown in its turn."""
    screens, lines = [], [Text()]
    for command, said in told:
        lines[-1] = Text.from_ansi(PROMPT + command)
        lines += [Text.from_ansi(line) for line in said.rstrip("\n").split("\n")] if said.strip() else []
        lines.append(Text.from_ansi(PROMPT))
        screens.append(lines[-ROWS:])
    whole, share = HOLD_S * len(screens), 100 / len(screens)
    width, height = round(COLUMNS * WIDTH) + 32, ROWS * LINE + 30
    drawn = "\n".join(
        f'<g class="s" style="animation-delay:{at * HOLD_S:g}s">{"".join(map(_line, screen, range(ROWS)))}</g>'
        for at, screen in enumerate(screens)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        "<title>A session in the terminal: run, tree, log, diff, checkout, fork, resume</title>\n"
        f"<style>text{{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,monospace;fill:{INK};white-space:pre}}"
        f".s{{opacity:0;animation:s {whole:g}s steps(1) infinite}}"
        f"@keyframes s{{0%{{opacity:1}}{share:.3f}%{{opacity:0}}}}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>\n{drawn}\n</svg>\n'
    )


def _line(text: Text, row: int) -> str:
    text.truncate(COLUMNS, overflow="ellipsis")
    parts, column = [], 0
    for segment in text.render(Console(color_system="truecolor"), end=""):
        style, looks = segment.style, ""
        if style and style.color and style.color.number is not None:
            looks += f' fill="{INKS.get(style.color.number, INK)}"'
        if style and style.dim:
            looks += f' fill="{FAINT}"'
        if style and style.bold:
            looks += ' font-weight="bold"'
        place = f'x="{16 + column * WIDTH:.1f}" textLength="{len(segment.text) * WIDTH:.1f}"'
        parts.append(f"<tspan {place}{looks}>{html.escape(segment.text)}</tspan>" if segment.text.strip() else "")
        column += len(segment.text)
    return f'<text y="{26 + row * LINE}">{"".join(parts)}</text>' if any(parts) else ""


async def draw(home: Path, run: str, name: str, keys: str) -> None:
    """The terminal browser's screen after those keys, in fonts that machines have: nothing is fetched for it."""
    terminal = Home(home)
    async with terminal.store() as store:
        browser = Browser(terminal, await store.run(RunId(run)))
    async with browser.run_test(size=CELLS) as pilot:
        for key in ("F", *keys):  # F: it stays where the keys lead
            await pilot.press(key)
            while not browser.is_settled:
                await pilot.pause(0.05)
        drawn = browser.export_screenshot(title="ramify browse")
    (HERE / f"{name}.svg").write_text(re.sub(r"@font-face {.*?}\n?", "", drawn, flags=re.DOTALL))


def main() -> None:
    with TemporaryDirectory() as folder:
        told = tell(Path(folder))
        first = re.search(r"^mend (\w+) starts", told[0][1], re.MULTILINE)
        assert first is not None
        asyncio.run(draw(Path(folder, "home"), first[1], "browse-files", "jj2"))
    (HERE / "terminal.cast").write_text(cast(told))
    (HERE / "terminal.svg").write_text(picture(told))


if __name__ == "__main__":
    main()
