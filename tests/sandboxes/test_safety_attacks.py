"""Attempts to get out of a world, to reach its agent, or to take the host down: those that docs/security.md lists.

Every test is a command inside a world of the default backend, and what it must not have come to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes import helper, processes
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed
from ramify.sandboxes.namespaces.backend import NamespaceBackend
from ramify.sandboxes.safety import landlock
from ramify.sandboxes.shell import CONTROL
from ramify.sandboxes.shellstate import VARIABLE

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]
PATIENCE = 30.0


@pytest.fixture
async def world(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await namespaces.materialise(base, spec)


async def family(world: World) -> list[int]:
    """The pids of the world's processes as the host counts, its agent first."""
    namespace = (await world.run("readlink /proc/self/ns/pid")).stdout.strip()
    inside: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # ended, or another user's
            if str((status.parent / "ns" / "pid").readlink()) == namespace:
                inside[int(re.findall(r"NSpid:.*\t(\d+)", status.read_text())[0])] = int(status.parent.name)
    assert 1 in inside
    return [pid for _, pid in sorted(inside.items())]


async def peak_kb(world: World) -> int:
    """The most memory that the world's agent has had, in kB."""
    status = Path(f"/proc/{(await family(world))[0]}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


async def well(world: World) -> bool:
    return (await world.run("echo well", timeout=PATIENCE)).stdout == "well\n"


# System calls


CALLS = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, number, *arguments in {calls}:
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *arguments)
    print(name, "done" if result != -1 else errno.errorcode[ctypes.get_errno()])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers below are those of x86_64")
async def test_calls_that_reach_past_namespaces_are_refused(world: World) -> None:
    refused = [
        ("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0),
        ("umount2", 166, b"/proc", 2),
        ("pivot_root", 155, b".", b"."),
        ("chroot", 161, b"/"),
        ("fsopen", 430, b"tmpfs", 0),
        ("open_tree", 428, -100, b"/", 1),
        ("setns", 308, 0, 0),
        ("unshare", 272, 0x10000000),
        ("clone", 56, 0x10000000 | 17, 0, 0, 0, 0),
        ("open_by_handle_at", 304, 0, 0, 0),
        ("keyctl", 250, 0, -3, 0),
        ("add_key", 248, b"user", b"x", b"y", 1, -3),
        ("bpf", 321, 0, 0, 0),
        ("perf_event_open", 298, 0, 0, 0, 0, 0),
        ("init_module", 175, 0, 0, 0),
        ("kexec_load", 246, 0, 0, 0, 0),
        ("reboot", 169, 0, 0, 0),
        ("prlimit64 of the agent", 302, 1, 7, 0, 0),
        ("swapon", 167, b"/dev/null", 0),
        ("tiocsti", 16, 0, 0x5412, b"x"),
        ("tiocsti with a high half", 16, 0, 0x5412 | 1 << 32, b"x"),
    ]
    absent = [
        ("clone3", 435, 0, 0),
        ("io_uring_setup", 425, 1, 0),
        ("userfaultfd", 323, 0),
        ("a call of the x32 table", 0x40000000 | 165, 0),
        ("a call that nobody knows yet", 9999),
    ]
    told = await world.run(python(CALLS.format(calls=[*refused, *absent])))
    due = [f"{name} EPERM" for name, *_ in refused] + [f"{name} ENOSYS" for name, *_ in absent]
    assert told.stdout.splitlines() == due, told.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="int 0x80 is an instruction of x86")
async def test_the_32_bit_call_table_ends_the_process(world: World) -> None:
    code = (
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid there); int 0x80; ret
        "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print('called', ctypes.CFUNCTYPE(ctypes.c_int)(address)())\n"
    )
    result = await world.run(python(code))
    assert (result.exit_code, result.stdout) == (128 + 31, "")  # SIGSYS


async def test_programs_that_people_use_run_under_the_filter(world: World, out: Out) -> None:
    assert await out(
        world, "git init -q . && git add -A && git -c user.name=x -c user.email=y commit -qm x && echo ok"
    )
    script = (
        "import multiprocessing, sqlite3, subprocess, asyncio, threading, tempfile, shutil, os, socket\n"
        "print(multiprocessing.Pool(2).map(abs, [-1, 2]))\n"
        "db = sqlite3.connect('x.db'); db.execute('pragma journal_mode=wal'); db.execute('create table t (a)')\n"
        "print(asyncio.run(asyncio.wait_for(asyncio.sleep(0, 'slept'), 1)))\n"
        "print(subprocess.run(['true']).returncode, socket.if_nameindex()[0][1])\n"
        "server = socket.create_server(('127.0.0.1', 0)); client = socket.create_connection(server.getsockname())\n"
        "print(os.sched_getaffinity(0) != set(), client.getpeername()[0])\n"
    )
    assert await out(world, f"{sys.executable} - <<'END'\n{script}END") == "[1, 2]\nslept\n0 lo\nTrue 127.0.0.1\n"
    await out(world, "mkdir one two && touch one/x && mv one/x two/ && ln two/x one/y && rm -r one two")


# The network


async def test_no_socket_of_a_family_that_namespaces_do_not_cover(world: World) -> None:
    tried = await world.run(
        python(
            "import socket\n"
            "for family in (1, 2, 10, 16, 38, 40, 44):\n"
            "    try: socket.socket(family, 3 if family == 16 else 1).close(); print(family)\n"
            "    except OSError as error: print(family, error.errno)\n"
        )
    )
    assert tried.stdout == "1\n2\n10\n16\n38 97\n40 97\n44 97\n", tried.stderr  # 40: vsock, to the hypervisor


async def test_abstract_sockets_of_the_host_are_not_there(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0ramify-test-" + world.id)
        server.listen()
        text = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0ramify-test-{world.id}')"
        assert "ConnectionRefused" in (await world.run(python(text))).stderr


async def test_the_network_that_was_asked_for_does_not_bring_the_hosts_abstract_sockets(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    if landlock.version() < landlock.ABI_SCOPES:
        pytest.skip("this kernel's Landlock has no scopes (Linux 6.12)")
    world = await namespaces.materialise(base, replace(spec, network=True))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        port = server.getsockname()[1]
        assert (await world.run(f"exec 5<>/dev/tcp/127.0.0.1/{port}")).ok
        hidden.bind(f"\0ramify-test-{world.id}")
        hidden.listen()
        text = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0ramify-test-{world.id}')"
        assert "PermissionError" in (await world.run(python(text))).stderr


# Files


async def test_device_nodes_cannot_be_made_anywhere(world: World, namespaces: NamespaceBackend) -> None:
    for place in (".", "/tmp", "/dev/shm", "/var/tmp"):
        for node in ("b 8 0", "c 1 1", "c 0 0"):
            result = await world.run(f"mknod {place}/node {node}")
            assert result.exit_code != 0, (place, node)
    assert await world.seal() is world.snapshot
    assert not (world.path / "node").exists()


async def test_marks_of_overlayfs_that_a_world_plants_mean_nothing(
    world: World, namespaces: NamespaceBackend, spec: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    """Not to its seal, not to the record, not to its forks: what the next mount shows is what the record says."""
    plant = (
        "import contextlib, os\n"
        "os.mkdir('made'); open('file', 'w').close()\n"
        "for name, mark, value in (('package', 'opaque', b'y'), ('package/inner', 'opaque', b'x'),\n"
        "        ('made', 'redirect', b'/package'), ('file', 'metacopy', b''), ('readme.txt', 'whiteout', b'y')):\n"
        "    for space in ('user', 'trusted'):\n"
        "        with contextlib.suppress(OSError): os.setxattr(name, f'{space}.overlay.{mark}', value)\n"
    )
    assert (await world.run(python(plant))).ok
    before = await out(world, "find . | sort")
    sealed = await world.seal()
    assert set(store.entries(sealed)) == {path[2:] for path in before.split("\n") if path[2:]}
    child = await namespaces.materialise(sealed, spec)
    assert await out(child, "find . | sort") == before
    assert await child.seal() is sealed


async def test_a_setuid_file_gives_nobody_anything(
    world: World, store: SnapshotStore, spec: WorldSpec, namespaces: NamespaceBackend, out: Out
) -> None:
    await out(world, "cp $(readlink -f /bin/sh) shell; chmod 6755 shell")
    assert "NoNewPrivs:\t1" in await out(world, "./shell -c 'cat /proc/self/status'")
    assert await out(world, "./shell -pc 'id -u'") == f"{os.geteuid()}\n"
    mounts = await out(world, "cat /proc/self/mountinfo")
    tree = next(line for line in mounts.splitlines() if f" {spec.mount_at} " in line)
    assert "nosuid" in tree
    await world.seal()
    held = [path for path in store.root.rglob("shell") if path.is_file()]
    assert held
    for path in held:  # others on the host cannot reach it to run it
        assert any(not folder.stat().st_mode & 0o077 for folder in path.parents if folder.is_relative_to(store.root))


async def test_links_out_of_the_tree_are_kept_as_links(
    world: World, store: SnapshotStore, base: Snapshot, tmp_path: Path, out: Out
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious\n")
    await out(world, f"rm -r package; ln -s {outside} package; ln -s {outside}/precious file; ln -sf / root")
    planted = await world.seal()
    await out(world, "rm package file; mkdir package; echo evil > package/precious; echo evil > file")
    through = await world.seal()
    for snapshot in (planted, through):
        store.checkout(snapshot, tmp_path / "out", force=True)
        store.materialise(snapshot, tmp_path / f"copy {snapshot.id[:8]}")
    store.checkout(planted, tmp_path / "applied")
    store.checkout(through, tmp_path / "applied", only_changes_from=planted, force=True)
    assert [path.name for path in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "precious\n"
    assert {change.path for change in store.changes(base, planted)} >= {"package", "file", "root"}
    assert not any("precious" in change.path for change in store.changes(base, planted))


async def test_what_only_looks_like_a_file_does_not_hold_the_host_up(
    world: World, store: SnapshotStore, base: Snapshot, tmp_path: Path, out: Out
) -> None:
    await out(world, "mkfifo pipe; ln -s pipe link-to-pipe; ln -s /dev/zero endless; ln -s loop loop")
    await out(
        world, f"{sys.executable} -c \"import socket; socket.socket(socket.AF_UNIX).bind('socket')\"; rm socket"
    )
    sealed = await asyncio.wait_for(world.seal(), PATIENCE)
    await asyncio.wait_for(asyncio.to_thread(store.checkout, sealed, tmp_path / "out"), PATIENCE)
    assert stat.S_ISFIFO((tmp_path / "out" / "pipe").lstat().st_mode)
    assert {change.path for change in store.changes(base, sealed)} == {"pipe", "link-to-pipe", "endless", "loop"}


async def test_a_name_that_turns_into_a_link_while_it_is_sealed_leads_nowhere(
    world: World, store: SnapshotStore, tmp_path: Path, out: Out
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("the host's own\n")
    await out(
        world, f"mkdir d; echo inside > d/file; (while :; do mv d e; ln -s {secret} d; rm d; mv e d; done) & true"
    )
    for turn in range(5):
        sealed = await world.seal()
        copy = tmp_path / f"copy{turn}"
        store.materialise(sealed, copy)
        kept = [path.read_text() for path in copy.rglob("file") if not any(p.is_symlink() for p in path.parents)]
        assert kept == ["inside\n"]


# /proc and /sys


async def test_the_hosts_switches_are_out_of_reach(world: World) -> None:
    knobs = (
        *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches"),
        *("/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/ksm/run"),
        *("/proc/1/mem", "/proc/1/root/etc/hostname", "/proc/kmsg", "/proc/kcore"),
    )
    core = Path("/proc/sys/kernel/core_pattern").read_text()
    for knob in knobs:
        result = await world.run(f"echo 1 > {knob}")
        assert result.exit_code != 0, knob
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core
    assert (await world.run("cat /proc/kcore | head -c 1")).stdout == ""
    for place in ("/sys/fs/cgroup", "/sys/kernel", "/sys/class"):
        assert (await world.run(f"mkdir {place}/mine")).exit_code != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's world may do what that user may")
async def test_what_is_the_machines_in_proc_is_read_only(world: World, out: Out) -> None:
    """Root's uid is enough for much of it, on one kernel or another."""
    own = r"-path '/proc/[0-9]*' -prune -o -type f"
    writable = await out(world, f"find /proc {own} -perm /222 ! -perm -002 -writable -print; true")
    assert writable == ""
    for place in ("irq/default_smp_affinity", "mtrr", "sysrq-trigger"):
        if Path("/proc", place).exists():
            assert (await world.run(f": >> /proc/{place}")).exit_code != 0, place
    assert "MemTotal" in await out(world, "cat /proc/meminfo")


async def test_the_agent_is_not_there_to_be_read_or_written(world: World) -> None:
    for attempt in (
        *(
            "cat /proc/1/maps",
            "cat /proc/1/environ",
            "cat /proc/1/stack",
            "cat /proc/1/fd/0",
            "readlink /proc/1/fd/0",
        ),
        *("readlink /proc/1/exe", "ls /proc/1/root/", "ls /proc/1/cwd/", "echo > /proc/1/fd/1", "echo > /proc/1/mem"),
    ):
        result = await world.run(attempt)
        assert (result.exit_code != 0, result.stdout) == (True, ""), attempt
    trace = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
    assert (await world.run(python(trace))).stdout == "-1\n"
    write = "import os; f = os.open('/proc/self/exe', os.O_RDONLY); os.open(f'/proc/self/fd/{f}', os.O_WRONLY)"
    assert "Error" in (await world.run(python(write))).stderr  # the interpreter's own file, by way of /proc
    assert await well(world)


async def test_processes_outside_are_neither_seen_nor_signalled(
    world: World, namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec, out: Out
) -> None:
    other = await namespaces.materialise(base, spec)
    await out(other, "sleep 99 &")
    assert "sleep" not in await out(world, "cat /proc/[0-9]*/comm")
    await world.run("kill -9 -1")
    assert await other.background_processes() == 1
    assert (await world.run(f"kill -9 {os.getpid()} {' '.join(map(str, await family(other)))}")).exit_code != 0
    assert await well(other)
    assert await well(world)


# The agent


@pytest.mark.parametrize(
    "number", ["KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "CHLD", "USR1", "ALRM", "PIPE", "TSTP"]
)
async def test_signals_to_the_agent_do_nothing(world: World, number: str) -> None:
    await world.run(f"kill -{number} 1; true", timeout=PATIENCE)
    assert await well(world)


async def test_killing_everything_in_reach_leaves_the_agent(world: World, out: Out) -> None:
    await out(world, "export kept=1; sleep 99 &")
    await world.run("trap '' TERM; kill -TERM -1; kill -STOP -1; kill -9 -1", timeout=PATIENCE)
    assert await out(world, "echo $kept") == "1\n"


async def test_links_planted_where_the_agent_writes_do_not_lead_it_out(
    world: World, tmp_path: Path, store: SnapshotStore, out: Out
) -> None:
    """It has the host's folders open, and a shell that ends makes it write what the shell knew for the next one."""
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    private = (await out(world, "dirname $(readlink /proc/$$/fd/1)")).strip()
    up = os.path.relpath(precious, store.root)
    for number in range(3, 24):
        links = (f"ln -sfn /proc/self/fd/{number}/{up} {private}/{name}" for name in ("state", "stdin", "session.py"))
        await out(world, "; ".join(links))
        await world.run("exit 3", timeout=PATIENCE)
        with contextlib.suppress(SandboxError):  # the agent may refuse; it may not be led
            await world.run("cat", stdin="evil\n", timeout=PATIENCE)
        assert precious.read_text() == "precious\n", number
    assert await well(world)


@pytest.mark.parametrize("process", ["self", "1"])
async def test_a_new_shell_does_not_start_outside(
    world: World, tmp_path: Path, store: SnapshotStore, process: str, out: Out
) -> None:
    (tmp_path / "precious").write_text("precious\n")
    up = os.path.relpath(tmp_path, store.root)
    for number in range(3, 24):
        place = await out(world, "cd; rm -rf place; mkdir place; cd place; pwd")
        link = f"cd ..; rmdir place; ln -s /proc/{process}/fd/{number}/{up} place"
        await world.run(f"( {link} ); kill -9 $$", timeout=PATIENCE)
        assert not (await world.run("cat precious", timeout=PATIENCE)).ok, (place, number)
        await out(world, "rm -f ~/place")


async def test_a_pipe_in_the_place_of_a_file_does_not_hold_the_agent(world: World, out: Out) -> None:
    private = (await out(world, "dirname $(readlink /proc/$$/fd/1)")).strip()
    await out(world, f"for name in state stdin session.py; do rm -f {private}/$name; mkfifo {private}/$name; done")
    result = await asyncio.wait_for(world.run("cat", stdin="all of it", timeout=PATIENCE), 2 * PATIENCE)
    assert result.stdout == "all of it"
    await out(world, f"rm -f {private}/state; mkfifo {private}/state")
    await world.run("exit 3")
    assert await well(world)


async def test_a_shell_that_is_stopped_is_ended_by_the_timeout(world: World) -> None:
    result = await world.run("kill -STOP $$", timeout=0.5)
    assert result.timed_out
    assert await well(world)


THIEF = """
import os, re, stat, sys
shell = f"/proc/{os.getppid()}/fd"
def pipes(flag, bit):
    for name in sorted(os.listdir(shell), key=int):
        path = f"{shell}/{name}"
        if int(name) > 2 and stat.S_ISFIFO(os.stat(path).st_mode) and os.lstat(path).st_mode & bit:
            yield os.open(path, flag)
(script,), (control,) = pipes(os.O_RDONLY | os.O_NONBLOCK, 0o400), pipes(os.O_WRONLY, 0o200)
"""
"""Finds what bash itself keeps open, and a command does not inherit: its script and the control descriptor."""


async def test_the_control_descriptor_may_be_closed_or_stolen(world: World) -> None:
    for attempt in (
        f"exec {CONTROL}>&-",
        'for fd in /proc/$$/fd/*; do eval "exec ${fd##*/}>&-"; done',
        "builtin() { :; }; printf() { :; }; eval() { :; }",
        "exec 0</dev/null",
        "exec 0<&-",
        python(THIEF + "os.write(control, b'nonsense')"),
        python(THIEF + "os.write(control, os.urandom(1 << 20))"),
        python(THIEF + "print(len(os.read(script, 1 << 20)))"),
    ):
        await world.run(attempt, timeout=1.0)
        await world.rollback(world.snapshot)
        assert await well(world), attempt


async def test_a_lie_on_the_control_descriptor_is_the_worlds_own_loss(world: World) -> None:
    """Who reads the shell's own script finds the tag, and may say what they like: about themselves alone."""
    steal = THIEF + (
        "tag = re.findall(rb'[0-9a-f]{16}', os.read(script, 1 << 20))[-1]\n"
        "os.write(control, tag + sys.argv[1].encode().decode('unicode_escape').encode() + b'\\n' + tag + b'\\n')\n"
        "print('lied')\n"
    )
    for lie in (r"\x00", r"\x00seven\x00", r"\x000\x00x", r"\x00-1\x00\x00\x00\x00\x00"):
        result = await world.run([sys.executable, "-c", steal, lie], timeout=2.0)
        assert result.stdout in ("lied\n", ""), result.stderr  # "" where the lie ended it first
        await world.rollback(world.snapshot)
        assert await well(world)


@pytest.fixture
async def impatient(
    store: SnapshotStore, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NamespaceBackend]:
    """Its agents wait for a silent shell for two seconds."""
    first = "from ramify.sandboxes.agent import Agent"
    script = tmp_path / "zygote.py"
    script.write_text(
        f"__file__ = {str(helper.ZYGOTE)!r}\n"
        + helper.ZYGOTE.read_text()
        .replace("from __future__ import annotations\n", "")
        .replace(first, f"from ramify.sandboxes import inhabitants  # noqa\ninhabitants.ANSWERS_S = 2.0\n{first}")
    )
    monkeypatch.setattr(helper, "ZYGOTE", script)
    async with NamespaceBackend(store, scratch) as opened:
        yield opened


async def test_a_shell_that_is_stopped_between_two_commands_holds_nobody_for_ever(
    impatient: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    """Neither while it tells its state, after the status, nor later; and the command after it is not lost."""
    telling, later = await impatient.fork(base, spec, 2)
    report = f"trap '[[ $BASH_COMMAND == *{VARIABLE}* ]] && kill -STOP $$' DEBUG"
    assert (await telling.run(report, timeout=PATIENCE)).ok
    assert (await later.run("(sleep 0.1; kill -STOP $$; until [ -e go ]; do sleep 0.1; done; kill -CONT $$) &")).ok
    await asyncio.sleep(0.3)
    for stopped in (telling, later):
        with pytest.raises(SealFailed, match="does not answer"):
            await asyncio.wait_for(stopped.seal(), PATIENCE)
    assert (await telling.run("echo lost", timeout=0.2)).timed_out
    assert (await telling.run("echo well", timeout=PATIENCE)).stdout == "well\n"
    (later.path / "go").touch()
    assert (await later.run("echo well", timeout=PATIENCE)).stdout == "well\n"
    await later.seal()


async def test_a_flood_on_the_control_descriptor_does_not_fill_the_agent(world: World) -> None:
    flood = THIEF + "import time\nfor _ in range(6400): os.write(control, bytes(1 << 16))\ntime.sleep(99)"
    result = await world.run(python(flood), timeout=PATIENCE)
    assert (result.exit_code, result.timed_out) == (137, False)  # of the shell, which talks nonsense
    assert await peak_kb(world) < 200_000
    assert await well(world)


async def test_a_gigabyte_of_output_is_read_and_not_kept(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    world = await namespaces.materialise(base, replace(spec, max_output=1 << 20))
    result = await world.run("head -c 1G /dev/zero; echo end >&2", timeout=PATIENCE)
    assert (len(result.stdout_bytes), result.stderr, result.truncated, result.ok) == (1 << 20, "end\n", True, True)
    assert await peak_kb(world) < 60_000


async def test_a_shell_that_does_not_read_does_not_hold_the_agent(world: World) -> None:
    await world.run("(sleep 0.1; kill -STOP $$) &")
    await asyncio.sleep(0.4)
    result = await asyncio.wait_for(world.run(": " + "x" * 1_000_000, timeout=1.0), PATIENCE)
    assert result.timed_out
    assert await well(world)


# Ends


async def test_a_grandchild_that_runs_away_ends_with_its_world(world: World, out: Out) -> None:
    runaway = (
        "( setsid setsid bash -c 'trap \"\" TERM HUP; echo $$ > ready; exec sleep 1000' >/dev/null 2>&1 & ) & true"
    )
    await out(world, runaway)
    await out(world, "until [ -s ready ]; do sleep 0.01; done")
    assert await world.background_processes() == 1
    mine = [processes.everything()[pid].key for pid in await family(world)]
    assert len(mine) == 3  # the agent, the shell and it
    await world.close()
    assert not set(mine) & {process.key for process in processes.everything().values()}


async def test_landlock_stands_behind_the_capabilities(world: World, out: Out) -> None:
    if not landlock.rule_set():
        pytest.skip("this kernel has no Landlock that can allow renames (Linux 5.19)")
    for place in (".", "/tmp", "/dev/shm"):
        refused = await world.run(f"mknod {place}/node c 1 3")
        assert "Permission denied" in refused.stderr  # the capability alone says "Operation not permitted"
    await out(world, "mkfifo here && mkdir d && mv here d/ && ln d/here there")  # and nothing else is refused
