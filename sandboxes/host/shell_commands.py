"""What a persistent shell can be asked to run: an agent that fails at it would take its world along."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ramify.sandboxes.agent.shell_report import NAME
from ramify.sandboxes.contract import check_seconds, is_variable, why_no_argument


def as_text(command: str | Sequence[str]) -> str:
    """The command as a line of bash. Raises `TypeError` for words that are no texts, and `ValueError` for none."""
    if isinstance(command, str):
        return command
    words = list(command)
    for word in words:
        if not isinstance(word, str):
            raise TypeError(f"a command consists of texts, and {word!r} is a {type(word).__name__}: use str()")
    if not words:
        raise ValueError("a command is a script, or a sequence of at least one word")
    return shlex.join(words)


def check_command(
    text: str, env: Mapping[str, str] | None = None, cwd: str | None = None, timeout: float | None = None
) -> None:
    """Raise `ValueError` for what no shell can execute."""
    if why := why_no_argument(text + (cwd or "")):
        raise ValueError(f"a command cannot contain {why}: pass such data by stdin")
    for name, value in (env or {}).items():
        if not is_variable(name, value) or not NAME.fullmatch(name):
            raise ValueError(f"not an environment variable that bash can set for one command: {name!r}")
    check_seconds(timeout)
