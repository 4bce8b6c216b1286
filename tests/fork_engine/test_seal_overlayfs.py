"""Layers of real overlay mounts, root's and a user's, compared with what the mounts show and with plain copies."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ramify.fork_engine.seal import LastSeal
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from tests.samples import sample

SCRIPT = Path(__file__).with_name("overlay_script.py")
UNSHARE = {"root": ["unshare", "-m"], "user": ["unshare", "-Urm"]}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("overlay_script", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


inside = load()
Shown = dict[str, list[Any]]


def in_world(kind: str, lowers: list[Path], upper: Path, script: list[tuple[str, str, str]] | None = None) -> Shown:
    """Return what a mount shows after the script ran in it. `root` mounts without userxattr, as old stores of root's
    worlds did; `user` with it."""
    scratch = Path(tempfile.mkdtemp(dir=upper.parent))
    (scratch / "merged").mkdir()
    (scratch / "work").mkdir()
    told = {
        "lowers": [os.fspath(lower) for lower in lowers],
        "upper": os.fspath(upper),
        "work": os.fspath(scratch / "work"),
        "merged": os.fspath(scratch / "merged"),
        "userxattr": kind == "user",
        "script": script or [],
    }
    done = subprocess.run(
        [*UNSHARE[kind], sys.executable, "-I", "-S", SCRIPT], input=json.dumps(told), capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip() or f"exit status {done.returncode}")
    if (scratch / "work/work").exists():
        (scratch / "work/work").chmod(0o700)
    shutil.rmtree(scratch)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@functools.cache
def why_not(kind: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        lower, upper = Path(folder, "lower"), Path(folder, "upper")
        lower.mkdir()
        upper.mkdir()
        try:
            in_world(kind, [lower], upper)
        except (RuntimeError, OSError) as error:
            return f"no overlay as {kind} here: {str(error).splitlines()[-1]}"
    return ""


@pytest.fixture(params=["root", "user"])
def kind(request: pytest.FixtureRequest) -> str:
    if reason := why_not(request.param):
        pytest.skip(reason)
    return str(request.param)


def seal(bench: Any, kind: str, parent: Snapshot, script: list[tuple[str, str, str]], **more: Any) -> Any:
    """Return (the snapshot after the script, what the mount showed then)."""
    upper = bench.upper(parent)
    # Root's old mounts read only trusted.overlay.opaque, which no layer holds: they have a single layer.
    lowers = list(bench.store.lower_dirs(parent)) if kind == "user" else [bench.tree(parent)]
    saw = in_world(kind, lowers, upper, script)
    return bench.store.seal_upper(upper, parent, **bench.seal, **{"move": True, **more}), saw


PATHS = st.lists(st.sampled_from(["a", "b", "d", "n\n", "\udcff"]), min_size=1, max_size=3).map("/".join)
VALUES = {
    "write": st.sampled_from(["", "1", "line\n" * 3]),
    "append": st.just("more"),
    "hole": st.just(""),
    "mkdir": st.just(""),
    "remove": st.just(""),
    "again": st.just("x"),
    "chmod": st.sampled_from(["600", "755", "4711"]),
    "symlink": st.sampled_from(["a", "../nowhere"]),
    "fifo": st.just(""),
    "link": PATHS,
    "rename": PATHS,
    "touch": st.sampled_from(["1", "1700000000123456789"]),
    "xattr": st.sampled_from(["", "v"]),
}
OPERATIONS = st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), PATHS, VALUES[name]))
SCRIPTS = st.lists(OPERATIONS, max_size=10)
START = [
    ("write", "a", "1"),
    ("write", "d/a", "2"),
    ("write", "d/d/b", "3"),
    ("mkdir", "b/d", ""),
    ("write", "b/b", "4"),
]
PROPERTY = settings(
    max_examples=sample(6, 12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def unlinked(seen: Shown) -> Shown:
    """Without hard links, because overlayfs breaks those of a lower layer on a write; as plain lists."""
    return {path: found[:4] for path, found in seen.items()}


def as_told(seen: Shown, kind: str) -> Shown:
    """With `userxattr` the kernel numbers a linked lower file's names separately, so no links are visible."""
    return unlinked(seen) if kind == "user" else seen


@PROPERTY
@example(first=[("link", "a", "n\n")], second=[])
@given(first=SCRIPTS, second=SCRIPTS)
def test_a_snapshot_is_what_the_mount_showed(first: Any, second: Any, new_bench: Any, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = new_bench(Path(folder))
        user = bench.place()
        user.mkdir()
        inside.perform(user, START)
        base = bench.store.import_tree(user).snapshot
        one, saw_one = seal(bench, kind, base, first)
        two, saw_two = seal(bench, kind, one, second)
        # a rollback is a fork of the earlier one
        assert as_told(inside.shown(bench.tree(one)), kind) == as_told(
            saw_one, kind
        )  # a rollback is a fork of the earlier one
        assert unlinked(inside.shown(bench.tree(two))) == unlinked(saw_two)
        assert inside.shown(bench.tree(base)) == inside.shown(user)
        plain = [operation for operation in first if operation[0] != "link"]
        if plain == first:
            inside.perform(user, first)
            assert inside.shown(bench.tree(one), times=False) == inside.shown(user, times=False)
        assert SnapshotStore(bench.store.root).fsck().problems == ()


@settings(PROPERTY, max_examples=sample(3, 6))
@given(first=SCRIPTS, second=SCRIPTS)
def test_an_upper_that_stays_in_use_is_sealed_incrementally(
    first: Any, second: Any, new_bench: Any, kind: str
) -> None:
    """A second seal gives the same result as a seal that knows nothing of the first, also outside the workspace."""
    with tempfile.TemporaryDirectory() as folder:
        bench = new_bench(Path(folder))
        user = bench.place()
        user.mkdir()
        inside.perform(user, START)
        base = bench.store.import_tree(user).snapshot
        upper, empty, stays, beside = bench.upper(base), bench.upper(base), LastSeal(), LastSeal()
        for script in (first, second):
            saw = in_world(kind, list(bench.store.lower_dirs(base)), upper, script)
            sealed = bench.store.seal_upper(upper, base, **bench.seal, move=False, last_seal=stays)
            whole = bench.store.seal_upper(upper, base, **bench.seal, move=False)
            assert as_told(inside.shown(bench.tree(sealed)), kind) == as_told(saw, kind)
            assert sealed.content_key == whole.content_key
            told = {"outside": upper, "move": False}
            over = bench.store.seal_upper(empty, base, **bench.seal, **told, last_seal=beside)
            assert bench.store.outside(over) == bench.store.outside(
                bench.store.seal_upper(empty, base, **bench.seal, **told)
            )
        again = bench.store.seal_upper(upper, base, **bench.seal, move=False, last_seal=stays)
        assert again.id == sealed.id
        assert SnapshotStore(bench.store.root).fsck().problems == ()


@PROPERTY
@given(script=SCRIPTS)
def test_layers_of_root_and_of_a_user_are_the_same(script: Any, new_bench: Any) -> None:
    for kind in UNSHARE:
        if reason := why_not(kind):
            pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        bench = new_bench(Path(folder))
        user = bench.place()
        user.mkdir()
        inside.perform(user, START)
        base = bench.store.import_tree(user).snapshot
        made = []
        for kind in UNSHARE:
            upper = bench.upper(base)
            in_world(kind, [bench.store.lower_dirs(base)[0]], upper, script)
            for path, _, _ in os.walk(upper):  # everything that depends on the time of the call
                for child in Path(path).iterdir():
                    if not stat.S_ISCHR(child.lstat().st_mode):
                        os.utime(child, ns=(5, 5), follow_symlinks=False)
            os.utime(upper, ns=(5, 5))
            made.append(bench.store.seal_upper(upper, base, **bench.seal, move=kind == "root"))
        assert made[0] == made[1]


def test_stacks_mount_before_and_after_they_are_squashed(new_bench: Any, tmp_path: Path) -> None:
    if reason := why_not("user"):
        pytest.skip(reason)
    where = random.Random(7)
    bench = new_bench(tmp_path)
    bench.store = SnapshotStore(tmp_path / "store", max_layers=4)
    user = bench.place()
    user.mkdir()
    inside.perform(user, START)
    now = bench.store.import_tree(user).snapshot
    steps: list[tuple[str, str, str]] = [
        ("again", "d", "1"), ("remove", "b", ""), ("write", "b", "file"), ("write", "d/x", "1"), ("again", "d", "2"),
        ("remove", "b", ""), ("write", "b/new", "1"), ("xattr", "d", "v"), ("symlink", "l", "a"), ("remove", "a", ""),
    ]  # fmt: skip
    for step in [*steps, where.choice(steps)]:
        now, saw = seal(bench, "user", now, [step])
        assert len(now.layers) <= 4
        assert unlinked(inside.shown(bench.tree(now))) == unlinked(saw)


def test_a_view_over_the_host_shows_all_files_that_are_not_hidden(new_bench: Any, tmp_path: Path) -> None:
    """Outside the workspace: a stack over the live home, also squashed."""
    if reason := why_not("user"):
        pytest.skip(reason)
    bench = new_bench(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    inside.perform(home, START)
    user = bench.place()
    user.mkdir()
    plain = bench.place()
    shutil.copytree(home, plain, symlinks=True)
    tall = bench.store.import_tree(user).snapshot
    low_store, low = SnapshotStore(bench.store.root, max_layers=2), tall
    steps: list[list[tuple[str, str, str]]] = [
        [], [("remove", "a", "")], [("again", "d", "1")], [("write", "a/in", "1"), ("remove", "b/b", "")],
        [("remove", "d", "")], [("write", "d/later", "1")], [("remove", "a", ""), ("write", "a", "file")],
    ]  # fmt: skip
    for script in steps:
        inside.perform(plain, script)
        results = []
        for store, at in ((bench.store, tall), (low_store, low)):
            outside = bench.place()
            (outside / "home/u").mkdir(parents=True)
            lowers = [home, *(d / "home/u" for d in store.outside_dirs(at) if (d / "home/u").is_dir())]
            saw = in_world("user", lowers, outside / "home/u", script)
            assert _texts(saw) == _texts(inside.shown(plain))
            results.append(store.seal_upper(bench.upper(at), at, **bench.seal, outside=outside, move=True))
        if not script:
            assert results[0] == tall
        tall, low = results
        assert len(low.outside) <= 2
        assert _kinds(low_store, low) == _kinds(bench.store, tall)
        assert tall.content_key == low.content_key
    assert bench.store.fsck().problems == ()


def _kinds(store: SnapshotStore, snapshot: Snapshot) -> dict[str, tuple[str, bool, str]]:
    return {path: (entry.kind.value, entry.opaque, entry.digest) for path, entry in store.outside(snapshot).items()}


def _texts(seen: Shown) -> dict[str, str]:
    return {path: found[1] for path, found in seen.items() if path != "." and not stat.S_ISDIR(found[0])}


@pytest.mark.parametrize("name", ["write", "append", "hole", "again", "remove"])
def test_no_script_blocks_on_a_fifo(tmp_path: Path, name: str) -> None:
    inside.perform(tmp_path, [("fifo", "a", ""), (name, "a", "text")])
    assert (tmp_path / "a").is_fifo() is (name != "remove")
