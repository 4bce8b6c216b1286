"""docs/sandboxes.md is correct."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from ramify.sandboxes.selection import NAMES

DOC = Path(__file__).resolve().parents[2] / "docs" / "sandboxes.md"


def test_the_page_has_every_backend() -> None:
    (head,) = (line for line in DOC.read_text().splitlines() if line.startswith("| |"))
    assert tuple(re.findall(r"`(\w+)`", head)) == NAMES


def test_the_pages_links_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", DOC.read_text())
    assert len(links) >= 4
    for link in links:
        assert (DOC.parent / link).is_file(), link


def test_the_pages_program_makes_a_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(from .*?)```", DOC.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(DOC), "exec"), {})
    with tarfile.open(tmp_path / "root.tar") as tar:
        names = set(tar.getnames())
    assert "etc/motd" in names
    assert any(name.endswith("bin/bash") for name in names)
