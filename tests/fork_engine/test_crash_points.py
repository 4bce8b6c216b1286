"""The store stays intact, and the operation can be repeated, after a kill at every point or an error from every disk
call."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine import crash_points, store_folder
from ramify.fork_engine.errors import ForkEngineError, SnapshotNotFound, StoreUnusable
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId

KILLED = """
import os, sys
from pathlib import Path
from ramify.fork_engine import crash_points
from ramify.fork_engine.store import SnapshotStore
root, operation, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
passed = 0
def at(name):
    global passed
    passed += 1
    if passed == last:
        print(name, flush=True)
        os._exit(9)
store = SnapshotStore(root / "store")
same = {"env": {}, "env_unset": (), "cwd": ""}
base, one, two = (store.get(id) for id in sys.argv[4:7])
crash_points.at = at
if operation == "seal":
    upper = root / f"upper{last}"
    upper.mkdir()
    (upper / "new").write_text(str(last))
    ran = store.put_blob(b"state %d" % last)
    outside = root / f"outside{last}"
    outside.mkdir()
    (outside / "tmp").write_text(str(last))
    made = store.seal_upper(upper, base, **same, outside=outside, move=True)
elif operation == "merge":
    made = store.merge(base, one, two, strategy=lambda *_: str(last).encode())
elif operation == "import":
    (root / "user").mkdir(exist_ok=True)
    (root / "user" / f"f{last}").write_text(str(last))
    store.import_tree(root / "user")
elif operation == "checkout":
    crash_points.at = lambda name: at(name) if name == "written out" else None
    store.checkout(one, root / f"out{last}")
    store.checkout(two, root / f"out{last}", force=True)
else:
    store.delete_unreachable([base.id, one.id, two.id])
print("end", flush=True)
"""


MAKING = {"written", "noted", "placed", "snapshot", "flushed", "cleared"}
WRITTEN_OUT = {("a", "mine"), ("a", "theirs"), ("b", "2"), ("c", "3")}


@pytest.mark.parametrize("operation", ["seal", "merge", "import", "checkout", "delete"])
def test_killed_at_every_point(bench: Any, operation: str) -> None:
    base = bench.base({"a": "1", "d/b": "2"})
    one, two = bench.after(base, {"a": "mine"}), bench.after(base, {"a": "theirs", "c": "3"})
    kept = {snapshot.id: bench.texts(snapshot) for snapshot in (base, one, two)}
    points = []
    for last in range(1, 60):
        if operation == "delete":
            bench.after(base, {"gone": str(last)})
            bench.after(base, {"gone too": str(last)}, env={"A": str(last)})
        arguments = [os.fspath(bench.folder), operation, str(last), *kept]
        done = subprocess.run([sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True)
        assert done.returncode in (0, 9), done.stderr
        fresh = SnapshotStore(bench.store.root)
        fresh.remove_temporary_leftovers()
        assert fresh.fsck().problems == (), f"killed at {done.stdout}"
        assert {id: bench.texts(fresh.get(SnapshotId(id))) for id in kept} == kept
        out = (path for path in (bench.folder / f"out{last}").rglob("*") if path.is_file())
        assert {(path.name, path.read_text()) for path in out} <= WRITTEN_OUT
        if done.returncode == 0:
            break
        points.append(done.stdout.strip())
    else:
        raise AssertionError("it never ended")
    assert set(points) == (
        {"delete": {"forgotten", "removed"}, "checkout": {"written out"}, "import": {*MAKING, "indexed"}}.get(
            operation, MAKING
        )
    )
    assert set(points) <= set(crash_points.POINTS)


REFUSALS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("call", ["write_new", "place", "sync_file_system"])
def test_disk_errors_are_typed_and_lose_nothing(
    bench: Any, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    base = bench.base({"a": "1", "d/b": "2"})
    upper = bench.upper(base)
    (upper / "d").mkdir()
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    (upper / "d/new").write_text("n")
    before = bench.on_disk("layers"), bench.on_disk("snapshots")

    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code), "there")

    with monkeypatch.context() as patched:
        if call == "place":
            patched.setattr(crash_points, "at", lambda name: refuse() if name == "written" else None)
        elif call == "write_new":
            patched.setattr("ramify.fork_engine.seal.write_new", refuse)
        else:
            patched.setattr(store_folder, call, refuse)
        with pytest.raises(StoreUnusable, match=os.strerror(code)) as raised:
            bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert str(bench.store.root) in str(raised.value) and raised.value.__cause__ is not None
    if call == "sync_file_system":  # complete, but not known to be on disk: it was never reported
        assert bench.store.fsck().problems == ()
        return
    assert (bench.on_disk("layers"), bench.on_disk("snapshots")) == before and bench.on_disk("tmp") == []
    assert (upper / "d/new").read_text() == "n"  # the world continues over it
    sealed = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    assert bench.texts(sealed) == {"a": "1", "d/new": "n"}


def test_a_full_disk(tmp_path: Path, new_bench: Callable[[Path], Any]) -> None:
    """A real one, of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]).returncode:
        pytest.skip("cannot mount a small file system: not root")
    try:
        bench = new_bench(disk)
        base = bench.base({"a": "1"})
        (tmp_path / "user").mkdir()
        (tmp_path / "user/large").write_bytes(b"x" * (2 << 20))
        with pytest.raises(StoreUnusable, match="Free some space"):
            bench.store.import_tree(tmp_path / "user")
        assert bench.on_disk("tmp") == [] and bench.store.fsck().problems == ()
        assert bench.texts(base) == {"a": "1"}
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_store_without_write_permission(ordinary: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("all is root's to write")
    (ordinary / "closed").mkdir(mode=0o500)
    with pytest.raises(StoreUnusable, match="closed"):
        SnapshotStore(ordinary / "closed/store")


def test_errors_of_the_fork_engine_are_not_translated(bench: Any) -> None:
    with pytest.raises(SnapshotNotFound):
        bench.store.get(SnapshotId("0" * 64))
    assert issubclass(StoreUnusable, ForkEngineError)
