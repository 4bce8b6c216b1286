"""The agent runs where nothing is installed: it imports only the stdlib, itself and `linux`, which imports less."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

SANDBOXES = Path(__file__).parents[3] / "sandboxes"
ALLOWED = {"agent": ("ramify.sandboxes.agent", "ramify.sandboxes.linux"), "linux": ("ramify.sandboxes.linux",)}


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            found |= {
                f"{node.module}.{name.name}" if node.module.startswith("ramify") else node.module
                for name in node.names
            }
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_only_the_stdlib_and_allowed_packages_are_imported(folder: str) -> None:
    files = list((SANDBOXES / folder).rglob("*.py"))
    assert len(files) > 8
    for file in files:
        for name in imported(file):
            if name.split(".")[0] not in sys.stdlib_module_names:
                assert name.startswith(tuple(f"{package}." for package in ALLOWED[folder])), (file, name)
