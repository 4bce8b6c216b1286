"""No name and no content of an agent's file reaches the terminal as a command to it."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ramify.cli

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4K\x07"
HOSTILE = f"a{CLIPBOARD}\u202etxt\r\x9b2J"


@pytest.fixture
def more_files() -> dict[str, str]:
    return {HOSTILE: "x\n", "content": f"{HOSTILE}\n"}


def on_a_terminal(*arguments: str, pager: str = "cat") -> str:
    """What a command writes to a terminal."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "PAGER": pager, "TERM": "xterm"}
    command = [sys.executable, "-m", "ramify.cli.main", *arguments]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    said = b""
    while True:
        try:
            got = os.read(controller, 1 << 16)
        except OSError:  # EIO: the last process closed the terminal
            got = b""
        if not got:
            break
        said += got
    os.close(controller)
    process.wait()
    return said.decode().replace("\r\n", "\n")


def is_harmless(said: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", re.sub(r"\x1b\[[0-9;]*m", "", said))


@pytest.mark.parametrize("options", [[], ["--stat"], ["--name-only"]])
def test_diff(home: Any, options: list[str]) -> None:
    said = on_a_terminal("--home", str(home.path), "diff", "@:base", "@", *options)
    assert "52;c;cm0g" in said
    assert is_harmless(said), repr(said)


def test_diff_of_worlds(home: Any) -> None:
    states = (home.story.checkpoints[at].snapshot_id for at in (0, -1))
    said = on_a_terminal("--home", str(home.path), "world", "diff", *states)
    assert "52;c;cm0g" in said
    assert is_harmless(said), repr(said)


def test_traceback_of_a_hostile_file(tmp_path: Path) -> None:
    file = tmp_path / f"{CLIPBOARD.replace('/', '')}.py"
    file.write_text("def f():\n    raise ValueError('\\x1b]52;c;cm0gLXJmIH4K\\x07\\u202e')\nf()\n")
    said = on_a_terminal("--home", str(tmp_path / "home"), "run", f"{file}:nothing")
    assert "Traceback" in said
    assert is_harmless(said), repr(said)


def test_wrong_usage_with_a_hostile_name(tmp_path: Path) -> None:
    said = on_a_terminal("--home", str(tmp_path), "compile", HOSTILE)
    assert is_harmless(said), repr(said)


def in_a_pipe(*arguments: str) -> str:
    """What a command writes into a pipe, such as one to `head`, which writes on to the terminal."""
    command = [sys.executable, "-m", "ramify.cli.main", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode()


@pytest.mark.parametrize("command", [["ls"], ["show"], ["log"], ["tree"], ["diff", "base", "@", "--stat"]])
def test_commands_in_a_pipe(home: Any, command: list[str]) -> None:
    said = in_a_pipe("--home", str(home.path), *command)
    assert len(said) > 20 and is_harmless(said), repr(said)


def test_errors_in_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / f"{CLIPBOARD.replace('/', '')}.py"
    file.write_text("def f():\n    raise ValueError('\\x1b]52;c;cm0gLXJmIH4K\\x07\\u202e')\nf()\n")
    for arguments in (["run", f"{file}:nothing"], ["compile", HOSTILE]):
        said = in_a_pipe("--home", str(tmp_path / "home"), *arguments)
        assert "52;c;cm0g" in said and is_harmless(said), repr(said)


def test_a_traceback_of_a_bug() -> None:
    code = f"import ramify.cli.main as m\ndef fail(**_): raise LookupError({HOSTILE!r})\nm.cli.main = fail; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "LookupError" in done.stderr and done.returncode == 1
    assert is_harmless(done.stderr), repr(done.stderr)


def test_output_of_commands_goes_through_one_module() -> None:
    """Others print by `console`, which writes out what a terminal would obey."""
    allowed = {"console.py", "errors.py", "main.py", "completion.py", "attach.py"}
    found = []
    for file in Path(ramify.cli.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())) if file.name not in allowed else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print"):
                found.append(f"{file.name}:{node.lineno}")
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.stdout.buffer.write":
                found.append(f"{file.name}:{node.lineno}")
    assert [one for one in found if not one.startswith("world.py")] == []
