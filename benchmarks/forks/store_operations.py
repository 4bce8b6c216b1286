"""Rows for benchmarks/fork.py: merge, checkpoint and disk usage of the snapshot store alone, without a sandbox.

Each peer processes the same files in the same run. Medians of 20 or more.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.forks.rounds import in_budget, no_docker, row
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot

ROUNDS = 20
CHANGED = 100  # files that a branch changes
BRANCHES = 100
_SAME: dict[str, Any] = {"env": {}, "env_unset": (), "cwd": ""}


@dataclass(frozen=True)
class Bed:
    """A workspace of `files` files, and the store that holds it."""

    root: Path
    workspace: Path
    store: SnapshotStore
    base: Snapshot
    files: int
    size: int  # bytes per file


def rows(quick: bool, scratch: Path | None = None) -> list[dict[str, object]]:
    """10,000 files of 1 GB in all; with `quick` 1,000 of 10 MB. `scratch`: a folder on the file system to measure."""
    files, size = (1_000, 10_000) if quick else (10_000, 100_000)
    with _bed(files, size, scratch) as bed:
        return [*_merge(bed), *_checkpoint(bed), *_bytes(bed, 20 if quick else BRANCHES)]


@contextmanager
def _bed(files: int, size: int, scratch: Path | None) -> Iterator[Bed]:
    root = Path(tempfile.mkdtemp(prefix="ramify-bench-", dir=scratch))
    try:
        workspace = root / "workspace"
        source = random.Random(1)
        for number in range(files):
            place = workspace / _name(number)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(_text(source, size))
        store = SnapshotStore(root / "store")
        yield Bed(root, workspace, store, store.import_tree(workspace).snapshot, files, size)
    finally:
        shutil.rmtree(root)


def _name(number: int) -> str:
    return f"d{number // 100:03}/f{number % 100:02}.txt"


def _text(source: random.Random, size: int) -> bytes:
    """Random lines, which neither compress nor merge by chance."""
    return b"".join(b"%060x\n" % source.getrandbits(240) for _ in range(size // 61 + 1))[:size]


def _times(work: Callable[[int], float], rounds: int = ROUNDS) -> list[float]:
    """Return the milliseconds of each round; `work` returns seconds. The first round is a warm-up."""
    work(-1)
    return in_budget(lambda number: work(number) * 1e3, rounds)


# Merge


def _merge(bed: Bed) -> list[dict[str, object]]:
    """One side changed 100 files, the other 100 others, spread over the tree."""
    step = max(1, bed.files // CHANGED)
    mine, yours = (
        [_name(number) for number in range(offset, bed.files, step)][:CHANGED] for offset in (0, max(1, step // 2))
    )
    if step == 1:
        raise ValueError("the tree must hold more files than two sides change")

    def ours(number: int) -> float:
        one, two = (_child(bed, paths, f"{number} {side}") for side, paths in (("one", mine), ("two", yours)))
        begun = time.perf_counter()
        bed.store.merge(bed.base, one, two)
        return time.perf_counter() - begun

    return [row("three-way merge of 100 + 100 changed files", _times(ours), 30, "git merge", _git(bed, mine, yours))]


def _child(bed: Bed, paths: list[str], note: str) -> Snapshot:
    upper = _upper(bed, paths, note)
    return bed.store.seal_upper(upper, bed.base, **_SAME, move=True, flush=False)


def _upper(bed: Bed, paths: list[str], note: str) -> Path:
    """Write what a world that rewrote these files leaves: each whole, with one new first line."""
    upper = Path(tempfile.mkdtemp(dir=bed.root))
    for path in paths:
        (upper / path).parent.mkdir(exist_ok=True)
        (upper / path).write_bytes(note.encode() + b"\n" + (bed.workspace / path).read_bytes())
    return upper


def _git(bed: Bed, mine: list[str], yours: list[str]) -> list[float]:
    """Time `git merge` of the same changes, both committed before."""
    repository = bed.root / "git"
    shutil.copytree(bed.workspace, repository)

    def git(*arguments: str) -> None:
        settings = ("-c", "user.name=b", "-c", "user.email=b@b", "-c", "gc.auto=0", "-c", "commit.gpgsign=false")
        settings += ("-c", "core.compression=0")
        subprocess.run(["git", *settings, *arguments], cwd=repository, check=True, capture_output=True)

    git("init", "-q", "-b", "base")
    git("add", "-A")
    git("commit", "-qm", "base")

    def merge(number: int) -> float:
        for side, paths in (("one", mine), ("two", yours)):
            git("checkout", "-q", "-B", side, "base")
            for path in paths:
                (repository / path).write_bytes(
                    f"{number} {side}".encode() + b"\n" + (bed.workspace / path).read_bytes()
                )
            git("commit", "-qam", side)
        git("checkout", "-q", "one")
        begun = time.perf_counter()
        git("merge", "-q", "-m", "merged", "two")
        return time.perf_counter() - begun

    try:
        return _times(merge)
    finally:
        shutil.rmtree(repository)


# Checkpoint


def _checkpoint(bed: Bed) -> list[dict[str, object]]:
    paths = [_name(number) for number in range(0, bed.files, max(1, bed.files // CHANGED))][:CHANGED]

    def seal(number: int, *, flush: bool) -> float:
        upper = _upper(bed, paths, f"{number}{flush}")
        begun = time.perf_counter()
        bed.store.seal_upper(upper, bed.base, **_SAME, move=True, flush=flush)
        spent = time.perf_counter() - begun
        bed.store.flush()
        return spent

    def least(number: int) -> float:
        """Time the steps that no seal can avoid."""
        upper = _upper(bed, paths, f"{number} floor")
        begun = time.perf_counter()
        for path in paths:
            hashlib.sha256((upper / path).read_bytes())
        spent = time.perf_counter() - begun
        shutil.rmtree(upper)
        return spent

    def nothing(number: int) -> float:
        upper = Path(tempfile.mkdtemp(dir=bed.root))
        top = bed.store.lower_dirs(bed.base)[-1].stat()
        upper.chmod(top.st_mode & 0o7777)
        os.utime(upper, ns=(top.st_mtime_ns, top.st_mtime_ns))
        begun = time.perf_counter()
        sealed = bed.store.seal_upper(upper, bed.base, **_SAME, move=True, flush=False)
        spent = time.perf_counter() - begun
        if sealed.id != bed.base.id:
            raise ValueError("an empty upper folder made a snapshot")
        upper.rmdir()
        return spent

    def tar(number: int) -> float:
        """Time an archive of the changed files, which are listed beforehand: all that tar has to do."""
        upper = _upper(bed, paths, f"{number} tar")
        begun = time.perf_counter()
        with tarfile.open(bed.root / "changed.tar", "w") as made:
            made.add(upper, ".")
        spent = time.perf_counter() - begun
        shutil.rmtree(upper)
        return spent

    tars, commits = _times(tar), _docker_commits(bed, paths)
    name = "seal of 100 changed files in the store"
    more = [row(f"{name}, flushed (docker)", _times(lambda n: seal(n, flush=True)), None, "docker commit", commits)]
    size = round(bed.size * len(paths) / 1e6)
    floor = f"{statistics.median(_times(least)):.1f} ms: the {size} MB that changed, read and hashed"
    unflushed = row(f"{name}, not yet flushed", _times(lambda n: seal(n, flush=False)), 15, "tar of the same", tars)
    return [
        *(more if commits else []),
        {**unflushed, "floor": floor},
        row(f"{name}, flushed", _times(lambda n: seal(n, flush=True)), None, "tar, not flushed", tars),
        row("seal where nothing changed", _times(nothing), 0.5),
    ]


def _docker_commits(bed: Bed, paths: list[str]) -> list[float]:
    """Time `docker commit` of a container in which the same files were replaced. Empty without a Docker Engine."""
    if no_docker():
        return []
    image = "ramify-bench-store"
    with subprocess.Popen(["tar", "-C", bed.workspace, "-c", "."], stdout=subprocess.PIPE) as packed:
        imported = subprocess.run(["docker", "import", "-", image], stdin=packed.stdout, capture_output=True)
    if imported.returncode != 0:
        raise RuntimeError(f"docker import: {imported.stderr.decode()}")

    def commit(number: int) -> float:
        upper = _upper(bed, paths, f"{number} docker")
        container = _docker("create", image, "/none").stdout.strip()
        _docker("cp", f"{upper}/.", f"{container}:/")
        begun = time.perf_counter()
        made = _docker("commit", container)
        spent = time.perf_counter() - begun
        if made.returncode != 0:
            raise RuntimeError(f"docker commit: {made.stderr}")
        _docker("rm", container)
        _docker("rmi", made.stdout.strip())
        shutil.rmtree(upper)
        return spent

    try:
        return _times(commit)
    finally:
        _docker("rmi", image)


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True)


# Bytes


def _bytes(bed: Bed, branches: int) -> list[dict[str, object]]:
    """Branches change 1 % of the files, each differently, except that a fifth are changed as in the branch before, as
    siblings do. The distinct contents are counted independently of the store, from the branches' own files."""
    source = random.Random(2)
    root = bed.root / "bytes"
    store = SnapshotStore(root)
    base = store.import_tree(bed.workspace).snapshot
    distinct = {hashlib.sha256(path.read_bytes()).digest(): path.stat().st_size for path in _files(bed.workspace)}
    whole = sum(path.stat().st_size for path in _files(bed.workspace))
    before: dict[str, bytes] = {}
    for _ in range(branches):
        upper, now = Path(tempfile.mkdtemp(dir=bed.root)), dict[str, bytes]()
        for number in source.sample(range(bed.files), bed.files // 100):
            now[_name(number)] = _text(source, bed.size)
        for path in sorted(before)[: len(now) // 5]:
            now[path] = before[path]
        for path, data in now.items():
            (upper / path).parent.mkdir(exist_ok=True)
            (upper / path).write_bytes(data)
            distinct[hashlib.sha256(data).digest()] = len(data)
        store.seal_upper(upper, base, **_SAME, move=True, flush=False)
        before = now
    store.flush()
    used = _disk_bytes(root)
    shutil.rmtree(root)
    needed = sum(distinct.values())
    copies = whole * (branches + 1)
    return [
        {
            "name": f"{branches} branches, 1 % changed each: bytes on disk over bytes of distinct contents",
            "ours": round(used / needed, 3),
            "spread": None,
            "unit": "×",
            "peer": "a copy a branch",
            "peer_value": round(copies / needed, 2),
            "ratio": round(copies / used, 1),
            "target": 1.5,
            "met": used / needed <= 1.5,
        }
    ]


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file())


def _disk_bytes(root: Path) -> int:
    """Return the bytes of blocks in use, including folders and manifests, each inode once."""
    seen: dict[int, int] = {}
    for folder, names, files in os.walk(root):
        for name in [".", *names, *files]:
            status = Path(folder, name).lstat()
            seen[status.st_ino] = status.st_blocks * 512
    return sum(seen.values())
