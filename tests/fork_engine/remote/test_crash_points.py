"""Pushes, pulls and remote collections are killed at every point. Both stores stay intact, and the next try
succeeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ramify.fork_engine import crash_points
from ramify.fork_engine.remote.check import check
from ramify.fork_engine.remote.pull import pull
from ramify.fork_engine.remote.push import push
from ramify.fork_engine.store import SnapshotStore

KILLED = """
import json, os, sys
from pathlib import Path
from ramify.fork_engine import crash_points, store_folder
from ramify.fork_engine.remote import bucket
from ramify.fork_engine.remote.collection import collect
from ramify.fork_engine.remote.pull import pull
from ramify.fork_engine.remote.push import push
from ramify.fork_engine.remote.remote_store import RemoteStore
from ramify.fork_engine.store import SnapshotStore
store_folder.sync_file_system = bucket.sync_file_system = lambda _: None

def run(home, ids, last):
    passed = 0
    def at(name):
        nonlocal passed
        passed += 1
        if passed == last:
            print(name, flush=True)
            os._exit(9)
    with RemoteStore(SnapshotStore(Path(home) / "store"), Path(home) / "remote") as remote:
        crash_points.at = at
        {"push": push, "pull": pull, "collect": collect}[sys.argv[1]](remote, ids)

for last, (home, ids) in enumerate(json.loads(sys.argv[2]), 1):
    if (child := os.fork()) == 0:  # nothing was opened yet in this process: obstore has no threads here
        try:
            run(home, ids, last)
        finally:
            sys.stdout.flush()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        print("end", flush=True)
        break
    assert status == 9, status
"""


def killed(operation: str, tries: Sequence[tuple[Path, list[str]]]) -> list[str]:
    """Run the operation for each of `tries`, killed at its first point, its second one, and so on. Returns the names
    of the points; the last one is "end", and the tries after it are not made."""
    spelled = json.dumps([(os.fspath(home), ids) for home, ids in tries])
    done = subprocess.run([sys.executable, "-c", KILLED, operation, spelled], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = done.stdout.split("\n")[:-1]
    assert points[-1] == "end", "it never ended"
    assert set(points) <= {*crash_points.POINTS, "end"}
    return points


def test_a_killed_push_leaves_nothing_that_a_pull_would_miss(machine: Callable[..., Any], tmp_path: Path) -> None:
    here, there = machine("here"), machine("there")
    base = here.bench.base({"a": "1", "large": os.urandom(5 << 20)})
    new = [[here.bench.after(base, {"b": f"{last} {number}"}).id for number in range(2)] for last in range(12)]
    points = killed("push", [(tmp_path / "here", ids) for ids in new])
    assert set(points) == {"named", "uploaded", "recorded", "end"}
    assert check(here.remote).problems == () and here.bench.store.fsck().problems == ()
    every = [id for ids in new for id in ids]
    push(here.remote, every)
    assert check(here.remote).lost == ()
    assert len(pull(there.remote, every).snapshots) == len(every) and there.bench.store.fsck().problems == ()


def test_a_killed_pull_is_repeated(machine: Callable[..., Any], tmp_path: Path) -> None:
    here = machine("here")
    base = here.bench.base({"a": "1", "d/b": "2"})
    state = here.bench.after(base, {"c": "3"})
    push(here.remote, [state.id])
    others = [machine(f"there{last}") for last in range(20)]
    points = killed("pull", [(there.bench.folder, [state.id]) for there in others])
    made = {"written", "noted", "placed", "snapshot", "flushed", "cleared"}
    assert set(points) == {"named", "fetched", "end", *made}
    for point, there in zip(points, others, strict=False):
        fresh = SnapshotStore(there.bench.store.root)
        fresh.remove_temporary_leftovers()
        assert fresh.fsck().problems == (), point
        assert pull(there.remote, [state.id]).snapshots == (state,)
        assert there.bench.texts(state) == {"a": "1", "d/b": "2", "c": "3"}


def test_a_killed_collection_deletes_nothing_that_is_named(
    machine: Callable[..., Any], objects: Callable[[str], list[str]], age: Callable[[], None]
) -> None:
    here, there = machine("here"), machine("there")
    bases = [here.bench.base({"a": str(number)}) for number in range(2)]
    for base in bases:
        push(here.remote, [base.id])
    keep = [bases[1].id]
    points = set[str]()
    for _ in range(4):  # a name, a record and an object go one after the other
        age()
        points |= set(killed("collect", [(here.bench.folder, list(keep))] * 12))
        assert check(here.remote).problems == ()
    assert points == {"unnamed", "condemned", "swept", "end"}
    assert len(objects("snapshots")) == len(objects("objects")) == 1 and objects("condemned") == []
    assert pull(there.remote, keep).snapshots == (bases[1],)
