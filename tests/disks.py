"""Disks as users have them: one that takes no writes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(folder: Path, at: Path | None = None) -> Iterator[None]:
    """Nobody writes to the folder inside, root included; or nobody who comes by way of `at`. Skips where that cannot
    be had."""
    place = at or folder
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", folder, place]).returncode:
        pytest.skip("cannot mount: not root")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
