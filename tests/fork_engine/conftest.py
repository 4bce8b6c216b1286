"""Fixtures: a store, trees to put into it, an ordinary user to run as, and an independent description of a folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.store import NO_PROCESSES, SnapshotStore
from ramify.fork_engine.types import Processes, Snapshot

Described = dict[str, tuple[Any, ...]]


def describe_tree(root: Path, *, times: bool = True) -> Described:
    """Return all that a snapshot promises to restore, by path: kind, mode, content, attributes, times, links."""
    shown: Described = {}
    inodes: dict[int, list[str]] = {}
    for folder, names, files in os.walk(root):
        for name in names + files:
            path = Path(folder, name)
            status = path.lstat()
            at = os.fspath(path.relative_to(root))
            content: str = ""
            xattrs: tuple[tuple[str, bytes], ...] = ()
            if stat.S_ISLNK(status.st_mode):
                content = os.fspath(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                inodes.setdefault(status.st_ino, []).append(at)
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                xattrs = tuple(sorted((name, os.getxattr(path, name)) for name in os.listxattr(path)))
            shown[at] = (status.st_mode, content, xattrs, status.st_mtime_ns if times else 0)
    shown["."] = (root.stat().st_mode, root.stat().st_mtime_ns if times else 0)
    for paths in inodes.values():
        if len(paths) > 1:
            for at in paths:
                shown[at] += (tuple(sorted(paths)),)
    return shown


@pytest.fixture
def describe() -> Callable[..., Described]:
    return describe_tree


@dataclass
class Bench:
    """A store with short seal calls, and worlds of its snapshots."""

    store: SnapshotStore
    folder: Path
    made: int = 0
    seal: Mapping[str, Any] = field(default_factory=lambda: {"env": {}, "env_unset": (), "cwd": ""})

    def place(self) -> Path:
        self.made += 1
        return self.folder / f"place{self.made}"

    def tree(self, snapshot: Snapshot) -> Path:
        place = self.place()
        self.store.materialise(snapshot, place)
        return place

    def upper(self, snapshot: Snapshot) -> Path:
        """Return an empty upper folder, as a mount over the snapshot would need it."""
        top, place = self.store.lower_dirs(snapshot)[-1].stat(), self.place()
        place.mkdir()
        place.chmod(stat.S_IMODE(top.st_mode))
        os.utime(place, ns=(top.st_mtime_ns, top.st_mtime_ns))
        return place

    def base(self, files: Mapping[str, str | bytes | None]) -> Snapshot:
        """Import a folder of these files (None: a folder)."""
        place = self.place()
        place.mkdir()
        write_files(place, files)
        return self.store.import_tree(place).snapshot

    def after(
        self,
        parent: Snapshot,
        files: Mapping[str, str | bytes | None] | None = None,
        *,
        remove: tuple[str, ...] = (),
        do: Callable[[Path], object] | None = None,
        env: Mapping[str, str] | None = None,
        env_unset: tuple[str, ...] = (),
        cwd: str = "",
        processes: Processes = NO_PROCESSES,
    ) -> Snapshot:
        """Return a child of `parent` with these files written and removed, and `do` applied."""
        tree = self.tree(parent)
        for path in remove:
            shutil.rmtree(tree / path) if (tree / path).is_dir() and not (tree / path).is_symlink() else (
                tree / path
            ).unlink()
        write_files(tree, files or {})
        if do is not None:
            do(tree)
        return self.store.seal_tree(tree, parent, env=env or {}, env_unset=env_unset, cwd=cwd, processes=processes)

    def on_disk(self, part: str) -> list[str]:
        return sorted(path.name for path in (self.store.root / part).iterdir())

    def texts(self, snapshot: Snapshot) -> dict[str, str]:
        entries = self.store.entries(snapshot)
        return {
            p: self.store.read(snapshot, p).decode("utf-8", "replace")
            for p, e in entries.items()
            if e.kind.value == "file"
        }


def write_files(root: Path, files: Mapping[str, str | bytes | None]) -> None:
    for path, content in files.items():
        place = root / path
        if content is None:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(SnapshotStore(tmp_path / "store"), tmp_path)


@pytest.fixture
def new_bench() -> Callable[[Path], Bench]:
    """For property tests, which need a new store for each example."""
    return lambda folder: Bench(SnapshotStore(folder / "store"), folder)


@pytest.fixture
def ordinary(tmp_path: Path) -> Iterator[Path]:
    """Run the test as an ordinary user, and return a folder of that user."""
    if os.geteuid() != 0:
        yield tmp_path
        return
    folder, nobody = Path(tempfile.mkdtemp()), 65534
    os.chown(folder, nobody, nobody)
    os.seteuid(nobody)
    dumpable = ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self/fd belongs to us again
    assert dumpable == 0
    try:
        yield folder
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)
