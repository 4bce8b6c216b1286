"""What a garbage collection deletes, what it keeps, and that `ramify fsck` and recovery agree with it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import reuse_app
from hypothesis import given
from hypothesis import strategies as st

from ramify import Runtime, paths
from ramify.fork_engine import crash_points
from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Processes, ProcessTier, Snapshot, SnapshotId
from ramify.runtime.records import CheckpointId
from ramify.runtime.store.reader import Reader, at_once, reading
from ramify.runtime.worlds.garbage_collection import (
    Candidate,
    Collected,
    EvictionMarks,
    LiveStates,
    choose,
    collect,
    histories,
)
from ramify.sandboxes.host.agent_world import AgentWorld


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.touch()
    monkeypatch.setattr(reuse_app, "LOG", path)
    return path


async def gc(
    runtime: Runtime,
    budget: int | None = None,
    *,
    dry_run: bool = False,
    grace_s: float = 0,
    in_bucket: Collection[SnapshotId] = (),
) -> Collected:
    home = runtime.home
    pins, marks = Pins(paths.locks(home)), EvictionMarks(paths.evicted(home))
    how = {"budget": budget, "dry_run": dry_run, "grace_s": grace_s, "in_bucket": in_bucket}
    return await collect(runtime.store, runtime.snapshots, pins, marks, **how)


async def fsck_agrees(runtime: Runtime) -> None:
    expected = await runtime.store.live_snapshots() - EvictionMarks(paths.evicted(runtime.home)).all()
    report = runtime.snapshots.fsck(expected=expected)
    assert report.status == 0 and not report.problems, report.problems


async def test_runs_are_read_together_without_their_results(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home may have thousands of runs, with results of any size, and nobody commits a snapshot meanwhile."""
    asked, whole = list[str](), Reader._rows

    def rows(reader: Reader, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        asked.append(query)
        return whole(reader, query, values)

    monkeypatch.setattr(Reader, "_rows", rows)
    counts = []
    for _ in range(3):
        await runtime.run(reuse_app.tools, "a", workspace=workspace)
        asked.clear()
        await gc(runtime)
        counts.append(len(asked))
    assert counts == counts[:1] * 3
    with reading(runtime.store.address) as reader:
        assert {row.result_json for one in at_once(histories(reader)) for row in one.ops} <= {None, "null"}


async def test_snapshots_that_rows_name_are_kept(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(reuse_app.tools, "a", workspace=workspace)
    before = set(runtime.snapshots.present())
    (workspace / "more").touch()
    unnamed = runtime.snapshots.import_tree(workspace).snapshot
    planned = await gc(runtime, dry_run=True)
    assert planned.snapshots == 1 and unnamed.id in runtime.snapshots.present()
    assert (await gc(runtime)).snapshots == 1
    assert set(runtime.snapshots.present()) == before
    await fsck_agrees(runtime)


async def test_young_snapshots_are_kept(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(reuse_app.builds, "a", workspace=workspace)
    (workspace / "more").touch()
    unnamed = runtime.snapshots.import_tree(workspace).snapshot
    assert (await gc(runtime, grace_s=60)).snapshots == 0
    assert unnamed.id in runtime.snapshots.present()


async def test_under_a_budget_the_first_and_last_state_of_a_run_are_kept(
    runtime: Runtime, workspace: Path, log: Path
) -> None:
    wanted = await runtime.run(reuse_app.tools, "a", workspace=workspace)
    run = await runtime.record()
    last = (await runtime.store.checkpoints(run.id))[-1]
    done = await gc(runtime, budget=0)
    assert not done.within_budget
    assert {run.base_snapshot, last.snapshot_id} <= set(runtime.snapshots.present())
    await fsck_agrees(runtime)
    assert await runtime.resume(run.id) == wanted
    assert await runtime.run(reuse_app.tools, "a", workspace=workspace) == wanted


async def test_under_a_budget_what_the_bucket_has_goes_unless_a_run_that_can_continue_names_it(
    runtime: Runtime, workspace: Path
) -> None:
    await runtime.run(reuse_app.tools, "a", workspace=workspace)
    every = set(runtime.snapshots.present())
    assert (await gc(runtime, budget=1 << 40, in_bucket=every)).evicted == ()  # all fits
    (workspace / "more").touch()
    waiting = await runtime.create(reuse_app.tools, ("b",), {}, workspace=workspace)
    await gc(runtime, budget=0, in_bucket=every | {waiting.base_snapshot})
    assert set(runtime.snapshots.present()) == {waiting.base_snapshot}
    await fsck_agrees(runtime)


async def test_what_was_fetched_again_counts_as_held(runtime: Runtime, workspace: Path) -> None:
    (workspace / "large").write_text("x" * 5000)
    await runtime.run(reuse_app.tools, "a", workspace=workspace)
    base = (await runtime.record()).base_snapshot
    await gc(runtime, budget=0, in_bucket=set(runtime.snapshots.present()))
    assert (await gc(runtime, dry_run=True)).held == 0
    assert runtime.snapshots.import_tree(workspace).snapshot.id == base
    assert (await gc(runtime, dry_run=True)).held >= 5000
    await gc(runtime, budget=0, in_bucket={base})
    assert base not in runtime.snapshots.present()


async def test_a_run_that_can_continue_keeps_all_states(runtime: Runtime, workspace: Path) -> None:
    await runtime.run(reuse_app.tools, "a", workspace=workspace)
    run = await runtime.record()
    first = (await runtime.store.checkpoints(run.id))[0]
    reuse_app.LOG = None  # the tool fails now
    with pytest.raises(Exception, match="AssertionError"):
        await runtime.resume(run.id, back_to=CheckpointId(first.id))
    before = set(runtime.snapshots.present())
    assert (await gc(runtime, budget=0)).evicted == ()
    assert set(runtime.snapshots.present()) == before


class Killed(BaseException):
    """Stands for a SIGKILL at a crash point: nothing after it is executed."""


async def test_a_collection_killed_anywhere_leaves_a_consistent_store(
    runtime: Runtime, workspace: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = await runtime.run(reuse_app.tools, "a", workspace=workspace)
    (workspace / "more").touch()
    unnamed = runtime.snapshots.import_tree(workspace).snapshot
    (workspace / "more").unlink()
    killed: list[str] = []
    for late in itertools.count():  # one crash point later each time, until it reaches the end
        left = itertools.count(late, -1)

        def kill(name: str, left: Iterator[int] = left) -> None:
            if next(left) == 0:
                killed.append(name)
                raise Killed

        monkeypatch.setattr(crash_points, "at", kill)
        try:
            done = await gc(runtime, budget=0)
        except Killed:
            monkeypatch.setattr(crash_points, "at", None)
            await fsck_agrees(runtime)
        else:
            break
    assert {"marked", "forgotten", "removed"} <= set(killed)
    assert unnamed.id not in runtime.snapshots.present()
    assert done.evicted == ()  # states that killed collections had marked are not chosen again
    monkeypatch.setattr(crash_points, "at", None)
    await fsck_agrees(runtime)
    assert await runtime.run(reuse_app.tools, "a", workspace=workspace) == wanted


async def test_runs_continue_during_a_collection(runtime: Runtime, workspace: Path) -> None:
    async def collecting() -> None:
        for _ in range(5):
            await asyncio.to_thread(_gc_elsewhere, runtime.home)

    said, _ = await asyncio.gather(runtime.run(reuse_app.tools_at_once, workspace=workspace), collecting())
    assert said == ["x\nx\nyes\n", "x\nx\nyes\n", "y\ny\nyes\n"]
    await fsck_agrees(runtime)


IN_A_COLLECTION: ContextVar[bool] = ContextVar("in a collection", default=False)


@pytest.mark.parametrize("late", [0, 2, 5])
async def test_a_collection_killed_beside_a_run_deletes_nothing_that_it_needs(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    await runtime.run(reuse_app.tools, "a", workspace=workspace)
    left = itertools.count(late, -1)

    def kill(_: str) -> None:
        if IN_A_COLLECTION.get() and next(left) == 0:
            raise Killed

    def collecting() -> None:
        IN_A_COLLECTION.set(True)
        with suppress(Killed):
            _gc_elsewhere(runtime.home)

    monkeypatch.setattr(crash_points, "at", kill)
    running = runtime.run(reuse_app.tools_at_once, workspace=workspace)
    said, _ = await asyncio.gather(running, asyncio.to_thread(collecting))
    monkeypatch.setattr(crash_points, "at", None)
    assert said == ["x\nx\nyes\n", "x\nx\nyes\n", "y\ny\nyes\n"]
    await fsck_agrees(runtime)


@pytest.mark.parametrize("seal_s", [0.0, 1.0])
async def test_the_state_of_a_running_step_is_kept(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch, seal_s: float
) -> None:
    """Its world was sealed for a command that got no row, and the step runs longer than the grace period. Also if the
    command was cancelled while the world was sealed for it: the seal comes to its end all the same."""
    seal = AgentWorld._seal_with_processes

    async def slow(world: AgentWorld, *state: Any) -> Snapshot:
        await asyncio.sleep(seal_s)
        return await seal(world, *state)

    monkeypatch.setattr(AgentWorld, "_seal_with_processes", slow)
    monkeypatch.setattr(reuse_app, "MEANWHILE", [lambda: _gc_elsewhere(runtime.home)])
    assert await runtime.run(reuse_app.gives_up, workspace=workspace) == ["before\n", "before", "hello.txt"]
    await fsck_agrees(runtime)
    pins = Pins(paths.locks(runtime.home))
    with pins.collecting():
        assert pins.kept() == set()


def _gc_elsewhere(home: Path) -> None:
    async def work() -> None:
        async with Runtime(home=home, sandbox="copy") as other:
            await gc(other, budget=0)

    asyncio.run(work())


async def test_what_snapshots_keep_of_processes_counts(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store")
    (tmp_path / "work").mkdir()
    base = store.import_tree(tmp_path / "work").snapshot

    def sealed(name: str, like: str, shared: Path | None) -> Snapshot:
        dump = tmp_path / name
        dump.mkdir()
        (dump / "own").write_bytes(name.encode() * 1000)
        if shared is None:
            (dump / "pages").write_bytes(b"p" * 100_000)
        else:
            (dump / "pages").hardlink_to(shared)
        image = store.adopt_process_image(dump, like)
        ran = Processes(ProcessTier.REPL, shell=store.put_blob(name.encode() * 500), image=image)
        return store.seal_tree(tmp_path / "work", base, env={}, env_unset=(), cwd="", processes=ran)

    first = sealed("1", "", None)
    second = sealed("2", first.processes.image, store.image_dir(first.processes.image) / "pages")
    pins, marks = Pins(tmp_path / "locks"), EvictionMarks(tmp_path / "evicted")

    async def dry_run(*named: Snapshot) -> Collected:
        ids = {one.id for one in named}
        return await collect(None, store, pins, marks, dry_run=True, grace_s=0, named=lambda: ids)

    held = {
        count: (await dry_run(*snapshots)).held for count, snapshots in enumerate([(), (first,), (first, second)])
    }
    assert held == {0: 0, 1: 101_500, 2: 103_000}  # files that process images share by hard links count once
    assert (await dry_run(first)).bytes == 1500 and (await dry_run()).bytes == 103_000


object_names = st.sampled_from(list("abcdef"))


@given(
    stacks=st.lists(st.lists(object_names, min_size=1, max_size=4, unique=True), min_size=1, max_size=6),
    seconds=st.lists(st.floats(0, 100), min_size=6, max_size=6),
    roots=st.integers(0, 2),
    budget=st.integers(0, 40),
)
def test_the_choice_meets_the_budget_or_evicts_all_candidates(
    stacks: list[list[str]], seconds: list[float], roots: int, budget: int
) -> None:
    ids = [SnapshotId(str(at)) for at in range(len(stacks))]
    layers = dict(zip(ids, stacks, strict=True))
    sizes = {name: 2 ** (at % 3) for at, name in enumerate("abcdef")}
    alive = LiveStates(
        roots=set(ids[:roots]),
        candidates={id: Candidate(id, ids[0], seconds[at]) for at, id in enumerate(ids) if at >= roots},
    )
    gone = {one.id for one in choose(alive, layers, sizes, budget)}
    assert gone <= alive.candidates.keys()
    held = {layer for id in alive.all - gone for layer in layers[id]}
    least = {layer for id in alive.roots for layer in layers[id]}
    assert sum(sizes[one] for one in held) <= budget or held == least
    assert sum(one.frees for one in choose(alive, layers, sizes, budget)) == sum(
        sizes[one] for one in {layer for stack in stacks for layer in stack} - held
    )


def test_in_a_linear_run_a_budget_frees_no_files_only_processes() -> None:
    """The last state stands on the layers of all others."""
    states = [SnapshotId(str(number)) for number in range(5)]
    layers = {state: [f"layer {at}" for at in range(number + 1)] for number, state in enumerate(states)}
    alive = LiveStates({states[0], states[-1]}, {state: Candidate(state, states[0], 1.0) for state in states[1:-1]})
    sizes = dict.fromkeys(layers[states[-1]], 100) | {"process image": 7}
    assert choose(alive, layers, sizes, 0) == []
    (gone,) = choose(alive, {**layers, states[2]: [*layers[states[2]], "process image"]}, sizes, 0)
    assert (gone.id, gone.frees) == (states[2], 7)


def test_the_cheapest_state_per_byte_is_evicted_first() -> None:
    cheap, dear, base = (SnapshotId(name) for name in ("cheap", "dear", "base"))
    layers = {base: ["0"], cheap: ["0", "1"], dear: ["0", "2"]}
    sizes = {"0": 5, "1": 10, "2": 10}
    alive = LiveStates({base}, {cheap: Candidate(cheap, base, 1.0), dear: Candidate(dear, base, 50.0)})
    (gone,) = choose(alive, layers, sizes, budget=15)
    assert (gone.id, gone.frees, gone.seconds) == (cheap, 10, 1.0)
