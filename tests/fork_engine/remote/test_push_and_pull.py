"""Snapshots travel through a bucket and arrive complete; what is there is neither uploaded nor fetched again."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import RemoteObjectAltered, RemoteObjectMissing, SnapshotNotFound
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.manifest import canonical_json
from ramify.fork_engine.remote.check import RemoteDamage, check
from ramify.fork_engine.remote.collection import collect
from ramify.fork_engine.remote.pull import pull
from ramify.fork_engine.remote.push import SMALL, push
from ramify.fork_engine.types import Processes, Snapshot, SnapshotId


def odd_tree(tree: Path) -> None:
    """All that a layer can hold."""
    (tree / "d").mkdir(mode=0o711)
    (tree / "d" / os.fsdecode(b"caf\xe9")).write_bytes(b"latin")
    os.link(tree / "d" / os.fsdecode(b"caf\xe9"), tree / "second name")
    (tree / "link").symlink_to("../nowhere")
    os.mkfifo(tree / "pipe", 0o640)
    (tree / "secret").write_text("s")
    (tree / "secret").chmod(0)
    os.setxattr(tree / "d", "user.note", b"\0kept")
    with (tree / "holes").open("wb") as file:
        file.seek(40 << 20)
        file.write(b"end")
    os.utime(tree / "d", ns=(123456789, 987654321012345678))


def states(bench: Any) -> tuple[Snapshot, Snapshot]:
    base = bench.base({"a": "1", "gone": "x", "large": os.urandom(SMALL + 1)})
    shell = bench.store.put_blob(b"a shell")
    return base, bench.after(base, {"b": "2"}, remove=("gone",), do=odd_tree, processes=Processes(shell=shell))


def test_a_snapshot_arrives_as_it_was(
    machine: Callable[..., Any], describe: Callable[..., Any], objects: Callable[[str], list[str]]
) -> None:
    here, there = machine("here"), machine("there")
    _, state = states(here.bench)
    done = push(here.remote, [state.id])
    assert done.snapshots == (state.id,) and done.objects == 3  # two large layers, and the shell
    assert done.bytes < SMALL + (1 << 20)  # holes are not uploaded
    got = pull(there.remote, [state.id])
    assert got.snapshots == (state,) and got.members == 3
    assert describe(there.bench.tree(state)) == describe(here.bench.tree(state))
    assert there.bench.store.fsck().problems == ()
    assert (there.bench.store.lower_dirs(state)[-1] / "holes").stat().st_blocks * 512 < 1 << 20
    assert pull(there.remote, [state.id]).members == 0
    assert len(objects("snapshots")) == 1


def test_what_the_bucket_has_is_not_uploaded_again(machine: Callable[..., Any]) -> None:
    here, there = machine("here"), machine("there")
    base, state = states(here.bench)
    push(here.remote, [base.id])
    done = push(here.remote, [base.id, state.id])
    assert (done.snapshots, done.known, done.objects) == ((state.id,), (base.id,), 2)
    assert done.bytes < 1 << 20
    pull(there.remote, [state.id])
    further = there.bench.after(state, {"c": "3"})  # the other machine goes on from there
    done = push(there.remote, [further.id])
    assert (done.objects, done.known) == (1, ()) and done.bytes < 10_000
    assert pull(here.remote, [further.id]).members == 1
    assert here.bench.texts(further)["c"] == "3"


def test_a_home_that_forgot_its_places_uploads_again(machine: Callable[..., Any], tmp_path: Path) -> None:
    here = machine("here")
    base, state = states(here.bench)
    push(here.remote, [base.id])
    (lines,) = (tmp_path / "here" / "remote").glob("places-*")
    lines.write_bytes(lines.read_bytes()[:20])  # cut short by a kill
    done = push(machine("here").remote, [state.id])
    assert done.objects == 3
    there = machine("there")
    assert pull(there.remote, [state.id]).snapshots == (state,)


def test_threads_fetch_an_object_once(machine: Callable[..., Any]) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"large": os.urandom(SMALL + 1)})
    leaves = [here.bench.after(base, {"leaf": str(number)}).id for number in range(6)]
    push(here.remote, leaves)
    fetched: list[int] = []

    def fetch(id: SnapshotId) -> None:
        fetched.append(pull(there.remote, [id]).members)

    threads = [threading.Thread(target=fetch, args=(id,)) for id in leaves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(fetched) == 1 + len(leaves)
    assert there.bench.store.fsck().problems == ()


def test_a_snapshot_that_nobody_has(machine: Callable[..., Any]) -> None:
    here = machine("here")
    unknown = SnapshotId("0" * 64)
    with pytest.raises(RemoteObjectMissing, match="ramify push"):
        pull(here.remote, [unknown])
    with pytest.raises(SnapshotNotFound):
        push(here.remote, [unknown])


@pytest.mark.parametrize("how", ["removed", "cut", "changed"])
def test_a_damaged_object_is_found_and_replaced_by_another_push(
    machine: Callable[..., Any], tmp_path: Path, objects: Callable[[str], list[str]], how: str
) -> None:
    here, there = machine("here"), machine("there")
    _, state = states(here.bench)
    push(here.remote, [state.id])
    (large,) = (
        tmp_path / "bucket" / name
        for name in objects("objects")
        if (tmp_path / "bucket" / name).stat().st_size > SMALL
    )
    data = large.read_bytes()
    if how == "removed":
        large.unlink()
    else:
        large.write_bytes(data[:-1] if how == "cut" else data[:-9] + b"different")
    kind = RemoteObjectMissing if how == "removed" else RemoteObjectAltered
    with pytest.raises(kind, match="`ramify fsck --remote --repair` marks what is damaged; then push it again"):
        pull(there.remote, [state.id])
    with pytest.raises(SnapshotNotFound):
        there.bench.store.get(state.id)
    assert there.bench.store.fsck().problems == ()
    report = check(here.remote, repair=True)
    assert report.lost == (state.id,) and report.status == (2 if how == "removed" else 3)
    assert [problem.name for problem in report.problems] == [f"objects/{large.name}"]
    done = push(here.remote, [state.id])
    assert done.snapshots == (state.id,) and done.objects == 1  # only what was damaged
    assert pull(there.remote, [state.id]).snapshots == (state,)
    assert check(here.remote).lost == ()


def test_an_altered_record(machine: Callable[..., Any], tmp_path: Path, objects: Callable[[str], list[str]]) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    push(here.remote, [base.id])
    record = tmp_path / "bucket" / objects("snapshots")[0]
    record.write_bytes(record.read_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(RemoteObjectAltered, match=str(base.id)):
        pull(there.remote, [base.id])


@pytest.mark.parametrize(
    "place",
    [
        *(["objects/0", -1, 5], ["objects/0", 0, -1], ["objects/0", 0, 1 << 70], ["objects/0", 1 << 70, 5]),
        *(["objects/0", 0, math.inf], ["objects/0", "0", 5], ["objects/0", 0], ["objects/../../x", 0, 5]),
        *(["/etc/passwd", 0, 5], ["a//b", 0, 5], [None, 0, 5], None),
    ],
    ids=str,
)
def test_a_record_that_names_a_senseless_place_is_altered(
    machine: Callable[..., Any], tmp_path: Path, objects: Callable[[str], list[str]], place: object
) -> None:
    """Though its check is right."""
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    push(here.remote, [base.id])
    record = tmp_path / "bucket" / objects("snapshots")[0]
    fields = json.loads(record.read_bytes())
    del fields["check"]
    fields["places"] = dict.fromkeys(fields["places"], place)
    record.write_bytes(canonical_json({**fields, "check": digest_bytes(canonical_json(fields))}))
    with pytest.raises(RemoteObjectAltered, match="fsck --remote --repair"):
        pull(there.remote, [base.id])
    collect(here.remote, {base.id})
    assert [problem.damage for problem in check(here.remote, repair=True).problems] == [RemoteDamage.ALTERED]
    assert push(here.remote, [base.id]).snapshots == (base.id,)
    assert pull(there.remote, [base.id]).snapshots == (base,)


def test_damage_of_the_local_store_is_not_uploaded(
    machine: Callable[..., Any], objects: Callable[[str], list[str]]
) -> None:
    from ramify.fork_engine.errors import SnapshotCorrupt

    here = machine("here")
    base = here.bench.base({"a": "1", "b": os.urandom(SMALL)})
    (layer,) = here.bench.store.lower_dirs(base)
    (layer / "b").write_bytes(b"x" * SMALL)
    with pytest.raises(SnapshotCorrupt):
        push(here.remote, [base.id])
    assert objects("snapshots") == objects("objects") == []


def test_a_slow_push_reads_the_marks_again(machine: Callable[..., Any]) -> None:
    """What was condemned while it uploaded is uploaded once more."""
    here = machine("here", grace_s=100.0)
    base, state = states(here.bench)
    push(here.remote, [base.id])
    (known,) = {at.object for at in here.remote.places.values()}
    times = iter([0.0, 60.0, 60.0, 61.0])

    def timer() -> float:
        now = next(times)
        if now == 60.0:
            here.remote.condemn(known)
        return now

    done = push(here.remote, [state.id], timer=timer)
    (record,) = here.remote.find(state.id)
    assert done.objects == 3 and known not in record.objects
    there = machine("there")
    assert replace(pull(there.remote, [state.id]).snapshots[0]) == state
