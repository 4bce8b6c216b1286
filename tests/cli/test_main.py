"""The command as a process: how it starts, what it loads, how it ends."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ramify import __version__
from tests.cli.commands_of import every_command

RAMIFY = [sys.executable, "-m", "ramify.cli.main"]


def call(*arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [*RAMIFY, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **more)


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'rich', 'sqlalchemy', 'langgraph', 'httpx', 'starlette', 'xllamacpp', 'pydantic'}"
    code = f"import sys, ramify.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"


def test_help_documents_commands_and_exit_codes() -> None:
    done = call("--help")
    assert done.returncode == 0
    for word in ("run", "resume", "ls", "show", "tree", "diff", "checkout", "compile", "doctor", "models", "serve"):
        assert f"\n  {word} " in done.stdout
    assert "130 Ctrl-C" in done.stdout
    assert call("--version").stdout == f"ramify, version {__version__}\n"


@pytest.mark.parametrize("name", every_command())
def test_every_command_has_help_with_an_example(name: str, ramify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = ramify(*name.split(), "--help")
    assert said.status == 0
    assert said.out.startswith(f"Usage: ramify {name}")
    examples = re.findall(rf"Example: .*ramify {name}(?: |$)", " ".join(said.out.split()) + " ")
    assert examples, said.out
    assert "..." not in said.out.partition("\nCommands:")[2], "the first sentence of a command's help is too long"


@pytest.mark.parametrize(
    ("word", "told"),
    [("rum", "Did you mean `ramify run`"), ("exec", "`ramify world exec`"), ("inspect", "`ramify image inspect`")],
)
def test_a_command_that_is_not_there_is_answered_with_those_that_may_be_meant(
    word: str, told: str, ramify: Any
) -> None:
    said = ramify(word)
    assert (said.status, told in said.err) == (2, True), said.err


def test_a_word_like_no_command_gets_no_suggestion(ramify: Any) -> None:
    assert "Did you mean" not in ramify("zzzz").err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str, ramify: Any) -> None:
    said = ramify("completion", shell)
    assert said.status == 0
    assert "_RAMIFY_COMPLETE" in said.out
    words = {"COMP_WORDS": "ramify resume --a", "COMP_CWORD": "2"} | {"fish": {"COMP_CWORD": "--a"}}.get(shell, {})
    asked = call(env={**os.environ, "_RAMIFY_COMPLETE": f"{shell}_complete", **words})
    assert {"--answer", "--app", "--apply", "--api-key"} <= set(re.findall(r"--[a-z-]+", asked.stdout)), asked


def test_colours_only_on_terminals(home: Any, ramify: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("ls", "log", "show", "tree", "effects", "explain"):
        assert "\x1b" not in ramify(command).out


@pytest.mark.parametrize(
    ("more", "coloured"),
    [({}, True), ({"PAGER": "cat"}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_gets_colours_whatever_the_input_is(home: Any, more: dict[str, str], coloured: bool) -> None:
    master, slave = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"} | more
    command = [*RAMIFY, "--home", str(home.path), "log"]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=slave, env=environment, check=True, timeout=60)
    os.close(slave)
    said = os.read(master, 100_000)
    os.close(master)
    assert b"workspace" in said
    assert (b"\x1b[33m" in said) == coloured


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["run"],
        ["ls", "--nope"],
        ["ls", "-n", "x"],
        ["checkout", "@"],
        ["run", "x.py:y", "--deadline", "soon"],
        ["run", "x.py:y", "--arg", "1=2"],
        ["run", "x.py:y", "--sandbox", "magic"],
        ["run", "x.py:y", "--workspace", ""],
        ["run", "x.py:y", "--metrics", ""],
        ["compile", "x.py:y", "-o", ""],
        ["checkout", "@", ""],
        ["world", "checkout", "one", ""],
        ["compile", "x.py:y", "--emit", "plan,magic"],
    ],
)
def test_wrong_usage_is_2(ramify: Any, arguments: list[str]) -> None:
    said = ramify(*arguments)
    assert (said.status, said.out) == (2, "")
    assert "Error" in said.err


def test_closed_output_pipe_is_no_error(home: Any) -> None:
    pipe = subprocess.Popen(
        [*RAMIFY, "--home", home.path, "tree"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert pipe.stdout is not None
    pipe.stdout.close()
    assert pipe.stderr is not None
    assert pipe.stderr.read() == ""
    pipe.stderr.close()
    pipe.wait(60)


def test_a_damaged_home_is_named(tmp_path: Path) -> None:
    (tmp_path / "ramify.db").write_bytes(b"not a database at all" * 100)
    done = call("--home", tmp_path, "ls")
    assert done.returncode == 1
    assert done.stderr.startswith(f"ramify: the database {tmp_path}/ramify.db refused")
    assert "Traceback" not in done.stderr


def test_the_home_comes_from_the_environment_too(home: Any) -> None:
    done = call("ls", env={**os.environ, "RAMIFY_HOME": str(home.path)})
    assert "5eed00000001" in done.stdout


def test_name_that_is_not_utf8_can_be_printed(home: Any, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"out\xff")
    done = call("--home", home.path, "checkout", "@", folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "same.txt").exists()
    assert "out\\udcff" in done.stderr
