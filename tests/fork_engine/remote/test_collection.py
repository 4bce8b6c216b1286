"""Collections delete what no home names, after the grace, and nothing that another home is about to name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ramify.fork_engine import crash_points
from ramify.fork_engine.remote.check import check
from ramify.fork_engine.remote.collection import collect
from ramify.fork_engine.remote.pull import pull
from ramify.fork_engine.remote.push import push


def test_unnamed_objects_go_in_steps(
    machine: Callable[..., Any], objects: Callable[[str], list[str]], age: Callable[[], None]
) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    kept, gone = here.bench.after(base, {"b": "2"}), here.bench.after(base, {"c": "3"})
    push(here.remote, [kept.id])
    push(here.remote, [gone.id])
    young = collect(here.remote, {kept.id})
    assert (young.unnamed, young.condemned, young.deleted) == (0, 0, 0)  # a push may be running
    age()
    assert collect(here.remote, {kept.id}, dry_run=True).unnamed == 1
    first = collect(here.remote, {kept.id})
    assert (first.unnamed, first.condemned, first.deleted, first.waiting) == (1, 1, 0, 1)
    age()
    second = collect(here.remote, {kept.id})
    assert (second.deleted, second.condemned) == (1, 1)  # the record; then its object is free
    age()
    assert collect(here.remote, {kept.id}).deleted == 1
    assert (
        len(objects("objects")) == len(objects("snapshots")) == 1 and objects("condemned") == objects("clock") == []
    )
    assert check(here.remote).problems == ()
    assert pull(there.remote, [kept.id]).snapshots == (kept,)


def test_another_home_keeps_what_it_names(
    machine: Callable[..., Any], objects: Callable[[str], list[str]], age: Callable[[], None]
) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    push(here.remote, [base.id])
    pull(there.remote, [base.id])
    for _ in range(4):
        age()
        collect(here.remote, set())
    assert len(objects("snapshots")) == len(objects("objects")) == 1
    for _ in range(4):
        age()
        collect(there.remote, set())
    assert objects("snapshots") == objects("objects") == objects("names") == []


def test_a_push_does_not_rely_on_what_is_condemned(machine: Callable[..., Any], age: Callable[[], None]) -> None:
    """The object is deleted after the push, as a collection on another machine would, and nothing is lost."""
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    push(here.remote, [base.id])
    age()
    collect(here.remote, set())  # the record is condemned
    done = push(here.remote, [base.id])
    assert done.snapshots == (base.id,)  # a record of its own, under another name
    (old,) = here.remote.condemned()
    for _ in range(3):
        age()
        collect(here.remote, {base.id})
    assert old not in here.remote.record_names(base.id)
    assert pull(there.remote, [base.id]).snapshots == (base,)


def test_a_record_that_was_written_before_the_end_of_the_grace_keeps_a_condemned_object(
    machine: Callable[..., Any], age: Callable[[], None]
) -> None:
    """A push on another machine relied on the object just before it was condemned."""
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    push(here.remote, [base.id])
    pull(there.remote, [base.id])
    child = there.bench.after(base, {"b": "2"})
    condemned: list[str] = []

    def condemn_before_the_record(name: str) -> None:
        if name == "uploaded":  # the marks were read before
            condemned.extend(at.object for at in here.remote.places.values())
            here.remote.condemn(condemned[0])

    crash_points.at = condemn_before_the_record
    try:
        push(there.remote, [child.id])
    finally:
        crash_points.at = None
    for _ in range(4):
        age()
        collect(here.remote, set())
        collect(there.remote, {child.id})
    assert condemned[0] in next(iter(there.remote.find(child.id))).objects
    assert check(there.remote).lost == () and check(there.remote).problems == ()


def test_leftovers_of_a_killed_push_go(
    machine: Callable[..., Any], objects: Callable[[str], list[str]], age: Callable[[], None]
) -> None:
    here = machine("here")
    here.remote.bucket.put("objects/left", b"half a push")
    for _ in range(2):
        age()
        collect(here.remote, set())
    assert objects("objects") == objects("condemned") == []


def test_files_that_another_program_left_are_in_the_way_of_nothing(
    machine: Callable[..., Any], tmp_path: Path, objects: Callable[[str], list[str]]
) -> None:
    """As a file manager, or a program that keeps folders in step, leaves them."""
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1"})
    push(here.remote, [base.id])
    bucket = tmp_path / "bucket"
    (record,) = objects("snapshots")
    (name,) = objects("names")
    for place in (
        "objects",
        "snapshots",
        Path(record).parent,
        "names",
        Path(name).parent,
        "runs/r",
        "claims",
        "runs",
    ):
        (bucket / place).mkdir(parents=True, exist_ok=True)
        (bucket / place / ".DS_Store").write_text("x")
    (bucket / "runs/r" / "copy of 00000001.json").write_text("{}")
    collect(here.remote, {base.id})
    assert check(here.remote).lost == ()
    assert push(here.remote, [base.id]).known == (base.id,)
    assert pull(there.remote, [base.id]).snapshots == (base,)
    (bucket / record).unlink()
    assert push(here.remote, [base.id]).snapshots == (base.id,)
