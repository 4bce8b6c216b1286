"""What commands print: lines, tables, pages and JSON, and the context object that every command gets."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramify.inspect.home import Home
from ramify.inspect.text import escaped, quoted_path

if TYPE_CHECKING:
    from ramify.fork_engine.types import Withheld

T = TypeVar("T")

_COMMAND = re.compile(r"`ramify (?=[a-z])")


@dataclass(slots=True)
class LocationOptions:
    """--home and --database as they were typed. Commands that a message suggests need them too."""

    home: Path | None = None
    database: str | None = None

    def complete(self, text: str) -> str:
        """The text with these options added to each `ramify` command in it, so that authors of messages omit them."""
        if "`ramify " not in text or (self.home is None and self.database is None):
            return text
        words = ["`ramify"]
        if self.home is not None:
            words += ["--home", shlex.quote(str(self.home))]
        if self.database is not None:
            words += ["--database", shlex.quote(_without_password(self.database))]
        return _COMMAND.sub(lambda _: f"{' '.join(words)} ", text)


def _without_password(address: str) -> str:
    from ramify.runtime.errors import StoreError
    from ramify.runtime.store.address import parse

    try:
        return str(parse(address)) if "://" in address and not address.startswith("sqlite") else address
    except StoreError:
        return "ADDRESS"


@dataclass(frozen=True)
class CommandHome(Home):
    """The home that a command works on, and the options that named it."""

    typed: LocationOptions = field(default_factory=LocationOptions)


pass_home = click.make_pass_decorator(CommandHome)


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, on a new event loop."""
    import asyncio  # slow to import, and commands that only read need no loop

    return asyncio.run(work)


def say(line: str = "", *, style: str = "", err: bool = False) -> None:
    """Print a line. The style is omitted if the output is not a terminal, or NO_COLOR is set."""
    context = click.get_current_context(silent=True)
    home = None if context is None else context.find_object(CommandHome)
    say_text(styled(line if home is None else home.typed.complete(line), style), err=err)


def say_text(text: str, *, err: bool = False) -> None:
    """Print lines, and nothing that a terminal would obey but colours.

    All output of commands goes through this module, so that no name or content of a file reaches a terminal as a
    command to it, also not through a pipe (`ramify show | head`). Only what a program of a world prints does, in
    `ramify world exec` and `shell`.
    """
    click.echo(escaped(text, colours=True), err=err)


def say_bytes(data: bytes) -> None:
    """Print bytes: in a pipe or a file as they are, on a terminal as `say_text` does."""
    if sys.stdout.isatty():
        say_text(data.decode(errors="replace").removesuffix("\n"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def say_value(text: str) -> None:
    """Print a value that programs read: in a pipe or a file as it is, on a terminal as `say_text` does."""
    say_bytes(f"{text}\n".encode(sys.stdout.encoding, "backslashreplace"))


def say_paths(paths: Iterable[str], *, nul: bool) -> None:
    """Print a path per line, quoted as by git; with `nul`, as it is, each followed by a NUL, as by `git diff -z`."""
    listed = list(paths)
    if nul:
        say_bytes(b"".join(os.fsencode(path) + b"\0" for path in listed))
    else:
        say_bytes(b"".join(quoted_path(path).encode() + b"\n" for path in listed))


ACTIVE_FILES = (
    "Also write files that programs run by themselves: hooks and configuration of git, .envrc, editors' tasks."
)


def say_withheld(withheld: Sequence[Withheld]) -> None:
    """Name what a checkout left out. All of it: who overlooks one would not ask for it."""
    from ramify.fork_engine.active_files import SET_ID

    for one in withheld:
        what = "set-uid and set-gid removed" if one.reason == SET_ID else "left out"
        say(f"{what}: {quoted_path(one.path)}: {one.reason}", style="yellow", err=True)
    if withheld:
        say("--active-files writes them as they are", err=True)


def redraw(line: str) -> None:
    """Replace the last line of the terminal on standard error; an empty line ends it."""
    click.echo(f"\r{escaped(line)}\x1b[K" if line else "", nl=not line, err=True)


def styled(text: str, style: str) -> str:
    """`style`: a colour, "dim", "bold" or "" for plain text."""
    if not style:
        return text
    return click.style(text, **({style: True} if style in ("dim", "bold") else {"fg": style}))


def say_json(value: object) -> None:
    say_text(json_text(value))


def json_text(value: object) -> str:
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except ValueError:  # NaN or infinity
        text = json.dumps(_finite(value), indent=2)
    return text.replace("\x7f", "\\u007f")  # the only control character that JSON leaves as it is


def _finite(value: object) -> object:
    """NaN and infinities as text: few readers of JSON accept them as numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(_finite(key)) if isinstance(key, float) else key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def say_all(lines: Sequence[str]) -> None:
    """Print a table: its header in bold."""
    for at, line in enumerate(lines):
        say(line, style="bold" if at == 0 else "")


def headed(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a table, its header in bold."""
    for at, line in enumerate(lines):
        yield click.style(line, bold=True) if at == 0 else line


def say_pages(lines: Iterable[str]) -> None:
    """Print lines that may be many: through the user's pager if the output is a terminal, as git does.

    Only the output decides on colours: neither the pager's name nor the input turns them off.
    """
    if not sys.stdout.isatty():
        for line in lines:
            say_text(line)
        return
    os.environ.setdefault("LESS", "FRX")  # git's settings: quit if all fits, keep colours, do not clear the screen
    # click adds the last newline
    parted = (f"\n{line}" if at else line for at, line in enumerate(escaped(one, colours=True) for one in lines))
    click.echo_via_pager(parted, color=click.get_current_context().color is not False)


def answer_text(typed: str) -> str:
    """Return an answer as it was typed; "-" stands for the standard input, without its last line break."""
    if typed != "-":
        return typed
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the answer on the standard input is not text in {error.encoding}") from error
