"""What the runtimes of agent programs ask of the kernel, as docs/how-to/agents.md says it: it works, or is refused by
an answer that they know."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.machine import why_no_namespaces

pytestmark = pytest.mark.linux_ns

ASK = r"""
import ctypes, errno, json, os, pathlib, pty, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
told = {}

def outcome(answer):
    return "works" if answer >= 0 else errno.errorcode[ctypes.get_errno()]

told["io_uring"] = outcome(libc.syscall(425, 8, ctypes.byref(ctypes.create_string_buffer(120))))
told["user namespace"] = outcome(libc.unshare(0x10000000))
told["clone3"] = outcome(libc.syscall(435, 0, 0))

pid, terminal = pty.fork()
if pid == 0:
    os.execvp("tty", ["tty"])
shown = os.read(terminal, 100).decode().strip()
told["terminal"] = shown.startswith("/dev/pts/")
os.waitpid(pid, 0)

watch = libc.inotify_init1(0)
libc.inotify_add_watch(watch, b".", 0x100)  # IN_CREATE
pathlib.Path("watched").write_text("")
told["watch"] = os.read(watch, 4096)[16:].rstrip(b"\0").decode()

child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
told["traces its child"] = os.WIFSTOPPED(os.waitpid(child, 0)[1])
libc.ptrace(7, child, 0, 0)
os.waitpid(child, 0)

told["devices"] = sorted(set(os.listdir("/dev")) & {"kvm", "fuse", "net", "mem"})
print(json.dumps(told))
"""


async def test_what_a_world_gives_and_refuses(tmp_path: Path) -> None:
    if why := why_no_namespaces():
        pytest.skip(why)
    if platform.machine() != "x86_64":
        pytest.skip("the numbers of system calls are those of x86_64")
    async with WorldHome(tmp_path / "home", "namespaces") as home, World.create(home=home) as world:
        result = await world.exec([sys.executable, "-c", ASK])
        assert result.ok, result.stderr
        assert json.loads(result.stdout) == {
            "io_uring": "ENOSYS",
            "user namespace": "EPERM",
            "clone3": "ENOSYS",
            "terminal": True,
            "watch": "watched",
            "traces its child": True,
            "devices": [],
        }
