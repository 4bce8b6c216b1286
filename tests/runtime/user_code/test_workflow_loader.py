"""A workflow is loaded under one name, however its file was started."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
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


ZIPPED = """
import sys
from ramify import step, workflow

@step
async def wait() -> int:
    if "ready" not in sys.argv:
        raise OSError("not ready")
    return 1

@workflow
async def flow() -> int:
    return await wait()

if __name__ == "__main__":
    flow.invoke()
"""


@pytest.mark.parametrize("kind", ["folder", "archive", "module"])
def test_a_program_in_a_folder_or_an_archive_is_resumed(kind: str, tmp_path: Path) -> None:
    """As `python FOLDER`, `python ARCHIVE.pyz`, and a module that is imported from an archive."""
    name = "zipped_flow.py" if kind == "module" else "__main__.py"
    place = tmp_path / "program"
    if kind == "folder":
        place.mkdir()
        (place / name).write_text(ZIPPED)
    else:
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr(name, ZIPPED)
    env = {**os.environ, "RAMIFY_HOME": str(tmp_path / "home"), "RAMIFY_SANDBOX": "copy"}
    start = [str(place)] if kind != "module" else ["-c", "import zipped_flow; zipped_flow.flow.invoke()"]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(place), env.get("PYTHONPATH"))))
    began = subprocess.run([sys.executable, *start], env=env, capture_output=True, text=True)
    assert "not ready" in began.stderr
    resume = "import sys; from ramify.cli.main import main; sys.argv.append('ready'); main(['resume', '-q'])"
    env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    ended = subprocess.run([sys.executable, "-c", resume], env=env, capture_output=True, text=True)
    assert (ended.stdout.strip(), ended.stderr) == ("1", "")


def test_a_file_that_an_archive_does_not_have_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("here.py", "x = 1")
    assert load_target(f"{tmp_path}/some.zip/here.py:x") == 1
    with pytest.raises(TargetNotFound, match=r"missing.py: no such file in the archive"):
        load_target(f"{tmp_path}/some.zip/missing.py:x")
