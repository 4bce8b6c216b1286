"""A workflow is loaded under one name, however its file was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ramify.runtime.errors import TargetBroken, TargetNotFound
from ramify.runtime.user_code.workflow_loader import file_ref, load_target


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.startswith("ramify_loading_")]:
        del sys.modules[name]


def test_a_file_inside_a_package_keeps_its_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "ramify_loading_pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("value = 41\n")
    (package / "app.py").write_text("from .helper import value\ndef go(): return value + 1\n")
    go = load_target(f"{package / 'app.py'}:go")
    assert go() == 42
    assert go.__module__ == "ramify_loading_pkg.app"
    assert file_ref(go) == f"{package / 'app.py'}:go"
    assert load_target("ramify_loading_pkg.app:go") is go


def test_a_file_named_like_a_known_module_is_not_mistaken_for_it(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("here = 'mine'\n")
    assert load_target(f"{tmp_path / 'json.py'}:here") == "mine"
    assert load_target("json:dumps")([1]) == "[1]"


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("app.py", "FILE.py:NAME"),
        (".:x", "FILE.py:NAME"),
        ("nowhere.py:x", "no such file"),
        ("no_such_module:x", "no module"),
        ("json:nope", "nope"),
    ],
)
def test_a_missing_target_is_named(ref: str, said: str) -> None:
    with pytest.raises(TargetNotFound, match=said):
        load_target(ref)


ASYNCIO_RUN = """
import asyncio
one = asyncio.sleep(0)
try:
    asyncio.run(one)
finally:
    one.close()
"""


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("import no_such_dependency", ModuleNotFoundError, "No module named 'no_such_dependency'"),
        ("def f(:", SyntaxError, "invalid syntax"),
        ("raise ValueError", ValueError, "could not be loaded: ValueError"),
        ("import sys; sys.exit(3)", SystemExit, r"ended the program \(SystemExit\(3\)\): put what it runs under"),
        ("raise BaseException('odd')", BaseException, "could not be loaded: odd"),
        (ASYNCIO_RUN, RuntimeError, r"put `asyncio.run\(…\)` under"),
    ],
)
async def test_what_a_file_raises_is_named_with_the_file(
    tmp_path: Path, text: str, kind: type[BaseException], said: str
) -> None:
    (tmp_path / "ramify_loading_bad.py").write_text(f"{text}\n")
    with pytest.raises(TargetBroken, match=rf"ramify_loading_bad\.py could not be loaded: .*{said}|{said}") as raised:
        load_target(f"{tmp_path / 'ramify_loading_bad.py'}:x")
    assert isinstance(raised.value.__cause__, kind)


def test_a_link_that_leads_to_itself_is_no_file(tmp_path: Path) -> None:
    link = tmp_path / "ramify_loading_loop.py"
    link.symlink_to(link.name)
    with pytest.raises(TargetNotFound, match=r"ramify_loading_loop\.py"):
        load_target(f"{link}:x")


def test_a_class_has_one_name_in_a_script_and_outside_it(tmp_path: Path) -> None:
    script = tmp_path / "ramify_loading_script.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "from ramify.runtime.codec import codec\n"
        "@dataclass\n"
        "class Report:\n    n: int\n"
        "if __name__ == '__main__':\n"
        "    text = codec.encode(Report(3))\n"
        "    assert codec.decode(text) == Report(3)\n"
        "    print(text)\n"
    )
    shown = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    report = load_target(f"{script}:Report")
    from ramify.runtime.codec import codec

    assert codec.decode(shown.stdout) == report(3)
    assert codec.encode(report(3)) == shown.stdout.strip()
