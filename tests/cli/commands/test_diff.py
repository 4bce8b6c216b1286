from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify import paths
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.store import RunStore


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_diff(home: Any, *arguments: str) -> bytes:
    command = [sys.executable, "-m", "ramify.cli.main", "--home", home.path, "diff", *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout


def test_git_applies_the_diff_of_two_states(home: Any, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(home.base, there)
    text = run_diff(home, "@:base", "@")
    subprocess.run(["git", "apply", "-"], cwd=there, input=text, check=True)
    assert files(there) == files(home.final)
    assert run_diff(home, "@") == text  # since the run's workspace
    assert run_diff(home, "@", "@:root") == b""


def test_names_are_quoted_as_by_git_or_bytes_as_they_are_on_disk(home: Any) -> None:
    assert run_diff(home, "@", "--name-only") == b'"caf\\351.txt"\ngone.txt\nlib/gcd.py\n'
    assert run_diff(home, "@", "--name-only", "-z") == b"caf\xe9.txt\0gone.txt\0lib/gcd.py\0"


async def add_state(home: Any, snapshot: SnapshotId) -> None:
    last = home.story.checkpoints[-1]
    async with RunStore(paths.database(home.path), clock=time.time) as store:
        more = replace(last, id="f00d00000001", seq=last.seq + 1, snapshot_id=snapshot, parents=(last.id,))
        await store.commit(home.story.run.id, checkpoints=[more])


def test_what_changed_outside_the_workspace_is_named(home: Any, ramify: Any, add_run: Any, tmp_path: Path) -> None:
    """Bounded above a diff that git still applies; in full with --name-only and --json."""
    store = SnapshotStore(paths.snapshots(home.path))
    before = store.get(home.story.checkpoints[0].snapshot_id)
    for number in range(30):
        (tmp_path / "outside" / "home").mkdir(parents=True, exist_ok=True)
        (tmp_path / "outside" / "home" / f"{number:02}").write_text("")
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "inside").write_text("new\n")
    beside = tmp_path / "outside"
    after = store.seal_upper(tmp_path / "upper", before, env={}, env_unset=(), cwd="", outside=beside, move=False)
    asyncio.run(add_state(home, after.id))
    states = ("@:base", "f00d00000001")
    told = ramify("diff", *states).out
    assert told.startswith("# outside: A /home/00\n") and "and 10 more paths" in told
    assert [line for line in told.splitlines() if line.startswith("diff ")] == ["diff --git a/inside b/inside"]
    assert len(ramify("diff", *states, "--name-only").out.splitlines()) == 1 + 30
    outside = ramify("diff", *states, "--json").json["outside"]
    assert (len(outside), outside[-1]["path"]) == (30, "/home/29")


def test_stat(home: Any) -> None:
    assert run_diff(home, "@", "--stat").splitlines()[-1] == b" 3 files changed, 2 added, 2 removed lines"


def test_as_json(home: Any, ramify: Any) -> None:
    changes = ramify("diff", "@:base", "@", "--json").json["files"]
    assert [(one["path"], one["kind"]) for one in changes] == [
        ("caf\udce9.txt", "added"),
        ("gone.txt", "removed"),
        ("lib/gcd.py", "modified"),
    ]
    assert changes[1]["after"] is None
    assert changes[1]["before"]["size"] == 5


def test_snapshot_without_a_run_needs_a_second_state(home: Any, ramify: Any) -> None:
    snapshot = home.story.checkpoints[0].snapshot_id
    said = ramify("diff", snapshot)
    assert said.status == 2
    assert "second state" in said.err


@pytest.mark.parametrize("text", ["nope", "@:nope"])
def test_unknown_name_is_refused(home: Any, ramify: Any, text: str) -> None:
    said = ramify("diff", "@", text)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith("ramify: ")
