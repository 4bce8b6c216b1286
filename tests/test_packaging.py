"""What is shipped is what is in the tree, and importing it costs nothing."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import ramify

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "vllm", "sklearn", "langgraph", "docker", "ray", "sqlalchemy", "httpx", "rich", "starlette")


def test_the_package_list_is_the_tree() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    roots = config["package-dir"]
    found = set()
    for package, folder in roots.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join([package, *init.parent.relative_to(ROOT / folder).parts]))
    assert config["packages"] == sorted(found)


def test_import_pulls_in_nothing_heavy() -> None:
    code = f"import ramify, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_every_exported_name_is_there_and_type_checkers_see_it() -> None:
    for name in ramify.__all__:
        assert getattr(ramify, name).__module__.startswith("ramify")
    (block,) = (node for node in ast.parse(inspect.getsource(ramify)).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imports for alias in node.names}
    assert seen == {(module, name) for module, names in ramify._EXPORTS.items() for name in names}


def test_modules_for_users_are_there_after_import_ramify() -> None:
    code = "import ramify; print(ramify.graph.saver.__module__, 'graph' in dir(ramify))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["ramify.graph", "True"]


def test_no_module_is_imported_by_its_folder() -> None:
    """`import compiler` from the repository root would make a second copy of ramify.compiler."""
    folders = ("compiler", "runtime", "api")
    code = f"import ramify.runtime.codec.codec, sys; print([m for m in {folders!r} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"


def test_processes_of_our_own_import_nothing_from_the_current_folder() -> None:
    """It may be a checkout, with a `json.py` that an agent wrote. `-P` keeps it from the path of imports."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"].values()
    own = re.compile(r'("-P",\s*)?"-m",\s*"(?:ramify\.|pip")')
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    found = [(file.name, one[1]) for file in files for one in own.finditer(file.read_text())]
    assert len(found) >= 5
    assert [name for name, closed in found if not closed] == []
