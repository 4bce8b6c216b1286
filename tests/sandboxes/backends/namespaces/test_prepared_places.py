"""Agents and shells that were started ahead: a world that uses one is like any other, and none is stale."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.agent.messages import Message, Run, Start, Thaw
from ramify.sandboxes.agent.prepared_shell import can_take_over, takeover_script
from ramify.sandboxes.agent.shell_snapshot import ShellSnapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.backends.namespaces.prepared_places import OF_A_KIND, PLACE_BYTES, SHARE, Kind
from ramify.sandboxes.backends.namespaces.world import NamespaceWorld
from ramify.sandboxes.contract import KeptReady, World, WorldSpec
from ramify.sandboxes.errors import WorldStartFailed
from ramify.sandboxes.host.agent_link import AgentLink
from ramify.sandboxes.host.fork_server_client import ForkServerClient
from ramify.sandboxes.linux import ptrace
from ramify.sandboxes.linux.processes import descendants

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]
ASK = AgentLink.ask
STATE = "declare -p; declare -f; shopt -p; set +o; alias; trap -p; umask; ulimit -a; pwd; dirs; printf '%s|' \"$@\""
OF_THE_PROCESS = ("RANDOM", "SRANDOM", "SECONDS", "EPOCH", "BASH_", "RAMIFY_OPTIONS", "LINENO", "_=", "PIPESTATUS")

ROWS = """
import sqlite3, sys
db = sqlite3.connect("db")
db.execute("create table if not exists t (n)")
if sys.argv[1:]:
    db.execute("insert into t values (1)")
    db.commit()
else:
    print(db.execute("select count(*) from t").fetchone()[0])
"""


async def ready(backend: NamespaceBackend) -> int:
    """The number of prepared places, once preparing has finished."""
    if backend._prepared._making is not None:
        await backend._prepared._making
    return len(backend._prepared._ready)


async def state_of(world: World, out: Out) -> list[str]:
    told = (await out(world, STATE)).splitlines()
    return [line for line in told if not any(name in line for name in OF_THE_PROCESS)]


async def spawn_nothing(*_: object) -> object:
    raise AssertionError("an agent was started")


async def only_continue_and_run(link: AgentLink, message: Message, *more: Any) -> Message:
    assert isinstance(message, Thaw | Run), "the shell was not started ahead"
    return await ASK(link, message, *more)


async def test_a_fork_and_a_rollback_use_what_waits_and_are_like_any_other(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    fresh = await state_of(world, out)
    assert await ready(namespaces) == 0, "a world that is never sealed prepares nothing"
    await out(
        world, "cd package; export GONE=1 PATH=$PATH:/x; f() { echo f; }; alias a=b; set -u; umask 27; set -- 1 2"
    )
    await out(world, "unset LANG; kept='x y'; shopt -s extglob; trap 'echo t' USR1; OLDPWD=/usr")
    snapshot = await world.seal()
    plain = await namespaces.materialise(snapshot, replace(spec, secrets={"NONE": "1"}))  # never prepared
    assert await ready(namespaces) == OF_A_KIND
    expected = [line for line in await state_of(plain, out) if "NONE" not in line]
    with monkeypatch.context() as patched:
        patched.setattr(ForkServerClient, "spawn", spawn_nothing)
        child = await namespaces.materialise(snapshot, spec)
        assert await state_of(child, out) == expected
        await world.rollback(base)
        assert await state_of(world, out) == fresh
    for other in (plain, child):
        assert (await other.seal()).id == snapshot.id
    assert (await world.seal()).id == base.id
    await out(child, "echo more > new; echo more > /tmp/new; cd inner")
    sealed = await child.seal()
    assert await out(await namespaces.materialise(sealed, spec), "cat ../new /tmp/new; pwd; kept=$kept; f") == (
        f"more\nmore\n{spec.mount_at}/package/inner\nf\n"
    )


async def test_a_state_that_only_a_new_bash_can_have_gets_one(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    await out(world, "ulimit -n 100; export POSIXLY_CORRECT=1")
    snapshot = await world.seal()
    assert await ready(namespaces) == OF_A_KIND
    child = await namespaces.materialise(snapshot, spec)
    assert await out(child, "ulimit -n; shopt -qo posix && echo $$") == "100\n3\n", "the second shell of this agent"


async def test_nothing_waits_for_other_kinds_and_no_stale_place_is_used(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    await out(world, "echo x > x")
    snapshot = await world.seal()
    assert await ready(namespaces) == OF_A_KIND
    for other in (replace(spec, env={"A": "1"}), replace(spec, max_output=10)):
        assert not namespaces._prepared.take(Kind.of(snapshot, other), 1)
    for never in (replace(spec, secrets={"A": "1"}), replace(spec, network=True)):
        assert Kind.of(snapshot, never) is None
    (killed,) = namespaces._prepared._ready[0][1:]
    assert killed.agent is not None
    os.kill(killed.agent.pid, signal.SIGKILL)
    await asyncio.wait({killed.agent._exit_code}, timeout=60)
    children = [await namespaces.materialise(snapshot, spec) for _ in range(OF_A_KIND)]
    assert [await out(child, "cat x") for child in children] == ["x\n"] * OF_A_KIND
    await world.seal()
    assert await ready(namespaces) == OF_A_KIND
    monkeypatch.setattr(namespaces._prepared._mounts, "changed", lambda: True)  # the host mounted something
    assert not namespaces._prepared.take(Kind.of(snapshot, spec), 1)


async def test_a_process_of_an_earlier_life_has_ended_when_a_rollback_returns(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, tmp_path: Path, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    await out(world, "(while :; do echo $((n++)) > count; done) & until [ -s count ]; do :; done")
    old = world.path / "count"
    held = os.open(old, os.O_RDONLY)
    try:
        await world.rollback(base)
        assert not old.exists()
        before = os.fstat(held).st_mtime_ns
        assert await out(world, "ls count 2>/dev/null; ps -e -o comm= 2>/dev/null | grep -c sleep || :") in (
            "",
            "0\n",
        )
        await asyncio.sleep(0.05)
        assert os.fstat(held).st_mtime_ns == before
    finally:
        os.close(held)


async def test_random_forks_and_rollbacks_of_a_writer_a_database_and_a_session(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    """What each world shows is what its snapshot had: a database's rows, an appended file's lines, a variable."""
    chance = random.Random(7)
    rounds = int(os.environ.get("RAMIFY_LIVE_ROUNDS", "6"))
    world = await namespaces.materialise(base, spec)
    (world.path / "rows.py").write_text(ROWS)
    known: list[tuple[Snapshot, str]] = [(await world.seal(), "0 0 0")]
    tell = "echo $(python3 rows.py) $(cat log 2>/dev/null | wc -l) ${n:-0}"
    for _ in range(rounds):
        await out(world, "python3 rows.py add; echo line >> log; n=$((n+1))")
        told = (await out(world, tell)).strip()
        known.append((await world.seal(flush=False), told))
        snapshot, expected = chance.choice(known)
        if chance.random() < 0.5:
            await world.rollback(snapshot)
        else:
            child = await namespaces.materialise(snapshot, spec)
            await world.close()
            world = child
        assert (await out(world, tell)).strip() == expected


def test_what_a_prepared_shell_can_take_over() -> None:
    started = {"PATH": "/bin", "A": "1"}
    assert can_take_over(started, {"PATH": "/usr/bin", "B": "2"}, None)
    for name in ("BASH_ENV", "SHELLOPTS", "POSIXLY_CORRECT", "UID", "A-B", "PWD"):
        assert not can_take_over(started, {**started, name: "x"}, None)
    assert not can_take_over(started, started, ShellSnapshot(limits={"RLIMIT_NOFILE": (1, 1)}))
    assert takeover_script(started, started, None, "/w") == b""
    assert takeover_script(started, {"PATH": "/bin", "B": "it's"}, None, "/w") == (
        b"builtin unset -v A\nbuiltin export B='it'\\''s'\n"
    )


async def test_what_the_host_writes_after_a_rollback_is_sealed(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    """The place of the second rollback had its tree mounted ahead, and no command runs in it."""
    world = await namespaces.materialise(base, spec)
    await out(world, "echo 1 > kept")
    snapshot = await world.seal()
    for attempt in range(3):
        await out(world, "rm kept")
        assert await ready(namespaces) >= OF_A_KIND + (attempt > 0)
        await world.rollback(snapshot)
        (world.path / "written").write_text(str(attempt))
        sealed = await world.seal()
        assert sealed.id != snapshot.id
        (world.path / "written").write_text(f"{attempt} again")
        assert await out(world, "cat written") == f"{attempt} again", "the processes see the tree of before the seal"
        again = await namespaces.materialise(sealed, spec)
        assert await out(again, "cat kept written") == f"1\n{attempt}"
        await again.close()
        await world.rollback(snapshot)


async def test_an_agent_that_ended_while_it_waited_is_replaced(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    """A place is taken when a world is made, and used by its first command: its agent may have been killed since. One
    that stands still may have been killed before."""
    resume = AgentLink.resume

    def resume_dead(link: AgentLink) -> None:
        os.kill(link.pid, signal.SIGKILL)
        resume(link)

    monkeypatch.setattr(AgentLink, "resume", resume_dead)
    world = await namespaces.materialise(base, spec)
    await out(world, "kept=1; echo 1 > kept; echo 2 > /tmp/kept")
    snapshot = await world.seal()
    for warm in (False, True):
        assert await ready(namespaces) >= OF_A_KIND + warm
        await world.rollback(snapshot)
        assert isinstance(world, NamespaceWorld)
        agent = world.place.agent
        assert agent is not None
        assert world.place.warm == warm
        if not warm:
            os.kill(agent.pid, signal.SIGKILL)
            await asyncio.wait({agent._exit_code}, timeout=60)
        assert await out(world, "echo $kept $(cat kept /tmp/kept); echo 3 > /tmp/kept") == "1 1 2\n"
        assert (await world.seal()).id != snapshot.id


async def test_forks_that_are_foreseen_find_a_place_each_as_far_as_memory_allows(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    assert namespaces.foresee(base, spec, 4).places == 0, "no world of this kind was sealed"
    await out(world, "kept=1; export EXPORTED=2; unset LANG; ulimit -n 100; cd package")
    expected = f"1 2 gone\n{spec.mount_at}/package\n"
    snapshot = await world.seal()
    assert namespaces.foresee(snapshot, spec, 4) == KeptReady(4)
    assert await ready(namespaces) == 4 + OF_A_KIND
    assert namespaces.forget([snapshot.id]) == 4, "no fork of it is made any more"
    namespaces.foresee(snapshot, spec, 4)
    assert await ready(namespaces) == 4 + OF_A_KIND
    with monkeypatch.context() as patched:
        patched.setattr(ForkServerClient, "spawn", spawn_nothing)
        patched.setattr(namespaces._prepared, "_available", lambda: 0)
        patched.setattr(AgentLink, "ask", only_continue_and_run)
        children = await namespaces.fork(snapshot, spec, 3)
        assert [await out(child, "echo $kept $EXPORTED ${LANG-gone}; pwd") for child in children] == [expected] * 3
    assert await ready(namespaces) == 4 - 3 + OF_A_KIND
    monkeypatch.setattr(namespaces._prepared, "_available", lambda: SHARE * PLACE_BYTES)
    told = namespaces.foresee(snapshot, spec, 40)
    assert told.places < 40
    assert f"memory has room for {told.places}" in told.why_no_more
    never = replace(spec, secrets={"A": "1"})
    assert namespaces.foresee(snapshot, never, 4).places == 0


@pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not())
@pytest.mark.parametrize("dumpable", [False, pytest.param(True, marks=pytest.mark.criu)])
async def test_processes_of_a_foreseen_fork_are_restored_ahead_and_stand_still(
    namespaces: NamespaceBackend,
    base: Snapshot,
    spec: WorldSpec,
    monkeypatch: pytest.MonkeyPatch,
    out: Out,
    dumpable: bool,
) -> None:
    spec = replace(spec, dumpable=dumpable)
    world = await namespaces.materialise(base, spec)
    session = await world.python()
    assert (await session.run("n = 1; import signal, time")).ok
    await out(world, "kept=1")
    snapshot = await world.seal()
    assert snapshot.tier is (ProcessTier.TREE if dumpable else ProcessTier.REPL), snapshot.processes.reason
    assert namespaces.foresee(snapshot, spec, 2) == KeptReady(2)
    assert await ready(namespaces) == 2 + OF_A_KIND
    warm = [place for kind, place in namespaces._prepared._ready if kind.warm == snapshot.id]
    below = [descendants(place.agent.pid) for place in warm if place.agent is not None]
    assert [any(process.state == "T" for process in family) for family in below] == [True, True]
    with monkeypatch.context() as patched:
        patched.setattr(ForkServerClient, "spawn", spawn_nothing)
        children = await namespaces.fork(snapshot, spec, 2)
    (unused,) = await namespaces.fork(snapshot, spec, 1)
    assert (await unused.seal()).tier is snapshot.tier
    for number, child in enumerate(children):
        session = await child.python()
        assert (await session.run(f"n += {number}; n")).value == str(1 + number)
        assert await out(child, "echo $kept") == "1\n"
        again = await child.seal()
        assert again.tier is snapshot.tier
        (grandchild,) = await namespaces.fork(again, spec, 1)
        assert (await (await grandchild.python()).run("n")).value == str(1 + number)


async def test_a_state_that_nothing_goes_back_to_is_not_kept(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    await out(world, "kept=1")
    snapshot = await world.seal()
    await world.rollback(snapshot)  # from now on it is kept warm
    await ready(namespaces)
    warm = Kind.warm_of(snapshot, spec)
    assert [kind for kind, _ in namespaces._prepared._ready].count(warm) == 1
    assert namespaces.forget([base.id]) == 0
    assert namespaces.forget([snapshot.id]) == 1
    await out(world, "kept=2")
    await world.seal()
    await ready(namespaces)
    assert warm not in [kind for kind, _ in namespaces._prepared._ready]


async def test_a_state_that_is_forgotten_while_it_is_prepared_does_not_wait(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    world = await namespaces.materialise(base, spec)
    await out(world, "kept=1")
    snapshot = await world.seal()
    await ready(namespaces)
    spawn = ForkServerClient.spawn

    async def forget_and_spawn(helper: ForkServerClient, *given: Any) -> AgentLink:
        assert namespaces.forget([snapshot.id]) == 0
        return await spawn(helper, *given)

    monkeypatch.setattr(ForkServerClient, "spawn", forget_and_spawn)
    assert namespaces.foresee(snapshot, spec, 1) == KeptReady(1)
    await ready(namespaces)
    assert [kind.warm for kind, _ in namespaces._prepared._ready] == [None] * OF_A_KIND


async def test_a_state_that_cannot_be_prepared_keeps_no_other_from_that(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, monkeypatch: pytest.MonkeyPatch, out: Out
) -> None:
    spawn = ForkServerClient.spawn

    async def refuse_frozen(helper: ForkServerClient, start: Start, *given: Any) -> AgentLink:
        if start.frozen:
            raise WorldStartFailed("its processes cannot be restored")
        return await spawn(helper, start, *given)

    world = await namespaces.materialise(base, spec)
    await out(world, "kept=1")
    monkeypatch.setattr(ForkServerClient, "spawn", refuse_frozen)
    snapshot = await world.seal()
    namespaces.foresee(snapshot, spec, 2)
    assert await ready(namespaces) == OF_A_KIND

    def damaged(_: Snapshot) -> tuple[Path, ...]:
        raise SnapshotCorrupt("a layer is missing")

    monkeypatch.setattr(namespaces._store, "lower_dirs", damaged)
    assert namespaces.foresee(snapshot, spec, 2) == KeptReady(0, "a layer is missing")
