"""Rows for benchmarks/fork.py: forks of worlds without processes, singly, a hundred at once, and by size of the tree.

A fork ends when the child's tree is mounted. `first_run` is the further time to the child's first `run("true")`. For
a snapshot that is forked repeatedly, trees are mounted ahead; a snapshot that is forked in turn with another one has
a row of its own. So has the first fork after a backend was opened, which waits for its helper process to start. Peers
process the same files in the same run.
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

from benchmarks.forks.rounds import QUICK_BUDGET_S, Pace, Row, in_budget, no_docker, row, spent
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import Backend, WorldSpec
from ramify.sandboxes.selection import open_backend

FORKS = 50
HUNDREDS = 20
RUN_EVERY = 4  # one in so many of these hundreds also runs a first command in each world
COPIES = 20
QUICK_FORKS, QUICK_HUNDREDS, QUICK_COPIES = 20, 5, 10
TARGET_MS = {True: 1.0, False: 4.0}  # as root, as an ordinary user
HUNDRED_MS = {True: 150.0, False: None}
FLAT = 1.5  # time of a fork of the largest tree over the smallest: leaves room for noise, not for growth


def rows(quick: bool, scratch: Path | None = None) -> list[Row]:
    """10,000 files of 1 GB in all, next to 1,000 and 100,000 small ones; with `quick` a tenth of everything."""
    sizes = {100: 1_000, 1_000: 10_000, 10_000: 1_000} if quick else {1_000: 10_000, 10_000: 100_000, 100_000: 1_000}
    _, middle, _ = sizes
    forks, hundreds = (QUICK_FORKS, QUICK_HUNDREDS) if quick else (FORKS, HUNDREDS)
    pace = Pace(QUICK_COPIES, QUICK_BUDGET_S) if quick else Pace(COPIES)
    single: dict[int, tuple[list[float], list[float]]] = {}
    made: list[Row] = []
    fresh: list[Row] = []
    for count, size in sizes.items():
        with tempfile.TemporaryDirectory(prefix="ramify-fork-", dir=scratch, ignore_cleanup_errors=True) as folder:
            root = Path(folder)
            _fill(root / "workspace", count, size)
            single[count], hundred, turns = asyncio.run(_ours(root, forks, hundreds if count == middle else 0))
            if count == middle:
                made = _against_peers(single[count], hundred, root, count, pace)
                name = f"files-only fork, {count} files, of a snapshot that was not the last one forked"
                floor = {"floor": _floor(root / "workspace")}
                fresh = [{**row(name, turns, TARGET_MS[os.geteuid() == 0]), **floor}]
    small, large = min(sizes), max(sizes)
    growth = statistics.median(single[large][0]) / statistics.median(single[small][0])
    flat = row(f"a fork of {large} files over one of {small}: flat is 1", [growth], FLAT, unit="×")
    starting = row("the first fork after a backend was opened", [forks[0] for forks, _ in single.values()], None)
    others = (row(f"files-only fork, {n} files", single[n][0], None) for n in (small, large))
    return [*made, *fresh, starting, flat, *others]


MOUNTS = """
import os, statistics, sys, tempfile, time
from pathlib import Path
from ramify.sandboxes.linux import kernel
from ramify.sandboxes.host.scratch import spread
took = []
with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
    spread(Path(folder))
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
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
print(statistics.median(took))
"""


def _floor(lower: Path) -> str:
    """Return the time that the kernel needs for the same mount: no fork can be faster."""
    namespaces = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    told = subprocess.run(
        [*namespaces, sys.executable, "-c", MOUNTS, str(lower), str(lower.parent)], capture_output=True, text=True
    )
    return (
        f"{float(told.stdout):.2f} ms: its folders and the mount alone"
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
) -> tuple[tuple[list[float], list[float]], list[tuple[float, float | None]], list[float]]:
    """Time forks and their first commands; with `hundreds`, also that many batches of a hundred, and forks of two
    snapshots in turn."""
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
            await asyncio.sleep(0.05)  # wait until the spare tree is replaced, as between the forks of a search
        turns = await _in_turn(backend, base, spec, rounds) if hundreds else []
        many = [await _at_once(backend, base, spec, n % RUN_EVERY == 0) for n in range(hundreds)]
        return (forks, firsts), many, turns


async def _in_turn(backend: Backend, base: Snapshot, spec: WorldSpec, rounds: int) -> list[float]:
    """Time forks of two snapshots in turn: neither has its tree mounted ahead."""
    world = await backend.materialise(base, spec)
    (world.path / "changed").write_text("once\n")
    both, forks = (await world.seal(), base), []
    await world.close()
    for number in range(rounds):
        begun = time.perf_counter()
        world = await backend.materialise(both[number % 2], spec)
        forks.append((time.perf_counter() - begun) * 1000)
        await world.close()
        await asyncio.sleep(0.05)
    return forks


async def _at_once(backend: Backend, base: Snapshot, spec: WorldSpec, run: bool) -> tuple[float, float | None]:
    """Time a hundred forks, and then a command in each."""
    begun = time.perf_counter()
    worlds = await backend.fork(base, spec, 100)
    forked = time.perf_counter()
    if run:
        results = await asyncio.gather(*(world.run("true") for world in worlds))
        if not all(result.ok for result in results):
            raise AssertionError("a child of a hundred did not run")
    ran = time.perf_counter()
    await asyncio.gather(*(world.close() for world in worlds))
    return (forked - begun) * 1000, (ran - forked) * 1000 if run else None


def _against_peers(
    single: tuple[list[float], list[float]],
    hundred: list[tuple[float, float | None]],
    root: Path,
    count: int,
    pace: Pace,
) -> list[Row]:
    """Compare one fork and a hundred with each peer. A peer's hundred is a hundred times its one: nobody copies 100
    GB."""
    floor = _floor(root / "workspace")
    as_root = os.geteuid() == 0
    forks, firsts = single
    hundreds = [forked for forked, _ in hundred]
    first = {"first_run": round(statistics.median(firsts), 3), "floor": floor}
    first_of_all = {"first_run": round(statistics.median(ran for _, ran in hundred if ran is not None), 3)}
    ones, manys = list[Row](), list[Row]()
    for name, measure in PEERS.items():
        took, why_not = measure(root, pace)
        one = row(f"files-only fork, {count} files", forks, TARGET_MS[as_root], f"{name}{why_not}", took or None)
        ones.append({**one, **first})
        peer = f"100 × {name}{why_not}"
        many = row("100 forks at once", hundreds, HUNDRED_MS[as_root], peer, [100 * took_ for took_ in took] or None)
        manys.append({**many, **first_of_all})
    return [*ones, *manys]


def _copies(*words: str) -> Callable[[Path, Pace], tuple[list[float], str]]:
    def measure(root: Path, pace: Pace) -> tuple[list[float], str]:
        def copy(_: int) -> float:
            took = spent(*words, str(root / "workspace"), str(root / "copy"))
            shutil.rmtree(root / "copy")
            return took

        return in_budget(copy, *pace), ""

    return measure


def _worktrees(root: Path, pace: Pace) -> tuple[list[float], str]:
    if shutil.which("git") is None:
        return [], ": git is not installed"
    repository = root / "repository"
    shutil.copytree(root / "workspace", repository)
    git = ("git", "-C", str(repository), "-c", "user.name=N", "-c", "user.email=e@example.org", "-c", "gc.auto=0")
    spent("git", "init", "-q", str(repository))
    spent(*git, "-c", "core.compression=0", "add", "-A")
    spent(*git, "commit", "-qm", "all")

    def add(_: int) -> float:
        took = spent(*git, "worktree", "add", "-q", "--detach", str(root / "copy"))
        spent(*git, "worktree", "remove", "--force", str(root / "copy"))
        return took

    took = in_budget(add, *pace)
    shutil.rmtree(repository)
    return took, ""


def _commits(root: Path, pace: Pace) -> tuple[list[float], str]:
    """Time repeated commits of a container over the same files, 100 of them changed."""
    if why := no_docker():
        return [], f": {why}"
    image = "ramify-bench-fork"
    with subprocess.Popen(["tar", "-C", str(root), "-c", "workspace"], stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", "-", image], stdin=packed.stdout, capture_output=True, check=True)
    made = subprocess.run(["docker", "create", image, "/none"], capture_output=True, text=True, check=True)
    container = made.stdout.strip()
    try:
        (root / "changed").mkdir()
        for number in range(100):
            (root / "changed" / f"f{number}").write_bytes(os.urandom(1_000))
        spent("docker", "cp", "-q", f"{root / 'changed'}/.", f"{container}:/workspace/d0/")

        def commit(_: int) -> float:
            took = spent("docker", "commit", container, f"{image}:child")
            spent("docker", "rmi", f"{image}:child")
            return took

        return in_budget(commit, *pace), ""
    finally:
        subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=True)
        subprocess.run(["docker", "rmi", image], capture_output=True, check=True)


PEERS: dict[str, Callable[[Path, Pace], tuple[list[float], str]]] = {
    "cp -a": _copies("cp", "-a"),
    "git worktree add": _worktrees,
    "cp -al (hard links: no isolation)": _copies("cp", "-al"),
    "docker commit": _commits,
}
