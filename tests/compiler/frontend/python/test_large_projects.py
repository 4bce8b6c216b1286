"""Reading a project of many modules takes time in proportion to its size."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.frontend.python import workflow_reader
from ramify.compiler.frontend.python.workflow_reader import read_workflow
from tests.compiler.frontend.python.projects import write_project

FILE = workflow_reader.__file__


def lines_of(work: Callable[[], Any]) -> int:
    """Count the lines of `workflow_reader` that are executed."""
    count = 0

    def line(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: line if frame.f_code.co_filename == FILE else None)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_the_work_for_a_project_grows_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which steps a change of a part may affect was computed for each pair of parts."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    lines = {}
    for modules in (10, 40):
        name = f"project_of_{modules}"
        write_project(tmp_path, name, modules)
        flow = importlib.import_module(f"{name}.flow").flow
        lines[modules] = lines_of(lambda flow=flow: read_workflow(flow, ref="flow"))
        for module in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[module]
    assert lines[40] < 8 * lines[10]
