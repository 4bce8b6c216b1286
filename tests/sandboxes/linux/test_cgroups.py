"""Control groups: where they may be made (on folders that look like the kernel's), and that they work and are
removed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import MIB, Limit, Limits, WorldSpec
from ramify.sandboxes.linux import cgroups, processes
from ramify.sandboxes.linux.cgroups import Group, Groups
from ramify.sandboxes.linux.resource_limits import Bounds

FOUND = cgroups.find()
needs_groups = pytest.mark.skipif(not isinstance(FOUND, Groups), reason=f"no control groups here: {FOUND}")


def folder(path: Path, granted: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.procs").touch()
    (path / "cgroup.subtree_control").write_text(granted)
    return path


def told(tmp_path: Path, text: str) -> Groups | str:
    (tmp_path / "own").write_text(text)
    return cgroups.find(tmp_path / "fs", tmp_path / "own")


def test_version_2_takes_the_nearest_group_that_grants_both(tmp_path: Path) -> None:
    fs = tmp_path / "fs"
    folder(fs, "cpu memory pids")
    slice_ = folder(fs / "user.slice" / "app.slice", "memory pids")
    folder(fs / "user.slice", "memory pids")
    folder(slice_ / "term.scope")
    found = told(tmp_path, "0::/user.slice/app.slice/term.scope\n")
    assert isinstance(found, Groups)
    assert dict(found.places) == {"memory": slice_, "pids": slice_}
    assert sorted(path.name for path in slice_.iterdir() if path.is_dir()) == ["term.scope"]  # no trial group is left


def test_version_2_without_a_controller_says_so(tmp_path: Path) -> None:
    folder(tmp_path / "fs", "cpu pids")
    folder(tmp_path / "fs" / "a")
    assert told(tmp_path, "0::/a\n") == "the control groups of this process provide no usable memory controller"
    assert isinstance(told(tmp_path, ""), str)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    memory, pids = folder(tmp_path / "fs" / "memory" / "job"), folder(tmp_path / "fs" / "pids")
    found = told(tmp_path, "8:pids:/\n4:memory:/job\n1:name=systemd:/\n0::/\n")
    assert isinstance(found, Groups)
    assert dict(found.places) == {"memory": memory, "pids": pids}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_group_is_not_used(tmp_path: Path) -> None:
    place = folder(tmp_path / "fs", "memory pids")
    place.chmod(0o555)
    assert "provide no usable memory controller" in str(told(tmp_path, "0::/\n"))


def test_groups_left_by_a_crash_are_removed_and_living_ones_are_kept(tmp_path: Path) -> None:
    place = folder(tmp_path / "fs", "memory pids")
    me = processes.all_processes()[os.getpid()]
    mine = f"ramify-{me.pid}-{me.started}-7"
    for name in (mine, f"ramify-{me.pid}-1-0", "ramify-4194305-1-0", "ramify-odd-1-0", "other"):
        (place / name).mkdir()
    assert isinstance(told(tmp_path, "0::/\n"), Groups)
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == ["other", mine]


@needs_groups
def test_a_group_includes_earlier_children_and_is_removed_after_the_last() -> None:
    assert isinstance(FOUND, Groups)
    script = "import subprocess as s; p = s.Popen(['sleep', '99']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        group = FOUND.hold(parent.pid)
        group.limit(Bounds(memory_bytes=50 * MIB, processes=5))
        for place in group.places.values():
            inside = {int(pid) for pid in (place / "cgroup.procs").read_text().split()}
            assert inside == {parent.pid, child}
        assert int((group.places["pids"] / "pids.max").read_text()) >= 5
        with pytest.raises(OSError, match="busy"):
            Group(group.places).remove(0.05)
        os.kill(child, 9)
    group.remove()
    assert not any(place.exists() for place in group.places.values())


@needs_groups
def test_backends_of_one_process_do_not_share_groups() -> None:
    first, second = cgroups.find(), cgroups.find()
    assert isinstance(first, Groups)
    assert isinstance(second, Groups)
    with subprocess.Popen(["sleep", "99"]) as one, subprocess.Popen(["sleep", "99"]) as other:
        held = [first.hold(one.pid), second.hold(other.pid)]
        for process, group in zip((one, other), held, strict=True):
            assert (group.places["pids"] / "cgroup.procs").read_text().split() == [str(process.pid)]
            process.kill()
    for group in held:
        group.remove()


@needs_groups
@pytest.mark.linux_ns
async def test_the_kernel_kills_a_hog_between_two_looks_and_the_result_names_it(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> None:
    """The watchdog cannot see a file that nobody maps: only the control group counts it."""
    assert isinstance(FOUND, Groups)
    async with NamespaceBackend(store, scratch) as backend:
        world = await backend.materialise(base, replace(spec, limits=Limits(memory_bytes=40 * MIB)))
        await world.run("sleep 0.2")  # its control group is made soon after it
        hog = "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))"
        result = await world.run([sys.executable, "-c", hog], timeout=30)
        assert (result.exit_code, result.limit) == (137, Limit.MEMORY)
        borne = await world.run(f"{sys.executable} -c {shlex.quote(hog)} || true", timeout=30)
        assert (borne.exit_code, borne.limit) == (0, Limit.NONE)
        await world.run(f"{sys.executable} -c {shlex.quote(hog)} & wait")  # no other command is named for it
        assert (await world.run("echo well")).limit is Limit.NONE
        assert (await world.run("false")).limit is Limit.NONE
    assert not [path for place in FOUND.places.values() for path in place.glob(f"{FOUND.owner}-*")]


@needs_groups
@pytest.mark.linux_ns
async def test_forks_end_at_the_control_group_too(
    store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> None:
    async with NamespaceBackend(store, scratch) as backend:
        world = await backend.materialise(base, replace(spec, limits=Limits(processes=40)))
        await world.run("sleep 0.2")
        burst = (
            "import os, sys, time\nforked = 0\ntry:\n for _ in range(500):\n"
            "  if os.fork() == 0: time.sleep(99)\n  forked += 1\n"
            "except BlockingIOError:\n pass\nsys.stdout.write(str(forked)); sys.stdout.flush(); time.sleep(99)"
        )
        result = await world.run([sys.executable, "-c", burst], timeout=30)
        assert result.limit is Limit.PROCESSES
        assert int(result.stdout or 0) <= 40 + 64
