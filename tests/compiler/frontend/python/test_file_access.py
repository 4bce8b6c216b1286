"""Which files a step reads and writes, by its syntax. What the syntax does not show counts as any file."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.compiler.frontend.python.workflow_reader import read_workflow
from ramify.compiler.spec import FileAccess


@pytest.mark.parametrize(
    ("body", "reads", "writes"),
    [
        ("return (sandbox.path / 'a.txt').read_text()", ("a.txt",), ()),
        ("return (sandbox.path / 'd' / 'a.txt').exists()", ("d/a.txt",), ()),
        ("return sandbox.path.joinpath('d', 'a').read_bytes()", ("d/a",), ()),
        ("(sandbox.path / 'a.txt').write_text(x)", (), ("a.txt",)),
        ("(sandbox.path / 'a').unlink(missing_ok=True)", (), ("a",)),
        ("file = sandbox.path / 'a'\n    if file.exists():\n        file.write_text(x)", ("a",), ("a",)),
        ("with open(sandbox.path / 'a') as file: return file.read()", ("a",), ()),
        ("with (sandbox.path / 'a').open('rb') as file: return file.read()", ("a",), ()),
        ("with open(sandbox.path / 'a', 'a') as file: file.write(x)", ("a",), ("a",)),
        ("with open(sandbox.path / 'a', x) as file: file.write(x)", ("a",), ("a",)),
        ("(sandbox.path / './d//a').write_text(x)", (), ("d/a",)),
        ("return x", (), ()),
        ("with open(sandbox.path / 'a', **x) as file: file.write('1')", ("a",), ("a",)),
        # a computed part of a path makes it any path
        ("return (sandbox.path / x).read_text()", None, ()),
        ("return [p.read_text() for p in sorted(sandbox.path.glob('*.md'))]", None, ()),
        ("return [p.name for p in sandbox.path.iterdir()]", None, ()),
        ("for p in sandbox.path.iterdir():\n        p.unlink()", None, None),
        ("(sandbox.path / '/etc/passwd').write_text(x)", (), None),
        ("(sandbox.path / '../a').write_text(x)", (), None),
        ("p = sandbox.path / 'a'\n    q = p.parent\n    q.write_text(x)", (), None),
        # a command may do anything
        ("await sandbox.run('ls')", None, None),
    ],
)
def test_paths_that_are_literals_in_the_code(
    compile_source: Callable[..., Any], body: str, reads: Any, writes: Any
) -> None:
    files = found(compile_source, body)
    assert files is not None
    assert (files.reads, files.writes) == (reads, writes)


@pytest.mark.parametrize(
    "body",
    [
        "other(sandbox)",
        "other(sandbox.path)",
        "return str(sandbox.path / 'a')",
        "(sandbox.path / 'a').rename(x)",
        "file = sandbox.path / 'a'\n    other(file)",
        "world = sandbox\n    await world.run('ls')",
        "getattr(sandbox, 'run')('ls')",
        "sandbox = x\n    (sandbox.path / 'a').write_text('')",
        "reaches()",
        "asks_by_another_name()",
        "os.chdir(sandbox.path)\n    open('a', 'w').close()",
        "subprocess.run('echo > a', cwd=sandbox.path, shell=True)",
        "write = (sandbox.path / 'a').write_text\n    write('1')",
        "opens = open\n    opens(sandbox.path / 'a', 'w').close()",
        "open(Path(sandbox.path, 'a'), 'w').close()",
        "(sandbox.path / 'a').symlink_to('b')",
        "def inner(sandbox): (sandbox.path / 'a').write_text('1')\n    inner(x)",
    ],
)
def test_nothing_is_known_if_the_world_is_passed_to_other_code(compile_source: Callable[..., Any], body: str) -> None:
    assert found(compile_source, body) is None


def test_commands_and_their_environment_variables_are_listed(compile_source: Callable[..., Any]) -> None:
    files = found(compile_source, "await sandbox.run('make', env={'CI': '1'})\n    await sandbox.run(['ls', x])")
    assert files is not None
    assert (files.commands, files.env) == (("make", "['ls', x]"), ("CI",))
    said = (
        'step seen: takes a Sandbox; files: reads anything, writes anything, runs "make", runs "[\'ls\', x]", sets CI'
    )
    compilation = compile_source(SOURCE.format(body="await sandbox.run('make', env={'CI': '1'})"))
    assert said.replace(", runs \"['ls', x]\"", "") in compilation.spec_text()
    assert '"commands": ["make"]' in compilation.ir_text()


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ("(sandbox.path / 'a').write_text('1')", ["a"]),
        ("(sandbox.path / 'a').write_text('1')\n    return x", ["a"]),
        ("if x: return\n    (sandbox.path / 'a').write_text('1')", []),
        ("if x:\n        (sandbox.path / 'a').write_text('1')", []),
        ("(sandbox.path / 'a').write_text(x)", []),
        ("(sandbox.path / 'a').write_text('1')\n    (sandbox.path / 'a').unlink()", []),
        ("(sandbox.path / 'a').write_text('1')\n    await sandbox.run('rm a')", []),
        # other code may also write there
        ("(sandbox.path / 'a').write_text('1')\n    other(x)", []),
        ("(sandbox.path / 'a').write_text('1')\n    x.finish()", []),
        ("with x(): pass\n    (sandbox.path / 'a').write_text('1')", []),
    ],
)
def test_contents_that_are_certain_when_the_step_ends(
    compile_source: Callable[..., Any], body: str, paths: list[str]
) -> None:
    files = found(compile_source, body)
    assert files is not None
    assert [path for path, _ in files.always] == paths


HELPER = "import ramify\ndef writes(): (ramify.current_sandbox().path / 'a').write_text('2')\n"
USER = """
from ramify import Sandbox, step, workflow
import {name}_far, json
{imports}
@step
async def seen(sandbox: Sandbox):
    {inside}
    (sandbox.path / "a").write_text("1")
    {call}
@workflow
async def flow():
    await seen()
"""


@pytest.mark.parametrize(
    ("imports", "inside", "call", "known"),
    [
        ("", "", "json.dumps({})", True),
        ("", "", "{name}_far.near.writes()", False),
        ("from {name}_far import near", "", "near.writes()", False),
        ("from {name}_far import through", "", "through()", False),
        ("", "from {name}_near import writes", "writes()", False),
        ("from {name}_plain import plain", "", "plain()", True),
    ],
)
def test_a_module_that_is_used_may_call_current_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str, inside: str, call: str, known: bool
) -> None:
    name = f"m{abs(hash((imports, inside, call)))}"
    far = f"import {name}_near as near\ndef through(): near.writes()\n"
    made = {"near": HELPER, "far": far, "plain": "def plain(): ...\n"}
    given = {"imports": imports.format(name=name), "inside": inside.format(name=name), "call": call}
    if "{name}" in call:
        given["call"] = call.format(name=name)
    made["flow"] = USER.format(name=name, **given)
    for part, text in made.items():
        (tmp_path / f"{name}_{part}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    flow = importlib.import_module(f"{name}_flow").flow
    (step,) = read_workflow(flow, ref="flow").steps
    if known:
        assert step.files is not None
        assert (step.files.writes, step.files.always) == (("a",), ()), "what is called might write there"
    else:
        assert step.files is None


SOURCE = """
import os, subprocess
from pathlib import Path
def other(*x): ...
def reaches(): return current_sandbox()
from ramify import current_sandbox as cwd
def asks_by_another_name(): (cwd().path / "a").write_text("1")
@step
async def seen(sandbox: Sandbox, x=None):
    {body}
@workflow
async def flow():
    await seen()
"""


def found(compile_source: Callable[..., Any], body: str) -> FileAccess | None:
    (step,) = compile_source(SOURCE.format(body=body)).spec.steps
    files: FileAccess | None = step.files
    return files
