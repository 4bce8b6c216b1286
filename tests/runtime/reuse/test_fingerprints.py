"""Fingerprints cover the user's own modules by content, without importing one of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ramify.runtime.reuse.fingerprints import code_fingerprint

FIRST = "import printed_package.inner\nimport printed_installed\nimport no_such_module\n\ndef work() -> None: ...\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's package that must not be imported, an installed one, and a module that names both."""
    package, installed = tmp_path / "printed_package", tmp_path / "site-packages"
    package.mkdir()
    installed.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    (package / "inner.py").write_text("import printed_package.deeper\n")
    (package / "deeper.py").write_text("X = 1\n")
    (installed / "printed_installed.py").write_text("X = 1\n")
    (tmp_path / "printed_first.py").write_text("def work() -> None: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))
    yield tmp_path
    sys.modules.pop("printed_first", None)


@pytest.fixture
def work(modules: Path) -> Callable[..., Any]:
    function: Callable[..., Any] = importlib.import_module("printed_first").work
    (modules / "printed_first.py").write_text(FIRST)  # only now: importing it would import the others
    return function


@pytest.mark.parametrize(
    "changed", ["printed_package/__init__.py", "printed_package/inner.py", "printed_package/deeper.py"]
)
def test_a_changed_import_changes_the_fingerprint(modules: Path, work: Callable[..., Any], changed: str) -> None:
    before = code_fingerprint(work)
    assert before is not None and before == code_fingerprint(work)
    path = modules / changed
    path.write_text(path.read_text() + "# more\n")
    assert code_fingerprint(work) != before


def test_installed_packages_are_covered_by_the_machine_fingerprint(modules: Path, work: Callable[..., Any]) -> None:
    before = code_fingerprint(work)
    (modules / "site-packages" / "printed_installed.py").write_text("X = 2222\n")
    assert code_fingerprint(work) == before


def test_a_function_without_a_file_has_no_fingerprint() -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec("def work(): ...", namespace)
    assert code_fingerprint(namespace["work"]) is None
