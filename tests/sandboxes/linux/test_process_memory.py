"""The memory that is left is the least of the machine's and of the control groups' above a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.sandboxes.linux.process_memory import (
    PAGE,
    areas,
    areas_with_flags,
    available_bytes,
    fullest_memory,
    memory_limits,
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    return tmp_path


def left(machine: Path) -> int:
    return available_bytes(machine / "proc", machine / "groups")


def test_the_least_counts(machine: Path) -> None:
    assert left(machine) == 4000 << 10
    for place, limit, used in (("a/b", "max", "5"), ("a", "900", "400")):
        folder = machine / "groups" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(limit)
        (folder / "memory.current").write_text(used)
    assert left(machine) == 500
    (machine / "groups/a/memory.current").write_text("1000")  # over its limit
    assert left(machine) == 0


def test_the_first_version_has_a_hierarchy_of_its_own(machine: Path) -> None:
    (machine / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/y\n0::/\n")
    folder = machine / "groups/memory/y"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("700")
    (folder / "memory.usage_in_bytes").write_text("100")
    assert left(machine) == 600
    (folder / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 40\n")  # cached files make room
    assert left(machine) == 640


def test_a_kernel_without_control_groups_limits_nothing(machine: Path) -> None:
    (machine / "proc/self/cgroup").unlink()
    assert left(machine) == 4000 << 10


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0


def test_the_fullest_limit_counts(machine: Path) -> None:
    def fullest() -> tuple[int, int]:
        return fullest_memory(machine / "proc", machine / "groups")

    assert fullest() == (5000 << 10, 9000 << 10)
    folder = machine / "groups/a"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("1000")
    (folder / "memory.current").write_text("700")
    assert fullest() == (700, 1000)
    (folder / "memory.stat").write_text("inactive_file 300\n")  # 40 %, and the machine 56 %
    assert fullest() == (5000 << 10, 9000 << 10)
    used, total = fullest_memory()
    assert 0 < used < total


def test_a_group_is_slowed_down_above_its_lower_limit(machine: Path) -> None:
    folder = machine / "groups/a"
    folder.mkdir(parents=True)
    (folder / "memory.current").write_text("700")
    for most, high, lowest in (("max", "800", 800), ("750", "max", 750), ("750", "900", 750), ("900", "750", 750)):
        (folder / "memory.max").write_text(most)
        (folder / "memory.high").write_text(high)
        assert memory_limits(machine / "proc", machine / "groups")[1:] == [(700, lowest)]
    (folder / "memory.high").write_text("max")
    (folder / "memory.max").write_text("max")
    assert len(memory_limits(machine / "proc", machine / "groups")) == 1


def test_every_group_around_the_process_counts(machine: Path) -> None:
    for place, most in (("a/b", "500"), ("a", "900"), (".", "1200")):
        folder = machine / "groups" / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(most)
        (folder / "memory.current").write_text("100")
    (machine / "groups/memory.stat").write_text("inactive_file 300\n")  # read after what is used
    found = memory_limits(machine / "proc", machine / "groups")
    assert found[1:] == [(100, 500), (100, 900), (0, 1200)]


@pytest.mark.parametrize("path", ["/", "/../outside", "/gone/since"])
def test_in_a_container_the_root_is_its_own_group(machine: Path, path: str) -> None:
    """The path that /proc tells may be that of the host, or lead out of the container."""
    (machine / "proc/self/cgroup").write_text(f"0::{path}\n")
    (machine / "groups").mkdir()
    (machine / "groups/memory.max").write_text("500")
    (machine / "groups/memory.current").write_text("100")
    assert memory_limits(machine / "proc", machine / "groups")[1:] == [(100, 500)]


FLAGGED = """
import mmap, os, signal
size = mmap.PAGESIZE
held = os.open("VmFlags: dc wf", os.O_RDWR | os.O_CREAT)
os.ftruncate(held, size)
kept = []
for advice in (mmap.MADV_DONTFORK, 18, None):  # 18: MADV_WIPEONFORK
    kept.append(mmap.mmap(-1, 3 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    kept[-1][size] = 1
    if advice is not None:
        kept[-1].madvise(advice, size, size)
kept.append(mmap.mmap(held, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))
kept.append(mmap.mmap(held, size, flags=mmap.MAP_PRIVATE))
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def flagged(tmp_path: Path) -> Iterator[int]:
    """A stopped process with areas of all flags that matter, and a file that is named like a line of flags."""
    with subprocess.Popen([sys.executable, "-c", FLAGGED], cwd=tmp_path) as program:
        os.waitpid(program.pid, os.WUNTRACED)
        yield program.pid
        program.kill()


def test_flags_are_told_with_the_areas(flagged: int) -> None:
    found = areas_with_flags(flagged)
    assert [replace(area, told="") for area in found] == areas(flagged)
    assert {area.told for area in found} == {"", "mw", "mw dc", "mw wf"}
    assert [area.size for area in found if area.told in ("mw dc", "mw wf")] == [PAGE, PAGE]
    named = [area for area in found if area.name.endswith("VmFlags: dc wf")]
    assert sorted((area.modes, area.told) for area in named) == [("r--s", "mw"), ("rw-p", "")]
