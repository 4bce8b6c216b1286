"""Disks as users have them: one that takes no writes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody writes to the folder inside, root included. Skips where that cannot be had."""
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", folder, folder]).returncode:
        pytest.skip("cannot mount: not root")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
