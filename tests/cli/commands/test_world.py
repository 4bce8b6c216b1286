"""`ramify world`, by running it: each command is a process of its own, and the worlds are kept between them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ramify.worlds.world import World
from tests.warm_process import WarmInterpreter

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(tmp_path: Path, warm: WarmInterpreter) -> Call:
    env = {**os.environ, "RAMIFY_HOME": str(tmp_path / "home"), "RAMIFY_SANDBOX": "copy"}

    def call(*words: str | Path, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = warm.run(words, cwd=tmp_path, env=env, stdin=stdin)
        assert not check or done.returncode == 0, done.stderr
        return done

    return call


def test_make_fork_merge_and_go_back(call: Call, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "file").write_text("one\n")
    assert call("world", "new", repo, "--name", "one").stdout == "one\n"
    call("world", "exec", "--shell", "one", "export KEPT=1; mkdir sub; cd sub")
    assert call("world", "exec", "--shell", "one", "echo $KEPT; basename $PWD").stdout == "1\nsub\n"
    assert call("world", "fork", "one", "--name", "two", "--name", "three").stdout == "two\nthree\n"
    call("world", "exec", "-i", "two", "--", "bash", "-c", "cat > new", stdin="from stdin")
    call("world", "exec", "three", "echo three >> file")
    assert call("world", "diff", "one", "two").stdout == "A new\n"
    call("world", "snapshot", "one", "before")
    call("world", "merge", "one", "two")
    call("world", "merge", "one", "three")
    assert call("world", "exec", "one", "--", "cat", "new", "file").stdout == "from stdinone\nthree\n"
    call("world", "checkout", "one", "out")
    assert (tmp_path / "out" / "new").read_text() == "from stdin"
    call("world", "restore", "one", "before")
    assert call("world", "exec", "one", "--", "ls").stdout.split() == ["file", "sub"]
    assert (repo / "file").read_text() == "one\n"
    listed = json.loads(call("world", "ls", "--json").stdout)
    assert {one["name"] for one in listed} == {"one", "two", "three"}
    assert "three" in call("world", "ls").stdout and "before" in call("world", "ls", "--tags").stdout


def test_a_world_is_made_with_variables(call: Call) -> None:
    there = ("--env", "A=1=2", "-e", "B=", "--env", "RAMIFY_SANDBOX", "--env", "NOT_SET_HERE")
    call("world", "new", "--name", "one", *there)
    asked = 'echo "$A,$B,${B-none},$RAMIFY_SANDBOX,${NOT_SET_HERE-none}"'
    assert call("world", "exec", "one", asked).stdout == "1=2,,,copy,none\n"
    assert call("world", "exec", "--env", "A=3", "--env", "NOT_SET_HERE", "one", asked).stdout == "3,,,copy,none\n"
    refused = call("world", "new", "--name", "two", "--env", "=x", check=False)
    assert refused.returncode == 2 and "'=x' is not NAME=VALUE or NAME" in refused.stderr


def test_a_dumpable_world_is_refused_where_processes_are_not_kept(call: Call) -> None:
    refused = call("world", "new", "--name", "one", "--dumpable", check=False)
    assert refused.returncode == 1 and "'dumps processes'" in refused.stderr
    assert json.loads(call("world", "ls", "--json").stdout) == []


def test_a_collection_keeps_worlds_and_tags_until_they_are_deleted(call: Call, tmp_path: Path) -> None:
    call("world", "new", "--name", "one")
    call("world", "exec", "one", "echo 1 > a")
    call("world", "snapshot", "one", "tag")
    call("world", "exec", "one", "echo 2 > b")
    for file in (tmp_path / "home" / "store" / "snapshots").iterdir():
        os.utime(file, (0, 0))  # older than the grace period of a collection
    kept = json.loads(call("gc", "--json").stdout)
    assert kept["snapshots"] == 1  # the empty start alone
    assert call("world", "exec", "one", "cat a b").stdout == "1\n2\n"
    assert call("world", "new", "--from", "tag", "--name", "again").stdout == "again\n"
    assert call("world", "exec", "again", "ls").stdout == "a\n"
    assert call("fsck").returncode == 0
    call("world", "rm", "one", "again")
    call("world", "rm", "--tag", "tag")
    for file in (tmp_path / "home" / "store" / "snapshots").iterdir():
        os.utime(file, (0, 0))
    call("gc")
    assert not list((tmp_path / "home" / "store" / "snapshots").iterdir())


async def test_worlds_without_a_name_merge_after_a_collection(call: Call, tmp_path: Path) -> None:
    """`diff` seals states that nobody was given. They lead to the base of the merge."""
    async with World.create(home=tmp_path / "home", sandbox="copy") as world:
        (fork,) = await world.fork()
        await fork.write("of-fork", "1")
        for text in ("1", "2"):
            await world.write("file", text)
            await world.diff()
        for file in (tmp_path / "home" / "store" / "snapshots").iterdir():
            os.utime(file, (0, 0))
        assert json.loads(call("gc", "--json").stdout)["snapshots"] > 0
        await world.merge(fork)
        assert await world.read("of-fork") == b"1"
        await fork.close()


def test_named_worlds_merge_after_a_collection(call: Call, tmp_path: Path) -> None:
    """Their base, and what leads to it, belongs to no name."""

    def collect() -> None:
        for file in (tmp_path / "home" / "store" / "snapshots").iterdir():
            os.utime(file, (0, 0))
        call("gc")

    call("world", "new", "--name", "one")
    call("world", "exec", "one", "echo base > kept")
    call("world", "fork", "one", "--name", "two")
    for text in ("1", "2"):
        call("world", "exec", "one", f"echo {text} > of-one")
        call("world", "exec", "two", f"echo {text} > of-two")
        collect()
        call("world", "merge", "one", "two")
    call("world", "exec", "one", "rm of-two")
    call("world", "exec", "two", "echo 3 > new")
    collect()
    call("world", "merge", "one", "two")  # what was merged already is not merged again
    assert call("world", "exec", "one", "cat *; ls").stdout == "base\n3\n2\nkept\nnew\nof-one\n"
    call("world", "rm", "two")
    collect()
    assert len(list((tmp_path / "home" / "store" / "snapshots").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("exec", "none", "true"), 1, "`ramify world ls` lists them"),
        (("exec", "one", "exit 7"), 7, ""),
        (("exec", "--env", "=x", "one", "true"), 2, "not NAME=VALUE"),
        (("exec", "--timeout", "0.2", "one", "sleep 9"), 124, "'timeout'"),
        (("new", "--name", "one"), 1, "already"),
        (("new", "--name", "../x"), 1, "cannot be a name"),
        (("new", "missing-folder"), 2, "does not exist"),
        (("merge", "one", "nothing"), 1, "names no state"),
        (("restore", "one", "abc"), 1, "names no state"),
        (("rm", "nothing"), 1, "no world"),
        (("rm", "one", "nothing"), 1, "no world"),  # and "one" is still there
        (("exec", "--timeout", "nan", "one", "true"), 2, "duration"),
        (("fork", "one", "--name", "two", "--name", "one"), 1, "already"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else None,
)
def test_what_goes_wrong_is_told_in_one_line(call: Call, words: tuple[str, ...], status: int, told: str) -> None:
    call("world", "new", "--name", "one")
    done = call("world", *words, check=False)
    assert done.returncode == status, done.stderr
    assert told in done.stderr and "Traceback" not in done.stderr
    assert [one["name"] for one in json.loads(call("world", "ls", "--json").stdout)] == ["one"]


def test_a_conflict_changes_nothing(call: Call) -> None:
    call("world", "new", "--name", "one")
    call("world", "fork", "one", "--name", "two")
    call("world", "exec", "one", "echo 1 > file")
    call("world", "exec", "two", "echo 2 > file")
    done = call("world", "merge", "one", "two", check=False)
    assert done.returncode == 1 and "file" in done.stderr and "Traceback" not in done.stderr
    assert call("world", "exec", "one", "cat file").stdout == "1\n"
    call("world", "merge", "one", "two", "--strategy", "theirs")
    assert call("world", "exec", "one", "cat file").stdout == "2\n"
