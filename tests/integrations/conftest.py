"""A backend that this machine has, and a folder to make worlds of."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.sandboxes import doctor


@pytest.fixture
def sandbox(tmp_path: Path) -> str:
    return "namespaces" if doctor.namespaces(tmp_path).available else "copy"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "main.py").write_text("print('hello')\n")
    return folder
