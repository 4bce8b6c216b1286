from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ramify.cli.main import run_command_line
from ramify.inspect.facts import run_table
from ramify.runtime.records import RunStatus
from ramify.runtime.store import Tally
from ramify.runtime.store.address import parse
from ramify.runtime.store.engines import writer
from ramify.runtime.store.leases import FileLock, Owner, release, take
from ramify.runtime.store.run_locks import RunLock


def test_the_table(story: Any) -> None:
    run = story.run
    tallies = {run.id: Tally(steps=7, reused=1, failed=1, forks=4, merges=2, llm_calls=3)}
    assert run_table([run], tallies, {run.id: "done"}, run.created_at + 125) == [
        "RUN           NAME    STATUS            AGE  STEPS  FORKS  REUSED  MODEL CALLS",
        "5eed00000001  repair  done    2 minutes ago      7      4       1            3",
    ]


def test_ls(home: Any, ramify: Any) -> None:
    said = ramify("ls")
    assert said.status == 0
    head, line = said.out.splitlines()
    assert head.split() == ["RUN", "NAME", "STATUS", "AGE", "STEPS", "FORKS", "REUSED", "MODEL", "CALLS"]
    assert line.split()[:3] == ["5eed00000001", "repair", "done"]
    assert line.split()[-4:] == ["6", "4", "1", "3"]
    assert "\x1b" not in said.out


def test_ls_as_json(home: Any, ramify: Any) -> None:
    (run,) = ramify("ls", "--json").json
    assert (run["id"], run["status"], run["workspace"]) == ("5eed00000001", "done", "/src/programs")
    assert (run["steps"], run["failed"], run["forks"], run["merges"], run["llm_calls"]) == (6, 1, 4, 2, 3)


def test_running_run_without_a_process_is_interrupted(home: Any, ramify: Any, set_status: Any) -> None:
    set_status(RunStatus.RUNNING)
    assert ramify("ls", "--json").json[0]["status"] == "interrupted"
    with RunLock(home.path / "locks", home.story.run.id):
        assert ramify("ls", "--json").json[0]["status"] == "running"


def test_ls_names_the_owner_of_a_running_run(home: Any, ramify: Any, set_status: Any) -> None:
    """Also one that uses another home, or another machine, with the same database."""
    set_status(RunStatus.RUNNING)
    mine = Owner("some writer", "other-host", 4711, lasts_s=1e9)
    engine = writer(parse(home.path / "ramify.db"))
    with engine.begin() as connection:
        take(connection, home.story.run.id, mine, FileLock("another folder"), time.time() - 125)
    head, line = ramify("ls").out.splitlines()
    assert head.endswith("OWNER (LEASE)")
    assert line.endswith("other-host process 4711 (2 minutes ago)")
    (run,) = ramify("ls", "--json").json
    assert (run["status"], run["owner"]["host"], run["owner"]["pid"]) == ("running", "other-host", 4711)
    with engine.begin() as connection:
        release(connection, home.story.run.id, mine, 1)
    engine.dispose()
    (run,) = ramify("ls", "--json").json
    assert (run["status"], run["owner"]) == ("interrupted", None)


def test_ls_in_an_empty_home(ramify: Any, tmp_path: Any) -> None:
    said = ramify("ls")
    assert (said.status, said.out) == (0, "")
    assert f"ramify --home {tmp_path / 'home'} run" in said.err
    assert ramify("ls", "--json").json == []
    assert not (tmp_path / "home").exists()  # to look makes nothing
    said = ramify("show")
    assert said.status == 1
    assert "no runs yet" in said.err


@pytest.mark.parametrize("command", ["ls", "ls --json", "show", "gc", "fsck"])
def test_unusable_home_is_an_error(command: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """To say that there are no runs yet would send the user looking for them elsewhere."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for home in ("/proc/nope", tmp_path / "file" / "home", tmp_path / "dangling"):
        assert run_command_line(["--home", str(home), *command.split()]) == 1
        said = capfd.readouterr()
        assert said.out == "" and f"the home {home} cannot be used" in said.err and "--home DIR" in said.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["dangling", "file"]  # nothing stays of a look


def test_a_limit_says_that_there_may_be_more(home: Any, ramify: Any) -> None:
    assert "ls -n 0" in ramify("ls", "-n", 1).err
    assert ramify("ls", "-n", 0).err == ""
