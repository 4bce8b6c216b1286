from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest

from ramify.cli.commands.resume import _given
from ramify.cli.console import LocationOptions, answer_text, say_json
from ramify.cli.main import run_command_line

TOLD = "`ramify resume 3f2a` goes on, or `ramify ls`; see `ramify.compile`"


@pytest.mark.parametrize(
    ("typed", "options"),
    [
        (LocationOptions(Path("home")), "--home home"),
        (LocationOptions(Path("my home")), "--home 'my home'"),
        (LocationOptions(None, "runs.db"), "--database runs.db"),
        (LocationOptions(Path("h"), "sqlite:///x.db"), "--home h --database sqlite:///x.db"),
        (LocationOptions(None, "postgresql://me@host/db"), "--database postgresql+psycopg://me@host/db"),
    ],
)
def test_suggested_command_has_the_location_options(typed: LocationOptions, options: str) -> None:
    assert typed.complete(TOLD) == (
        f"`ramify {options} resume 3f2a` goes on, or `ramify {options} ls`; see `ramify.compile`"
    )


def test_suggested_command_has_no_password() -> None:
    assert "hush" not in LocationOptions(None, "postgresql://me:hush@host/db").complete(TOLD)
    assert "hush" not in LocationOptions(None, "postgresql://me:hush@[host/db").complete(TOLD)


def test_no_options_are_added_for_the_default_location() -> None:
    assert LocationOptions().complete(TOLD) == TOLD


def test_suggested_command_finds_the_run(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, ramify: Any, home: Any
) -> None:
    for command, status in (("show nope", 1), ("log", 1), ("ls", 0)):  # an error, and a command's own words
        assert run_command_line(["--home", str(tmp_path / "none"), *command.split()]) == status
        assert f"`ramify --home {tmp_path / 'none'} run FILE.py:NAME`" in capfd.readouterr().err
    assert f"`ramify --home {tmp_path / 'home'} ls -n 0` lists all" in ramify("ls", "-n", 1).err


def test_an_empty_home_is_not_the_current_folder(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["--home", "", "ls"]) == 2
    assert "'--home': the name is empty" in capfd.readouterr().err


def test_an_answer_is_read_from_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, text in ((b"yes\n", "yes"), (b'"a"', '"a"'), (b"", ""), ("one\n\nJosé\n".encode(), "one\n\nJosé")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))
        assert answer_text("-") == text
    assert answer_text("-1") == "-1"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8"))
    with pytest.raises(click.UsageError, match="is not text in utf-8"):
        answer_text("-")


def test_two_answers_cannot_be_read_from_the_standard_input() -> None:
    with pytest.raises(click.UsageError, match="holds one answer"):
        _given(["9c01d2e4=-", "77ab01cd=-"])


def test_nan_and_infinity_are_text_in_json(capfd: pytest.CaptureFixture[str]) -> None:
    say_json({"of": [float("nan"), -float("inf"), 1.5], "s": "\ud800"})
    said = json.loads(capfd.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    assert said == {"of": ["NaN", "-Infinity", 1.5], "s": "\ud800"}


def test_json_of_any_character_can_be_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(map(chr, [*range(0x300), 0x200B, 0x202E, 0x2028, 0xFEFF, 0xE0001]))
    say_json({text: text})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {text: text}
    assert [one for one in printed if one != "\n" and not " " <= one <= "~"] == []
