"""Tier (b): a snapshot keeps a Python session, and every fork of it continues the session with its files."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import ProcessTier, Snapshot
from ramify.sandboxes.agent.checkpointing.process_image import NOTE
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.linux import ptrace

pytestmark = [
    pytest.mark.linux_ns,
    pytest.mark.skipif(bool(ptrace.why_not()), reason=f"sessions are not carried: {ptrace.why_not()}"),
]


async def test_two_forks_each_go_on_with_its_variables_and_files(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    repl = await world.python()
    await repl.run("import os, random\nx = [1]; data = bytearray(b'x' * 3_000_000)")
    await repl.run("file = open('lines', 'w', buffering=1); file.write('one\\n'); file.flush()")
    sealed = await world.seal()
    assert (sealed.tier, sealed.processes.dropped, bool(sealed.processes.image)) == (ProcessTier.REPL, 0, True)
    await repl.run("x.append('later'); file.write('later\\n')")
    forks = await namespaces.fork(sealed, spec, 2)
    for n, fork in enumerate(forks):
        again = await fork.python()
        assert (await again.run("x, len(data), data[-1]")).value == "([1], 3000000, 120)"
        assert (await again.run(f"x.append({n}); file.write('{n}\\n'); file.tell()")).value == "6"
        assert (fork.path / "lines").read_text() == f"one\n{n}\n"
        assert await fork.background_processes() == 1
    assert (await (await forks[0].python()).run("x")).value == "[1, 0]"
    assert (await repl.run("x")).value == "[1, 'later']"
    await world.rollback(sealed)
    assert (await (await world.python()).run("x, file.tell()")).value == "([1], 4)"
    assert (world.path / "lines").read_text() == "one\n"


async def test_a_restored_session_is_a_python_like_any_other(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    await (await world.python()).run("import os, signal, subprocess, threading; data = bytearray(b'y' * 500_000)")
    repl = await (await namespaces.materialise(await world.seal(), spec)).python()
    grown = "data += bytes(3_000_000); (data[0], data[499_999], data[500_000], data[-1], len(data))"
    assert (await repl.run(grown)).value == "(121, 121, 0, 0, 3500000)"
    assert (await repl.run("subprocess.run(['echo', 'hi'], capture_output=True).stdout")).value == "b'hi\\n'"
    thread = "t = threading.Thread(target=lambda: data.append(7)); t.start(); t.join(); data[-1]"
    assert (await repl.run(thread)).value == "7"
    assert (
        await repl.run("os.getpid() == threading.get_native_id() == int(os.readlink('/proc/self'))")
    ).value == "True"
    assert "ZeroDivisionError" in ((await repl.run("1 / 0")).error or "")
    assert (await repl.run("while True: pass", timeout=0.2)).lives
    child = await repl.fork("child")
    assert (await child.run("len(data)")).value == "3500001"
    assert (await repl.run("print('out'); import sys; print('err', file=sys.stderr)")).stdout == "out\n"


async def test_a_restored_session_is_confined_like_every_command(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    await world.python()
    fork = await namespaces.materialise(await world.seal(), spec)
    repl = await fork.python()
    told = (
        "[line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff','CapBnd','NoNewPrivs'))]"
    )
    command = await fork.run("grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | cut -f2")
    assert (await repl.run(f"print(*{told}, sep='\\n')")).stdout == command.stdout
    assert "Operation not permitted" in ((await repl.run("import os; os.chroot('/')")).error or "")
    moved = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.unshare(0x20000), ctypes.get_errno()"
    assert (await repl.run(moved)).value == "(-1, 1)"
    links = "sorted(os.readlink(f'/proc/self/ns/{kind}') for kind in ('pid', 'mnt', 'net', 'ipc', 'uts'))"
    inside = (await fork.run("for kind in pid mnt net ipc uts; do readlink /proc/self/ns/$kind; done")).stdout.split()
    assert (await repl.run(links)).value == repr(sorted(inside))


async def test_a_restored_session_can_be_kept_again(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    """A restored session is kept again, with changed and unchanged pages."""
    world = await namespaces.materialise(base, spec)
    await (await world.python()).run("n = 0; data = bytearray(b'z' * 1_000_000)")
    for generation in range(1, 4):
        sealed = await world.seal()
        await world.close()
        world = await namespaces.materialise(sealed, spec)
        repl = await world.python()
        assert (await repl.run("n += 1; data[n] = n; n, bytes(data[:5])")).value == repr(
            (generation, bytes([122, *range(1, generation + 1), 122, 122, 122])[:5])
        )
    assert (await repl.run("data.count(122)")).value == str(1_000_000 - 3)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [(f'"kernel": "{platform.release()}"', '"kernel": "2.6"', "2.6"), ("libc.so.6", "libc.so.5", "No such file")],
)
async def test_a_failed_restore_leaves_no_process(
    namespaces: NamespaceBackend,
    store: SnapshotStore,
    base: Snapshot,
    spec: WorldSpec,
    old: str,
    new: str,
    reason: str,
) -> None:
    world = await namespaces.materialise(base, spec)
    await world.python()
    sealed = await world.seal()
    note = store.image_dir(sealed.processes.image) / "python" / NOTE
    assert old in note.read_text()
    note.write_text(note.read_text().replace(old, new))
    fork = await namespaces.materialise(sealed, spec)
    with pytest.raises(SandboxError, match=reason):
        await fork.python()
    assert await fork.background_processes() == 0


TOO_MUCH = {
    "socket:": "import socket; held = socket.socketpair()",
    "2 threads": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "child processes": "import subprocess; p = subprocess.Popen(['sleep', '60'])",
    "shares memory": "import mmap; m = mmap.mmap(-1, 4096)",
    "GiB of addresses": "import mmap; m = mmap.mmap(-1, 1 << 37, mmap.MAP_PRIVATE | 0x4000)",
    "files open": "held = [open('/dev/null') for _ in range(300)]",
    "removed from its path": "import os; held = open('gone', 'w'); os.unlink('gone')",
    "timer": "import signal; signal.setitimer(signal.ITIMER_VIRTUAL, 1000)",
    "a lock": "import fcntl; held = open('locked', 'w'); fcntl.flock(held, fcntl.LOCK_EX)",
}


async def test_state_that_no_image_can_hold_is_named_and_the_session_lives_on(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    sessions = {reason: await world.python(f"s{n}") for n, reason in enumerate(TOO_MUCH)}
    for reason, repl in sessions.items():
        assert (await repl.run(TOO_MUCH[reason])).ok
    sealed = await world.seal()
    assert (sealed.tier, sealed.processes.dropped) == (ProcessTier.DROPPED, len(TOO_MUCH) + 1)
    told = sealed.processes.reason.split("; ")
    for reason, repl in sessions.items():
        assert [reason in why for why in told if repr(repl.name) in why] == [True]
        assert (await repl.run("1 + 1")).value == "2"


async def test_a_session_beside_other_processes(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    await (await world.python("kept")).run("x = 1")
    await (await world.python("not-kept")).run("import socket; held = socket.socketpair()")
    await world.run("sleep 60 &")
    sealed = await world.seal()
    assert (sealed.tier, sealed.processes.dropped) == (ProcessTier.REPL, 2)
    assert "'not-kept'" in sealed.processes.reason
    fork = await namespaces.materialise(sealed, spec)
    assert (await (await fork.python("kept")).run("x")).value == "1"
    assert await fork.background_processes() == 1


async def test_secrets_are_in_no_image(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> None:
    world = await namespaces.materialise(base, replace(spec, secrets={"TOKEN": "hush"}))
    await world.python()
    sealed = await world.seal()
    assert (sealed.tier, sealed.processes.image) == (ProcessTier.DROPPED, "")
    assert "secrets" in sealed.processes.reason


async def test_a_lost_session_is_reported_to_the_first_request(
    namespaces: NamespaceBackend, store: SnapshotStore, scratch: Path, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, spec)
    await (await world.python()).run("x = 1")
    sealed = await world.seal()
    await world.close()
    async with CopyBackend(store, scratch / "copies") as copies:
        for other in (
            await copies.materialise(sealed, spec),
            await namespaces.materialise(sealed, replace(spec, secrets={"TOKEN": "hush"})),
        ):
            with pytest.raises(SandboxError, match="'python' of the snapshot could not be restored"):
                await other.python()
            assert "NameError" in ((await (await other.python()).run("x")).error or "")
