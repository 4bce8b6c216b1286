"""Tier (a): whole processes are dumped. They continue in every fork from the instant of the seal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.agent.checkpointing import criu_runner
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host import criu

Out = Callable[[World, str], Awaitable[str]]
Until = Callable[[World, str], Awaitable[None]]
pytestmark = [pytest.mark.linux_ns, pytest.mark.criu]

COUNTER = """
import itertools, time
held = bytearray(b"x" * 10_000_000)
for n in itertools.count():
    with open("count", "a") as file: file.write(f"{n} {len(held)}\\n")
    time.sleep(0.005)
"""


async def test_a_shell_its_jobs_and_a_program_go_on_in_every_fork(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    (world.path / "counter.py").write_text(COUNTER)
    await out(world, "plain=kept; cd package; exec 5>held; echo first >&5; cd ..; sleep 1000 & python3 counter.py &")
    await until(world, "[ $(wc -l < count) -gt 10 ]")
    sealed = await world.seal()
    assert sealed.processes.tier is ProcessTier.CRIU
    assert "share the open file" in sealed.processes.reason  # which Ramify's own images cannot hold
    assert (sealed.processes.dropped, sealed.content_key) == (0, "")
    forks = await asyncio.gather(*(namespaces.materialise(sealed, dumpable) for _ in range(3)))
    begun = []
    for live in (world, *forks):
        assert await live.background_processes() == 2
        told = await out(live, "echo $plain; jobs | wc -l; echo second >&5; cat package/held")
        assert told.split() == ["kept", "2", "first", "second"]
        begun.append(int(await out(live, "wc -l < count")))
        await until(live, f"[ $(wc -l < count) -gt {begun[-1] + 5} ]")
        lines = (live.path / "count").read_text().splitlines()
        assert lines == [f"{n} 10000000" for n in range(len(lines))]  # no line twice or missing
    await out(forks[0], "kill %1 %2; wait")
    assert await forks[0].background_processes() == 0
    assert await forks[1].background_processes() == 2


async def test_criu_findings_about_the_kernel_are_kept(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, store: SnapshotStore
) -> None:
    """CRIU itself keeps that only on a tmpfs, silently: each dump and restore would otherwise take 15 ms longer."""
    world = await namespaces.materialise(base, dumpable)
    assert (await world.run("sleep 1000 | sleep 1000 &")).ok  # a pipe, which Ramify's own images cannot hold
    first = await world.seal()
    fork = await namespaces.materialise(first, dumpable)
    second = await fork.seal()
    for sealed in (first, second):
        assert (
            (store.image_dir(sealed.processes.image) / criu_runner.FEATURES)
            .read_bytes()
            .startswith(criu_runner._boot_id())
        )


async def test_a_fork_of_a_fork_and_a_rollback(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "level=1; sleep 1000 &")
    first = await world.seal()
    fork = await namespaces.materialise(first, dumpable)
    await out(fork, "level=2; (setsid sleep 2000 &) ; echo x > file")
    second = await fork.seal()
    assert second.processes.tier.whole
    deeper = await namespaces.materialise(second, dumpable)
    assert await out(deeper, "echo $level; cat file; pgrep -c sleep") == "2\nx\n2\n"
    await deeper.rollback(first)
    assert (await out(deeper, "echo $level; pgrep -c sleep")) == "1\n1\n"
    assert not (deeper.path / "file").exists()
    await deeper.rollback(base)
    assert await deeper.background_processes() == 0


async def test_stopped_processes_stay_stopped(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out, until: Until
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 & kill -STOP $!; sleep 1001 &")
    states = "set -- $(for pid in $(jobs -p); do cut -d' ' -f3 /proc/$pid/stat; done)"
    await until(world, f'{states}; [ "$*" = "T S" ]')  # a stop or a start takes effect some time after its command
    sealed = await world.seal()
    fork = await namespaces.materialise(sealed, dumpable)
    for live in (world, fork):
        await until(live, f'{states}; [ "$2" = S ]')
        assert await out(live, f'{states}; echo "$*"') == "T S\n"


async def test_without_criu_the_record_says_why(
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    dumpable: WorldSpec,
    out: Out,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for unlike, reason in (
        (spec, "make it with dumpable=True"),
        (replace(dumpable, secrets={"A": "secret"}), "secrets"),
    ):
        world = await namespaces.materialise(base, unlike)
        await out(world, "sleep 1000 &")
        kept = (await world.seal()).processes
        assert (kept.tier, kept.dropped) == (ProcessTier.DROPPED, 1)
        assert reason in kept.reason
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 &")
    sealed = await world.seal()
    with pytest.raises(WorldStartFailed, match="dumpable=True"):
        await namespaces.materialise(sealed, spec)
    monkeypatch.setenv("RAMIFY_CRIU", str(tmp_path / "none"))
    with pytest.raises(WorldStartFailed, match="make criu"):
        await namespaces.materialise(sealed, dumpable)
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 &")
    assert "make criu" in (await world.seal()).processes.reason


async def test_processes_that_cannot_be_dumped_run_on_and_the_record_says_so(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 & sleep 1001 &")
    await world.run("kill -9 $$")  # its jobs have no parent now
    sealed = await world.seal()
    assert (sealed.processes.tier, sealed.processes.dropped) == (ProcessTier.DROPPED, 2)
    assert "do not descend from the shell" in sealed.processes.reason
    assert await world.background_processes() == 2


async def test_an_incomplete_image_starts_no_world(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 | sleep 1000 &")
    sealed = await world.seal()
    folder = store.image_dir(sealed.processes.image)
    folder.chmod(0o700)
    (folder / "pstree.img").unlink()
    with pytest.raises(WorldStartFailed, match="criu restore"):  # at the latest when the first command waits for it
        await (await namespaces.materialise(sealed, dumpable)).run("true")


def test_the_first_error_of_a_log(tmp_path: Path) -> None:
    assert "no log" in criu_runner._first_error(tmp_path / "log")
    (tmp_path / "log").write_text("Warn x\nError (criu/a.c:1): one\nError (criu/b.c:2): two\n")
    assert criu_runner._first_error(tmp_path / "log") == "Error (criu/a.c:1): one"
    (tmp_path / "log").write_text("Error (criu/proc_parse.c:353): Can't open mapped [/bin/x]: No such file\n")
    assert "RAMIFY_HOME" in criu_runner._first_error(tmp_path / "log")


def test_the_folder_of_criu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMIFY_CRIU", str(tmp_path))
    assert (criu.folder(), criu.command()) == (tmp_path, ())
    monkeypatch.delenv("RAMIFY_CRIU")
    monkeypatch.setenv("RAMIFY_HOME", str(tmp_path))
    assert criu.folder() == tmp_path / "criu"


async def test_a_restore_leaves_the_image_as_it_was(
    namespaces: NamespaceBackend, base: Snapshot, dumpable: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await namespaces.materialise(base, dumpable)
    await out(world, "sleep 1000 &")
    sealed = await world.seal()
    folder = store.image_dir(sealed.processes.image)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert not any(name.startswith("stats") or name.endswith(".log") for name in before)
    fork = await namespaces.materialise(sealed, dumpable)
    await out(fork, "true")
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
