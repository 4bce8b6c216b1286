"""Reading a project of many modules takes time in proportion to its size."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.frontend.python.workflow_reader import read_workflow
from tests.compiler.frontend.python.projects import write_project


def calls_of(work: Callable[[], Any]) -> int:
    """Count the calls of Python functions, and the resumptions of generators."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_for_a_project_grows_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    calls = {}
    for modules in (10, 30):
        name = f"project_of_{modules}"
        write_project(tmp_path, name, modules)
        flow = importlib.import_module(f"{name}.flow").flow
        calls[modules] = calls_of(lambda flow=flow: read_workflow(flow, ref="flow"))
        for module in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[module]
    assert calls[30] < 4 * calls[10]
