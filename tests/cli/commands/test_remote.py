"""`ramify push`, `ramify pull`, `ramify gc --remote`, `ramify fsck --remote`: two homes over one bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="needs obstore (ramify[remote])")

FLOW = """
from pathlib import Path
from ramify import Sandbox, step, workflow

PLACE = Path(__file__).parent

@step
async def first(sandbox: Sandbox) -> str:
    (sandbox.path / "made").write_text("by the first step")
    with (PLACE / "calls").open("a") as file:
        file.write("first\\n")
    return "first"

@step
async def second(sandbox: Sandbox) -> str:
    if not (PLACE / "ready").exists():
        raise RuntimeError("not yet")
    return (sandbox.path / "made").read_text()

@workflow
async def flow() -> str:
    await first()
    return await second()
"""


@pytest.fixture
def there(ramify: Any, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command line on another machine's home."""
    return lambda *words: ramify("--home", tmp_path / "there", *words)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


def test_a_run_is_uploaded_while_it_goes_on(ramify: Any, there: Any, bucket: Path, tmp_path: Path) -> None:
    flow, database = tmp_path / "flow.py", tmp_path / "shared.db"
    flow.write_text(FLOW)
    shared = ("--database", database)
    assert ramify(*shared, "run", f"{flow}:flow", "--sandbox", "copy", "--remote", bucket).status == 1
    run = ramify(*shared, "ls", "--json").json[0]["id"]
    (tmp_path / "ready").touch()
    done = there(*shared, "resume", run, "--remote", bucket)
    assert done.out == "by the first step\n", done.err
    assert (tmp_path / "calls").read_text() == "first\n"


def test_a_result_is_printed_although_states_were_not_uploaded(ramify: Any, bucket: Path, tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    breaks = "    shutil.move(PLACE / 'bucket', PLACE / 'gone')\n    (PLACE / 'bucket').touch()\n    await first()"
    flow.write_text("import shutil\n" + FLOW.replace("    await first()", breaks))
    (tmp_path / "ready").touch()
    done = ramify("run", f"{flow}:flow", "--sandbox", "copy", "--remote", bucket)
    assert (done.status, done.out) == (1, "by the first step\n")
    assert "not all of its states were uploaded: `ramify" in done.err and "push" in done.err


def test_a_run_moves_to_another_home_and_goes_on(ramify: Any, there: Any, bucket: Path, tmp_path: Path) -> None:
    flow, workspace = tmp_path / "flow.py", tmp_path / "workspace"
    flow.write_text(FLOW)
    workspace.mkdir()
    assert ramify("run", f"{flow}:flow", "--workspace", workspace, "--sandbox", "copy").status == 1
    run = ramify("ls", "--json").json[0]["id"]
    assert ramify("push", "@", "--remote", bucket, "--json").json["runs"] == [run]
    (tmp_path / "ready").touch()
    refused = ramify("resume", run)
    assert refused.status == 1 and "was pushed to" in refused.err and f"pull {run}`" in refused.err
    pulled = there("pull", run[:6], "--remote", bucket, "--json").json
    assert pulled["run"] == run and pulled["members"] > 0
    done = there("resume", run)
    assert (done.status, done.out.strip()) == (0, "by the first step"), done.err
    assert (tmp_path / "calls").read_text() == "first\n"
    lost = ramify("pull", run)
    assert lost.status == 1 and "another machine" in lost.err
    assert there("push", run).status == 0 and ramify("pull", run).status == 0
    assert ramify("show", run, "--json").json["status"] == "done"
    assert ramify("fsck").status == 0 and ramify("fsck", "--remote").status == 0


def test_a_world_moves_as_a_state(ramify: Any, there: Any, bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_text("a")
    assert ramify("world", "new", tmp_path / "w", "--name", "one", "--sandbox", "copy").status == 0
    assert ramify("world", "exec", "one", "--", "sh", "-c", "echo b > b").status == 0
    said = ramify("push", "one", "--remote", bucket)
    assert "1 snapshot uploaded, 0 known" in said.out
    assert "0 snapshots uploaded, 1 known; 0 objects" in ramify("push", "one").out
    id = ramify("world", "ls", "--json").json[0]["snapshot"]
    pulled = there("pull", id[:10], "--remote", bucket, "--tag", "state")
    assert pulled.status == 0 and "tag state" in pulled.out
    assert there("world", "new", "--from", "state", "--name", "two", "--sandbox", "copy").status == 0
    assert there("world", "exec", "two", "--", "cat", "a", "b").out == "ab\n"
    assert there("gc", "--json").json["snapshots"] == 0
    assert there("fsck", "--remote", "--json").json == {"ok": True, "problems": [], "lost": []}
    assert there("gc", "--remote", "--json").json["deleted"] == 0
    (large,) = (bucket / "objects").iterdir()
    large.write_bytes(b"")
    damaged = there("fsck", "--remote", "--repair")
    assert damaged.status == 3 and "altered" in damaged.out and id in damaged.out
    assert "1 snapshot uploaded" in ramify("push", "one").out
    assert there("fsck", "--remote").status == 1  # the old object is condemned, and still there


def test_what_is_not_there(ramify: Any, bucket: Path) -> None:
    assert "names no run, state" in ramify("push", "nothing").err
    assert "--remote URL" in ramify("pull", "1234").err
    assert "is empty" in ramify("pull", "1234", "--remote", bucket).err
    assert "no remote store yet" in ramify("fsck", "--remote").err
    assert "leave out --remote" in ramify("gc", "--remote", "--budget", "1G").err
