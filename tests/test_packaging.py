"""What is shipped is what is in the tree, and importing it costs nothing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import ramify

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "vllm", "sklearn", "langgraph", "docker", "ray", "sqlalchemy", "httpx", "rich", "starlette")


def test_the_package_list_is_the_tree() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {name: ROOT / folder for name, folder in config["package-dir"].items()}
    assert sorted(config["packages"]) == sorted(folders)
    found = {
        init.parent
        for top in ("api", "compiler", "fork_engine", "runtime", "sandboxes", "serving")
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert found == set(folders.values())


def test_import_pulls_in_nothing_heavy() -> None:
    code = f"import ramify, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_every_exported_name_is_there() -> None:
    for name in ramify.__all__:
        assert getattr(ramify, name).__module__.startswith("ramify")
    assert set(ramify.__all__) == set(ramify._HOME)


def test_modules_for_users_are_there_after_import_ramify() -> None:
    code = "import ramify; print(ramify.graph.saver.__module__, 'graph' in dir(ramify))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["ramify.graph", "True"]


def test_no_module_is_imported_by_its_folder() -> None:
    """`import compiler` from the repository root would make a second copy of ramify.compiler."""
    code = "import ramify.runtime.codec.codec, sys; print([m for m in ('compiler', 'runtime', 'api') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"
