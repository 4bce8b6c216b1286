"""Results that may be awaited, and are there already.

LangGraph has each saver and store twice: with functions, and with coroutines of the same names. Ours are both.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Self


class Ready:
    """Awaiting it gives itself at once."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class ReadyCount(Ready, int):
    """A number."""
