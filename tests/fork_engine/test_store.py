"""The store's public behaviour: property tests against plain folders, and several processes at once."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.fork_engine import store_folder as folder
from ramify.fork_engine.errors import PathNotFound, SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.filesystem import file_content
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import EntryKind, Processes, ProcessTier, Snapshot, SnapshotId
from tests.samples import sample

NAMES = st.sampled_from(["a", "b", "a.py", "a-b", "0", "\udcff"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
DATA = st.sampled_from([b"", b"1", b"2", b"line\n" * 3])
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, DATA),
    st.tuples(st.just("mkdir"), PATHS, st.none()),
    st.tuples(st.just("remove"), PATHS, st.none()),
    st.tuples(st.just("chmod"), PATHS, st.sampled_from([0o600, 0o755, 0o700])),
    st.tuples(st.just("symlink"), PATHS, st.sampled_from(["a", "../nowhere", "/etc/passwd"])),
    st.tuples(st.just("link"), PATHS, PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("touch"), PATHS, st.sampled_from([1, 10**18, 1_700_000_000_123_456_789])),
    st.tuples(st.just("xattr"), PATHS, st.sampled_from([b"", b"\x00v"])),
)
SCRIPTS = st.lists(OPERATIONS, max_size=12)
PROPERTY = settings(
    max_examples=sample(8, 20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def perform(root: Path, script: list[tuple[str, str, Any]]) -> None:
    """Perform the steps of the script that are possible; the others fail as they would for anyone."""
    for name, path, value in script:
        place = root / path
        if any((root / above).is_symlink() for above in Path(path).parents):
            continue  # never leave the tree by a link
        try:
            _perform_one(name, place, value, root)
        except (OSError, shutil.Error):
            continue


def _perform_one(name: str, place: Path, value: Any, root: Path) -> None:
    if name == "write" and not place.is_symlink():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(value)
    elif name == "mkdir":
        place.mkdir(parents=True)
    elif name == "remove":
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    elif name == "chmod" and not place.is_symlink():
        place.chmod(value | (0o100 if place.is_dir() else 0))
    elif name == "symlink":
        place.symlink_to(value)
    elif name == "link" and not place.is_symlink():
        os.link(place, root / value)
    elif name == "rename":
        place.rename(root / value)
    elif name == "touch":
        os.utime(place, ns=(value, value), follow_symlinks=False)
    elif name == "xattr" and not place.is_symlink():
        os.setxattr(place, "user.note", value)


@PROPERTY
@given(start=SCRIPTS, first=SCRIPTS, second=SCRIPTS)
def test_a_restore_is_exact(start: Any, first: Any, second: Any, new_bench: Any, describe: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = new_bench(Path(folder))
        user = bench.place()
        user.mkdir()
        perform(user, start)
        base = bench.store.import_tree(user).snapshot
        tree = bench.tree(base)
        assert describe(tree) == describe(user)

        perform(tree, first)
        one = bench.store.seal_tree(tree, base, **bench.seal)
        at_one = describe(tree)
        assert bench.store.seal_tree(tree, one, **bench.seal) == one  # nothing has changed since
        perform(tree, second)
        two = bench.store.seal_tree(tree, one, **bench.seal)

        assert describe(bench.tree(two)) == describe(tree)
        assert describe(bench.tree(one)) == at_one  # roll back
        assert describe(bench.tree(base)) == describe(user)


@PROPERTY
@given(start=SCRIPTS, first=SCRIPTS, second=SCRIPTS, undo=st.booleans())
def test_content_keys_are_equal_iff_trees_are(
    start: Any, first: Any, second: Any, undo: bool, new_bench: Any, describe: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = new_bench(Path(folder))
        user = bench.place()
        user.mkdir()
        perform(user, [op for op in start if op[0] != "xattr"])
        base = bench.store.import_tree(user).snapshot
        snapshots, trees = [base], [bench.tree(base)]
        for script in (first, second):
            tree = bench.tree(base)
            perform(tree, [op for op in script if op[0] != "xattr"])
            snapshots.append(bench.store.seal_tree(tree, base, **bench.seal))
            trees.append(tree)
        if undo:  # back to the base's contents in another way: in place, over the layers of the second script
            shutil.rmtree(trees[2])
            shutil.copytree(user, trees[2], symlinks=True)
            snapshots.append(bench.store.seal_tree(trees[2], snapshots[2], **bench.seal))
            trees.append(trees[2])
            del snapshots[2], trees[2]

        def plain(tree: Path) -> Any:
            return {path: found[:2] for path, found in describe(tree, times=False).items()}

        for i, one in enumerate(snapshots):
            for j, other in enumerate(snapshots):
                assert (one.content_key == other.content_key) == (plain(trees[i]) == plain(trees[j]))


@PROPERTY
@given(ours=SCRIPTS, theirs=SCRIPTS)
def test_disjoint_merges_commute(ours: Any, theirs: Any, new_bench: Any, describe: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = new_bench(Path(folder))
        base = bench.base({"left/a": "1", "left/b": "2", "right/a": "1", "right/b": "2"})
        left, right = bench.tree(base), bench.tree(base)
        perform(left / "left", ours)
        perform(right / "right", theirs)
        one, two = (bench.store.seal_tree(tree, base, **bench.seal) for tree in (left, right))

        merged, other_way = bench.store.merge(base, one, two), bench.store.merge(base, two, one)

        assert merged.content_key == other_way.content_key
        expected = describe(left)
        expected = {path: found for path, found in expected.items() if path.startswith("left/")}
        expected |= {path: found for path, found in describe(right).items() if path.startswith("right/")}
        got = {path: found for path, found in describe(bench.tree(merged)).items() if "/" in path}
        assert got == expected


def test_changes_that_were_undone_have_the_content_key_of_the_base(bench: Any) -> None:
    base = bench.base({"a": "1", "d/b": "2"})
    there = bench.after(base, {"a": "2", "new": "x"}, remove=("d",))
    back = bench.after(there, {"a": "1", "d/b": "2"}, remove=("new",))
    assert there.content_key != base.content_key
    assert back.content_key == base.content_key
    assert back.id != base.id  # times differ


def test_volatile_paths_are_kept_but_not_in_the_key(bench: Any) -> None:
    base = bench.base({"a.py": "1"})
    ran = bench.after(base, {"__pycache__/a.pyc": "x", "pkg/.coverage": "y"})
    made = bench.after(base, {"pkg/b": ""}, do=lambda tree: (tree / "pkg/b").unlink())
    assert ran.content_key == made.content_key  # the folder pkg itself counts
    assert "__pycache__/a.pyc" in bench.store.entries(ran)


def test_an_environment_is_part_of_id_and_key(bench: Any) -> None:
    base = bench.base({"d/a": "1"})
    made = [
        bench.after(base, env={"A": "1"}),
        bench.after(base, env_unset=("A",)),
        bench.after(base, cwd="d"),
        base,
    ]
    assert len({snapshot.id for snapshot in made}) == len({snapshot.content_key for snapshot in made}) == 4
    assert all(snapshot.layers == base.layers for snapshot in made)
    dropped = bench.after(base, processes=Processes(ProcessTier.DROPPED))
    assert dropped.id != base.id and dropped.content_key == ""
    assert bench.store.get(made[1].id) == made[1]
    assert bench.after(made[1], env_unset=("A",)) is made[1]


def test_other_variables_are_another_state_that_comes_from_this_one(bench: Any) -> None:
    base = bench.base({"file": "1"})
    one = bench.store.seal_tree(bench.tree(base), base, env={"A": "1", "B": "1"}, env_unset=("C",), cwd="")
    two = bench.store.with_variables(one, {"B": "2", "C": "2"})
    assert (two.env, two.env_unset, two.layers) == ({"A": "1", "B": "2", "C": "2"}, (), one.layers)
    assert two.parents == (one.id,) and bench.store.get(two.id) == two != one
    assert bench.store.with_variables(one, {"A": "1"}) == one


def test_a_store_read_with_other_volatile_globs_computes_the_key_anew(bench: Any) -> None:
    base = bench.base({"a": "1"})
    made = bench.after(base, {"log": "x"})
    strict = SnapshotStore(bench.store.root, volatile=("log",))
    assert strict.get(made.id).content_key == strict.get(base.id).content_key
    assert bench.store.get(made.id) == made


def test_squashing_changes_layers_alone(tmp_path: Path, bench: Any, describe: Any) -> None:
    base = bench.base({"a": "1", "d/b": "2", "d/c": "3", "l": "x"})
    low = SnapshotStore(bench.store.root, max_layers=3)
    steps: list[Callable[[Path], object]] = [
        lambda tree: (tree / "a").write_text("2"),
        lambda tree: (shutil.rmtree(tree / "d"), (tree / "d").write_text("now a file")),
        lambda tree: ((tree / "d").unlink(), (tree / "d").mkdir(), (tree / "d/new").write_text("n")),
        lambda tree: (os.link(tree / "d/new", tree / "linked"), (tree / "l").unlink()),
        lambda tree: (tree / "a").chmod(0o600),
    ]
    high_tip = low_tip = base
    tree = bench.tree(base)
    for step in steps:
        step(tree)
        high_tip = bench.store.seal_tree(tree, high_tip, **bench.seal)
        low_tip = low.seal_tree(tree, low_tip, **bench.seal)
        assert high_tip.content_key == low_tip.content_key
        assert dict(low.entries(low_tip)) == dict(bench.store.entries(high_tip))
        assert len(low_tip.layers) <= 3
        assert describe(bench.tree(low_tip)) == describe(tree)
    assert len(high_tip.layers) == 6
    file = "d/new"
    inodes = {
        folder / file for folder in low.lower_dirs(low_tip) + low.lower_dirs(high_tip) if (folder / file).exists()
    }
    assert len({path.stat().st_ino for path in inodes}) < len(inodes)  # linked, not copied


def test_changes_that_cancel_out_squash_to_the_base(bench: Any) -> None:
    base = bench.base({"a": "1"})
    low = SnapshotStore(bench.store.root, max_layers=2)
    tree = bench.tree(base)
    stamp, top = (tree / "a").stat().st_mtime_ns, tree.stat().st_mtime_ns
    (tree / "a").write_text("2")
    there = low.seal_tree(tree, base, **bench.seal)
    (tree / "a").write_text("1")
    os.utime(tree / "a", ns=(stamp, stamp))
    os.utime(tree, ns=(top, top))
    assert low.seal_tree(tree, there, **bench.seal) == base


def test_reading_files(bench: Any) -> None:
    base = bench.base({"d/a": b"\x00\xff"})
    assert bench.store.read(base, "d/a") == b"\x00\xff"
    for missing in ("d", "d/x", "../d/a", "/d/a"):
        with pytest.raises(PathNotFound, match="not a file"):
            bench.store.read(base, missing)


def test_damage_is_reported(bench: Any) -> None:
    base = bench.base({"a": "1"})
    fs = bench.store.lower_dirs(base)[0]
    (fs / "a").write_text("2")
    with pytest.raises(SnapshotCorrupt, match=base.layers[0]):
        bench.store.read(base, "a")
    manifest = fs.parent / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"a"', b'"b"'))
    with pytest.raises(SnapshotCorrupt, match=base.layers[0]):
        SnapshotStore(bench.store.root).entries(base)
    shutil.rmtree(fs.parent)
    with pytest.raises(SnapshotCorrupt, match=base.layers[0]):
        bench.store.lower_dirs(base)


def test_a_deletion_keeps_what_it_is_told_to_keep(bench: Any, describe: Any) -> None:
    base = bench.base({"a": "1", "big": b"x" * 100_000})
    kept = bench.after(base, {"b": "2"})
    dropped = bench.after(kept, {"c": b"y" * 50_000})
    before = describe(bench.tree(kept))

    count, freed = bench.store.delete_unreachable([kept.id])

    assert count == 2 and 50_000 <= freed < 100_000
    assert describe(bench.tree(kept)) == before
    for gone in (base, dropped):  # the base's layer stays, because `kept` needs it
        with pytest.raises(SnapshotNotFound, match=gone.id):
            bench.store.get(gone.id)
    assert bench.on_disk("layers") == sorted(kept.layers)
    assert bench.store.delete_unreachable([kept.id]) == (0, 0)


def test_nothing_is_deleted_where_a_kept_snapshot_cannot_be_read(bench: Any) -> None:
    base = bench.base({"a": "1"})
    other = bench.after(base, {"b": "2"})
    (bench.store.root / "snapshots" / f"{base.id}.json").write_text("{}")
    with pytest.raises(SnapshotCorrupt):
        bench.store.delete_unreachable([base.id])
    assert bench.store.get(other.id) == other


def test_a_deletion_killed_anywhere_breaks_nothing_kept(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = bench.base({"a": "1"})
    chain = [base]
    for n in range(4):
        chain.append(bench.after(chain[-1], {f"f{n}": str(n)}))
    side = bench.after(base, {"side": "s"})
    real, calls = Path.rename, 0

    def dies(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            bench.store.delete_unreachable([side.id])
    fresh = SnapshotStore(bench.store.root)
    fresh.materialise(fresh.get(side.id), bench.place())
    fresh.delete_unreachable([side.id])
    assert bench.on_disk("layers") == sorted(side.layers)


def test_threads_that_seal_equal_content_make_one_snapshot(bench: Any) -> None:
    base = bench.base({f"f{n}": str(n) for n in range(20)})
    trees = [bench.tree(base) for _ in range(6)]
    for tree in trees:
        (tree / "f1").write_text("new")
        for path in (tree / "f1", tree):
            os.utime(path, ns=(10**18, 10**18))
    made: list[SnapshotId] = []

    def work(tree: Path) -> None:
        made.append(bench.store.seal_tree(tree, base, **bench.seal).id)

    threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 6 and len(set(made)) == 1
    assert bench.on_disk("tmp") == []


SEALER = """
import sys
from pathlib import Path
from ramify.fork_engine.store import SnapshotStore
root, id, tree = sys.argv[1:]
store = SnapshotStore(Path(root))
parent = store.get(id)
for n in range(8):
    Path(tree, "mine").write_text(str(n))
    parent = store.seal_tree(Path(tree), parent, env={}, env_unset=(), cwd="")
assert store.read(store.get(parent.id), "mine") == b"7"
"""


def test_processes_share_a_store(bench: Any) -> None:
    base = bench.base({"a": "1"})
    trees = [bench.tree(base) for _ in range(2)]
    workers = [subprocess.Popen([sys.executable, "-c", SEALER, bench.store.root, base.id, tree]) for tree in trees]
    while any(worker.poll() is None for worker in workers):
        bench.store.remove_temporary_leftovers()  # removes nothing that is in use
    assert [worker.returncode for worker in workers] == [0, 0]


def test_a_deletion_removes_leftovers_of_crashed_processes(bench: Any) -> None:
    base = bench.base({"a": "1"})
    left = bench.store.root / "tmp" / "left"
    left.mkdir()
    (left / "half").write_text("made")
    with bench.store._folder.temporary() as working:
        bench.store.delete_unreachable({base.id})
        assert bench.on_disk("tmp") == [working.name]


def test_a_sealer_killed_anywhere_leaves_only_complete_snapshots(bench: Any) -> None:
    base = bench.base({"a": "1", "d/b": "2"})
    for moment in range(6):
        tree = bench.tree(base)
        script = SEALER.replace("range(8)", "range(1000)")
        worker = subprocess.Popen([sys.executable, "-c", script, bench.store.root, base.id, tree])
        seen = len(bench.on_disk("layers"))
        while len(bench.on_disk("layers")) < seen + 1 + moment % 3:
            assert worker.poll() is None
        worker.kill()
        worker.wait()
    fresh = SnapshotStore(bench.store.root)
    fresh.remove_temporary_leftovers()
    assert bench.on_disk("tmp") == []
    for name in bench.on_disk("snapshots"):
        snapshot = fresh.get(SnapshotId(name.removesuffix(".json")))
        for path, entry in fresh.entries(snapshot).items():
            assert entry.kind is not EntryKind.FILE or len(fresh.read(snapshot, path)) == entry.size
        assert fresh.changes(snapshot, snapshot) == []


def test_threads_that_flush_at_once_share_the_flushes(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    base = bench.base({"a": "1"})
    begun, go_on, flushes = threading.Event(), threading.Event(), list[int]()

    def slowly(fd: int) -> None:
        flushes.append(fd)
        begun.set()
        assert go_on.wait(30)

    monkeypatch.setattr(folder, "sync_file_system", slowly)
    with ThreadPoolExecutor(8) as threads:
        bench.store.seal_tree(changed(bench, base, "0"), base, **bench.seal, flush=False)
        flushing = [threads.submit(bench.store.flush)]
        assert begun.wait(30)  # one waits for the disk; what follows is not covered by its flush
        for number in range(1, 7):
            bench.store.seal_tree(changed(bench, base, str(number)), base, **bench.seal, flush=False)
            flushing.append(threads.submit(bench.store.flush))
        go_on.set()
        for one in flushing:
            one.result()
    assert len(flushes) == 2


def changed(bench: Any, base: Snapshot, text: str) -> Path:
    tree: Path = bench.tree(base)
    (tree / "a").write_text(text)
    return tree


def test_a_large_file_is_read_and_composed_as_it_is_digested(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_content, "LARGE", 1 << 20)
    base = bench.base({"f": b"x" * (1 << 20)})
    large = [bench.after(base, {"f": bytes(2 << 20) + end}) for end in (b"one", b"two")]
    joined = bench.store.merge(base, *large, strategy=lambda *_: bytes(3 << 20) + b"both")
    for snapshot, held in zip((*large, joined), (b"one", b"two", bytes(1 << 20) + b"both"), strict=True):
        assert bench.store.read(snapshot, "f") == bytes(2 << 20) + held
    assert not bench.store.fsck().problems


def set_acl(path: Path, *, group: int, mask: int, kind: str = "access") -> None:
    """Everything for the owner and a named user, `group` for the file's own group, nothing for others."""
    nobody = 2**32 - 1
    named = [(0x01, 7, nobody), (0x02, 7, 65534), (0x04, group, nobody), (0x10, mask, nobody), (0x20, 0, nobody)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in named)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error.strerror}")


def test_a_store_where_all_folders_inherit_an_acl(tmp_path: Path, new_bench: Callable[[Path], Any]) -> None:
    set_acl(tmp_path, group=5, mask=7, kind="default")
    bench = new_bench(tmp_path / "below")
    base = bench.base({"d/f": "1"})
    upper = bench.upper(base)
    (upper / "new").mkdir()
    assert os.listxattr(upper / "new")
    sealed = bench.store.seal_upper(upper, base, **bench.seal, move=True)
    for path in (path for layer in bench.store.lower_dirs(sealed) for path in (layer, *layer.rglob("*"))):
        assert os.listxattr(path) == []
    assert not bench.store.fsck().problems


def test_an_acl_for_a_named_user_gives_the_group_nothing(bench: Any) -> None:
    """With an ACL, the mode's group bits are its mask: here everything that the named user may do."""

    def make(tree: Path, text: str) -> Path:
        (tree / "d").mkdir()
        for path in ("d/f", "d/narrow", "plain"):
            (tree / path).write_text(text)
        (tree / "plain").chmod(0o664)
        os.mkfifo(tree / "pipe")
        for place, group in ((tree / "d/f", 4), (tree / "d", 5), (tree / "pipe", 0), (tree, 1)):
            set_acl(place, group=group, mask=7)
            assert place.stat().st_mode & 0o7777 == 0o770
        set_acl(tree / "d/narrow", group=6, mask=2)
        return tree

    (workspace := bench.place()).mkdir()
    imported = bench.store.import_tree(make(workspace, "1")).snapshot
    base = bench.base({})
    moved = bench.store.seal_upper(make(bench.upper(base), "2"), base, **bench.seal, move=True)
    upper = make(bench.upper(base), "3")
    stays, again = (bench.store.seal_upper(upper, base, **bench.seal, move=False) for _ in range(2))
    assert again.id == stays.id
    for snapshot in (imported, moved, stays):
        modes = {path: entry.mode for path, entry in bench.store.entries(snapshot).items()}
        assert modes == {"d": 0o750, "d/f": 0o740, "d/narrow": 0o720, "pipe": 0o700, "plain": 0o664}
        assert bench.tree(snapshot).stat().st_mode & 0o7777 == 0o710
    assert not bench.store.fsck().problems
