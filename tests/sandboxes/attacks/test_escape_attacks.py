"""Attempts to get out of a world, or to mislead the host, as listed in docs/security.md."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import World, WorldSpec
from ramify.sandboxes.linux import landlock
from tests.sandboxes.attack_helpers import python

pytestmark = pytest.mark.linux_ns

Out = Callable[[World, str], Awaitable[str]]


@pytest.fixture
async def world(namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec) -> World:
    return await namespaces.materialise(base, spec)


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


async def test_abstract_sockets_of_the_host_cannot_be_reached(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0ramify-test-" + world.id)
        server.listen()
        text = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0ramify-test-{world.id}')"
        assert "ConnectionRefused" in (await world.run(python(text))).stderr


async def test_a_requested_network_does_not_include_the_hosts_abstract_sockets(
    namespaces: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    if landlock.abi_version() < landlock.ABI_SCOPES:
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


async def test_landlock_also_forbids_what_capabilities_forbid(world: World, out: Out) -> None:
    if landlock.abi_version() < landlock.ABI_REFER:
        pytest.skip("this kernel has no Landlock that can allow renames (Linux 5.19)")
    for place in (".", "/tmp", "/dev/shm"):
        refused = await world.run(f"mknod {place}/node c 1 3")
        assert "Permission denied" in refused.stderr  # the capability alone would give "Operation not permitted"
    await out(world, "mkfifo here && mkdir d && mv here d/ && ln d/here there")  # and nothing else is refused


async def test_planted_overlayfs_marks_have_no_effect(
    world: World, namespaces: NamespaceBackend, spec: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    """They have no effect on its seal, the record or its forks: the next mount shows what the record says."""
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


async def test_a_setuid_file_gives_no_rights(
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


# /proc and /sys


async def test_the_hosts_kernel_settings_are_out_of_reach(world: World) -> None:
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
async def test_machine_wide_entries_of_proc_are_read_only(world: World, out: Out) -> None:
    """For much of it, on some kernel or other, root's uid is enough."""
    own = r"-path '/proc/[0-9]*' -prune -o -type f"
    writable = await out(world, f"find /proc {own} -perm /222 ! -perm -002 -writable -print; true")
    assert writable == ""
    for place in ("irq/default_smp_affinity", "mtrr", "sysrq-trigger"):
        if Path("/proc", place).exists():
            assert (await world.run(f": >> /proc/{place}")).exit_code != 0, place
    assert "MemTotal" in await out(world, "cat /proc/meminfo")
