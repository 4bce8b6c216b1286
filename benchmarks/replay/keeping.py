"""How results are kept: a file is whole or not there, and one that was spoilt is as good as none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.replay.inputs.traces import MISSHAPEN

T = TypeVar("T")


def kept(path: Path, read: Callable[[str], T]) -> T | None:
    """What was kept there; None where nothing is or `read` raises one of MISSHAPEN: then it is worked out anew."""
    try:
        return read(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, *MISSHAPEN):
        return None


def keep(path: Path, text: str) -> None:
    """Also while another process keeps the same."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
