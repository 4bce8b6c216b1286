"""A file of a workflow that can be edited."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramify import Runtime
from tests.runtime.execution.edited_code.files import App


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime) -> Iterator[App]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "edited"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield App(folder, runtime)
    for name in ("edited_code", "edited_code_helpers"):
        sys.modules.pop(name, None)
