"""Checkpoints of a world at work: every restore is one instant, by its programs' own invariants.

Each program holds in memory what it has written to files. A restore that mixes the memory of one instant with the
files of another breaks its numbering, though a database that is checked for damage alone would say that all is well.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import ptrace
from tests.samples import PATIENT

pytestmark = pytest.mark.linux_ns
HUNDRED = pytest.mark.skipif(not PATIENT, reason="takes minutes: RAMIFY_SLOW=1 runs it")

BANK = """
import itertools, sqlite3, time
db = sqlite3.connect("bank.db", isolation_level=None)
db.execute("pragma journal_mode=wal")
for name in ("debit", "credit"):
    db.execute(f"create table {name} (n integer primary key)")
for n in itertools.count():
    db.execute("begin")
    db.execute("insert into debit values (?)", (n,))  # fails where memory lags behind the file
    db.execute("insert into credit values (?)", (n,))
    db.execute("commit")
    time.sleep(0.0005)
"""
APPENDER = """
import itertools, time
log = open("log", "a", buffering=1)
for n in itertools.count():
    log.write(f"{n}\\n")
    time.sleep(0.0005)
"""
CHECK = """
import sqlite3
db = sqlite3.connect("bank.db")
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
debit, credit = ([n for (n,) in db.execute(f"select n from {name} order by n")] for name in ("debit", "credit"))
assert debit == credit == list(range(len(debit))), (debit[-3:], credit[-3:], len(debit))
lines = open("log").read().splitlines()
assert lines == [str(n) for n in range(len(lines))]
print(len(debit), len(lines))
"""


async def at_work(world: World) -> None:
    for name, text in (("bank.py", BANK), ("appender.py", APPENDER), ("check.py", CHECK)):
        (world.path / name).write_text(text)
    assert (await world.run("python3 bank.py 2>bank.err & python3 appender.py 2>appender.err &")).ok
    assert (await world.run("until [ -s log ] && [ -s bank.db ]; do sleep 0.01; done; sleep 0.1")).ok


async def progress(world: World) -> tuple[int, int]:
    """Stop the programs at arbitrary instructions, and check the invariants of their data."""
    stopped = await world.run(
        "kill -STOP %1 %2; sleep 0.01; cat bank.err appender.err; kill -KILL %1; python3 check.py"
    )
    assert stopped.ok, stopped.stdout + stopped.stderr
    rows, lines = map(int, stopped.stdout.split())
    return rows, lines


async def checkpoints(backend: NamespaceBackend, base: Snapshot, spec: WorldSpec, times: int) -> None:
    spec = replace(spec, dumpable=True)
    world = await backend.materialise(base, spec)
    await at_work(world)
    repl = await world.python()
    await repl.run("n, file = 0, open('session', 'w', buffering=1)")
    for turn in range(1, times + 1):
        assert (await repl.run("n += 1; print(n, file=file); n")).value == str(turn)
        sealed = await world.seal()
        assert sealed.processes.tier.whole, sealed.processes.reason
        fork = await backend.materialise(sealed, spec)
        session = await fork.python()
        assert (await session.run("n += 1; print(n, file=file); n")).value == str(turn + 1)
        assert (fork.path / "session").read_text().split() == [str(n) for n in range(1, turn + 2)]
        at_the_seal = Path(fork.path, "log").read_bytes().count(b"\n")
        await asyncio.sleep(0.02)  # let them work
        rows, lines = await progress(fork)
        assert rows > 0
        assert lines >= at_the_seal
        await fork.close()


async def moves(backend: NamespaceBackend, base: Snapshot, spec: WorldSpec, times: int) -> None:
    """Fork and roll back at random among the last states: each time the session and the programs go on from there."""
    spec, chance = replace(spec, dumpable=True), random.Random(times)
    world = await backend.materialise(base, spec)
    await at_work(world)
    await (await world.python()).run("n, file = 0, open('session', 'w', buffering=1)")
    known: list[tuple[Snapshot, int]] = []
    n = 0
    for _ in range(times):
        assert (await (await world.python()).run("n += 1; print(n, file=file); n")).value == str(n + 1)
        sealed = await world.seal(flush=False)
        assert sealed.tier is ProcessTier.TREE, sealed.processes.reason
        known.append((sealed, n + 1))
        to, n = chance.choice(known[-3:])
        if chance.random() < 0.5:
            await world.rollback(to)
        else:
            child = await backend.materialise(to, spec)
            await world.close()
            world = child
        assert (world.path / "session").read_text().split() == [str(number) for number in range(1, n + 1)]
        await asyncio.sleep(chance.random() * 0.05)
    rows, lines = await progress(world)
    assert rows > 0
    assert lines > 0


LEDGER = """
import sqlite3
db = sqlite3.connect("ledger.db", isolation_level=None)
db.execute("pragma journal_mode=memory")  # others look at the inode number, which a fork does not keep
db.execute("create table if not exists entry (n integer primary key)")
file, n = open("session", "w", buffering=1), 0
def work():
    global n
    n += 1
    db.execute("insert into entry values (?)", (n,))  # fails where memory lags behind the file
    print(n, file=file)
    assert [row for (row,) in db.execute("select n from entry order by n")] == list(range(1, n + 1))
    return n
"""


async def carried(backend: NamespaceBackend, base: Snapshot, spec: WorldSpec, times: int) -> None:
    """The session continues in every restore. The other programs are not restored, but their files are of one
    instant."""
    world = await backend.materialise(base, spec)
    await at_work(world)
    repl = await world.python()
    assert (await repl.run(LEDGER)).ok
    for turn in range(1, times + 1):
        assert (await repl.run("work()")).value == str(turn)
        sealed = await world.seal()
        assert sealed.processes.tier is ProcessTier.REPL, sealed.processes.reason
        fork = await backend.materialise(sealed, spec)
        at_the_seal = Path(fork.path, "log").read_bytes().count(b"\n")
        session = await fork.python()
        answer = await session.run("work()")
        assert answer.value == str(turn + 1), answer.error
        assert (fork.path / "session").read_text().split() == [str(n) for n in range(1, turn + 2)]
        checked = await fork.run("python3 check.py")
        assert checked.ok, checked.stdout + checked.stderr
        rows, lines = map(int, checked.stdout.split())
        assert rows > 0
        assert lines == at_the_seal
        await fork.close()


@pytest.mark.criu
async def test_every_restore_is_one_instant(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> None:
    await checkpoints(namespaces, base, spec, 3)


@pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())
async def test_every_restored_session_is_of_the_same_instant_as_its_files(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await carried(namespaces, base, spec, 3)


@pytest.mark.criu
@pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())
async def test_random_forks_and_rollbacks_go_on_from_one_instant(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await moves(namespaces, base, spec, 5)


@HUNDRED
@pytest.mark.criu
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())
async def test_a_hundred_random_forks_and_rollbacks(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await moves(namespaces, base, spec, 100)


@HUNDRED
@pytest.mark.criu
@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_hundred_restores_are_one_instant_each(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await checkpoints(namespaces, base, spec, 100)


@HUNDRED
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())
async def test_a_hundred_restored_sessions_are_one_instant_each(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    await carried(namespaces, base, spec, 100)
