"""The files-only rows of benchmarks/fork.py: one fork, a hundred at once, and how both grow with the tree.

A fork counts when the child's tree is mounted; the time to the child's first `run("true")` after that stands in
`first_run`. Peers do theirs to the same files in the same run, one after the other.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import Backend, WorldSpec
from ramify.sandboxes.select import open_backend

Row = dict[str, object]

FORKS = 50
HUNDREDS = 20
COPIES = 20
QUICK_FORKS, QUICK_HUNDREDS, QUICK_COPIES = 20, 5, 10
TARGET_MS = {True: 1.0, False: 4.0}  # as root, as a user
HUNDRED_MS = {True: 150.0, False: None}
FLAT = 1.5  # a fork of the largest tree over one of the smallest: noise, no growth


def rows(quick: bool, scratch: Path | None = None) -> list[Row]:
    """10,000 files of 1 GB in all, beside 1,000 and 100,000 small ones; with `quick` a tenth of everything."""
    sizes = {100: 1_000, 1_000: 10_000, 10_000: 1_000} if quick else {1_000: 10_000, 10_000: 100_000, 100_000: 1_000}
    _, middle, _ = sizes
    forks, hundreds, copies = (QUICK_FORKS, QUICK_HUNDREDS, QUICK_COPIES) if quick else (FORKS, HUNDREDS, COPIES)
    single: dict[int, tuple[list[float], list[float]]] = {}
    made: list[Row] = []
    for count, size in sizes.items():
        with tempfile.TemporaryDirectory(prefix="ramify-fork-", dir=scratch, ignore_cleanup_errors=True) as folder:
            root = Path(folder)
            _fill(root / "workspace", count, size)
            single[count], hundred = asyncio.run(_ours(root, forks, hundreds if count == middle else 0))
            if count == middle:
                floor = _floor(root / "workspace")
                made += _against_peers(single[count], root, count, copies)
                made.append(_hundred(hundred))
    made = [{**row, "floor": floor} for row in made]
    small, large = min(sizes), max(sizes)
    growth = statistics.median(single[large][0]) / statistics.median(single[small][0])
    flat = _row(f"a fork of {large} files over one of {small}", [growth], FLAT, unit="times")
    return [*made, flat, *(_row(f"files-only fork, {n} files", single[n][0], None) for n in (small, large))]


MOUNTS = """
import os, statistics, sys, tempfile, time
from ramify.sandboxes.namespaces import kernel
took = []
with tempfile.TemporaryDirectory() as folder:
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", folder, "tmpfs")
    for number in range(50):
        top = f"{folder}/{number}"
        begun = time.perf_counter()
        for name in ("", "/upper", "/work", "/at"):
            os.mkdir(top + name)
        options = f"lowerdir={sys.argv[1]},upperdir={top}/upper,workdir={top}/work,userxattr,volatile"
        kernel.mount("overlay", f"{top}/at", "overlay", 0, options)
        took.append((time.perf_counter() - begun) * 1000)
    for number in range(50):
        kernel.umount(f"{folder}/{number}/at")
    kernel.umount(folder)
print(statistics.median(took))
"""


def _floor(lower: Path) -> str:
    """What the kernel alone takes for the same mount, with nobody to ask for it: no fork is faster."""
    namespaces = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    told = subprocess.run([*namespaces, sys.executable, "-c", MOUNTS, str(lower)], capture_output=True, text=True)
    return (
        f"{float(told.stdout):.2f} ms: the mount alone"
        if told.returncode == 0
        else f"not measured: {told.stderr[-200:]}"
    )


def _fill(workspace: Path, count: int, size: int) -> None:
    for number in range(count):
        place = workspace / f"d{number // 100}" / f"f{number % 100}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(os.urandom(size))


async def _ours(
    root: Path, rounds: int, hundreds: int
) -> tuple[tuple[list[float], list[float]], list[tuple[float, float]]]:
    store = SnapshotStore(root / "ramify" / "store")
    base = store.import_tree(root / "workspace").snapshot
    spec = WorldSpec(mount_at=root / "workspace", env={"PATH": os.environ["PATH"]})
    async with open_backend("namespaces", store, root / "ramify" / "worlds") as backend:
        forks, firsts = [], []
        for _ in range(rounds):
            begun = time.perf_counter()
            world = await backend.materialise(base, spec)
            forked = time.perf_counter()
            result = await world.run("true")
            firsts.append((time.perf_counter() - forked) * 1000)
            forks.append((forked - begun) * 1000)
            if not result.ok or not (world.path / "d0" / "f0").is_file():
                raise AssertionError(f"that was no fork: {result}")
            await world.close()
            await asyncio.sleep(0.05)  # the spare that it took is made anew: a fork in a search comes alone
        return (forks, firsts), [await _at_once(backend, base, spec) for _ in range(hundreds)]


async def _at_once(backend: Backend, base: Snapshot, spec: WorldSpec) -> tuple[float, float]:
    begun = time.perf_counter()
    worlds = await backend.fork(base, spec, 100)
    forked = time.perf_counter()
    results = await asyncio.gather(*(world.run("true") for world in worlds))
    ran = time.perf_counter()
    if not all(result.ok for result in results):
        raise AssertionError("a child of a hundred did not run")
    await asyncio.gather(*(world.close() for world in worlds))
    return (forked - begun) * 1000, (ran - forked) * 1000


def _hundred(times: list[tuple[float, float]]) -> Row:
    row = _row("100 forks at once", [forked for forked, _ in times], HUNDRED_MS[os.geteuid() == 0])
    return {**row, "first_run": round(statistics.median(ran for _, ran in times), 3)}


def _against_peers(single: tuple[list[float], list[float]], root: Path, count: int, rounds: int) -> list[Row]:
    forks, firsts = single
    made = []
    for name, measure in PEERS.items():
        took, why_not = measure(root, rounds)
        row = _row(
            f"files-only fork, {count} files", forks, TARGET_MS[os.geteuid() == 0], f"{name}{why_not}", took or None
        )
        made.append({**row, "first_run": round(statistics.median(firsts), 3)})
    return made


def _copies(*words: str) -> Callable[[Path, int], tuple[list[float], str]]:
    def measure(root: Path, rounds: int) -> tuple[list[float], str]:
        took = []
        for _ in range(rounds):
            took.append(_spent(*words, str(root / "workspace"), str(root / "copy")))
            shutil.rmtree(root / "copy")
        return took, ""

    return measure


def _worktrees(root: Path, rounds: int) -> tuple[list[float], str]:
    if shutil.which("git") is None:
        return [], ": git is not installed"
    repository = root / "repository"
    shutil.copytree(root / "workspace", repository)
    git = ("git", "-C", str(repository), "-c", "user.name=N", "-c", "user.email=e@example.org", "-c", "gc.auto=0")
    _spent("git", "init", "-q", str(repository))
    _spent(*git, "-c", "core.compression=0", "add", "-A")
    _spent(*git, "commit", "-qm", "all")
    took = []
    for _ in range(rounds):
        took.append(_spent(*git, "worktree", "add", "-q", "--detach", str(root / "copy")))
        _spent(*git, "worktree", "remove", "--force", str(root / "copy"))
    shutil.rmtree(repository)
    return took, ""


def _commits(root: Path, rounds: int) -> tuple[list[float], str]:
    """A container over the same files, 100 of them changed, committed again and again."""
    if shutil.which("docker") is None:
        return [], ": Docker is not installed"
    if subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        return [], ": no engine answers on this machine"
    image = "ramify-bench-fork"
    with subprocess.Popen(["tar", "-C", str(root), "-c", "workspace"], stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", "-", image], stdin=packed.stdout, capture_output=True, check=True)
    made = subprocess.run(["docker", "create", image, "/none"], capture_output=True, text=True, check=True)
    container = made.stdout.strip()
    try:
        (root / "changed").mkdir()
        for number in range(100):
            (root / "changed" / f"f{number}").write_bytes(os.urandom(1_000))
        _spent("docker", "cp", "-q", f"{root / 'changed'}/.", f"{container}:/workspace/d0/")
        took = []
        for _ in range(rounds):
            took.append(_spent("docker", "commit", container, f"{image}:child"))
            _spent("docker", "rmi", f"{image}:child")
        return took, ""
    finally:
        subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=True)
        subprocess.run(["docker", "rmi", image], capture_output=True, check=True)


PEERS: dict[str, Callable[[Path, int], tuple[list[float], str]]] = {
    "cp -a": _copies("cp", "-a"),
    "git worktree add": _worktrees,
    "cp -al (hard links: no isolation)": _copies("cp", "-al"),
    "docker commit": _commits,
}


def _spent(*words: str) -> float:
    begun = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000


def _row(
    name: str,
    ours: list[float],
    target: float | None,
    peer: str = "",
    peers: list[float] | None = None,
    *,
    unit: str = "ms",
) -> Row:
    value, other = statistics.median(ours), statistics.median(peers) if peers else None
    return {
        "name": name,
        "ours": round(value, 3),
        "spread": [round(min(ours), 3), round(max(ours), 3)],
        "unit": unit,
        "peer": peer,
        "peer_value": None if other is None else round(other, 3),
        "ratio": None if other is None else round(other / value, 2),
        "target": target,
        "met": None if target is None else value <= target,
    }
