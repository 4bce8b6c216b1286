"""Attacks on a world's agent, the first process of its namespace, as listed in docs/security.md."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.shell import CONTROL, VARIABLE
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import Backend, World, WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed
from ramify.sandboxes.host import fork_server_client
from ramify.sandboxes.linux import processes
from tests.sandboxes.attack_helpers import PATIENCE, family, peak_kb, python, well

ISOLATED_ONLY = True

Out = Callable[[World, str], Awaitable[str]]


async def test_the_agents_memory_and_descriptors_are_out_of_reach(world: World) -> None:
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


BECOME_A_COMMAND = """
import ctypes
from ramify.sandboxes.agent import confinement
from ramify.sandboxes.linux.resource_limits import Bounds
for image, filtered in ((True, False), (False, True)):
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
    confinement.enter(Bounds(), isolated=True, image=image, filtered=filtered)
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
"""


def test_a_child_of_the_agent_is_closed_until_it_executes_its_program() -> None:
    """It holds the agent's descriptors, among them the store, and has no more capabilities than any command. Over an
    image and in a dumpable world, no Landlock keeps the commands from it."""
    done = subprocess.run([sys.executable, "-c", BECOME_A_COMMAND], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "0\n0\n", done.stderr


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


async def test_planted_links_do_not_mislead_the_agent(
    world: World, tmp_path: Path, store: SnapshotStore, out: Out
) -> None:
    """The agent holds the host's folders open, and writes the state of an ended shell for the next one."""
    precious = tmp_path / "precious"
    precious.write_text("precious\n")
    private = (await out(world, "dirname $(readlink /proc/$$/fd/1)")).strip()
    up = os.path.relpath(precious, store.root)
    for number in range(3, 24):
        links = (f"ln -sfn /proc/self/fd/{number}/{up} {private}/{name}" for name in ("state", "stdin", "session.py"))
        await out(world, "; ".join(links))
        await world.run("exit 3", timeout=PATIENCE)
        with contextlib.suppress(SandboxError):  # the agent may refuse, but must not follow the link
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


async def test_a_pipe_in_place_of_a_file_does_not_block_the_agent(world: World, out: Out) -> None:
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
"""Finds what bash itself keeps open and a command does not inherit: its script and the control descriptor."""


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


async def test_a_forged_report_only_harms_its_own_world(world: World) -> None:
    """A process that reads the shell's own script finds the tag, and can forge reports, but only about its own
    world."""
    steal = THIEF + (
        "tag = re.findall(rb'[0-9a-f]{16}', os.read(script, 1 << 20))[-1]\n"
        "os.write(control, tag + sys.argv[1].encode().decode('unicode_escape').encode() + b'\\n' + tag + b'\\n')\n"
        "print('lied')\n"
    )
    for lie in (r"\x00", r"\x00seven\x00", r"\x000\x00x", r"\x00-1\x00\x00\x00\x00\x00"):
        result = await world.run([*python(steal), lie], timeout=2.0)
        assert result.stdout in ("lied\n", ""), result.stderr  # "" if the forged report ended it first
        await world.rollback(world.snapshot)
        assert await well(world)


@pytest.fixture
async def impatient(
    store: SnapshotStore, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[NamespaceBackend]:
    """A backend whose agents wait two seconds for a silent shell."""
    program = fork_server_client.AGENT
    prepare = "    make_importable()\n"
    limit = "    from ramify.sandboxes.agent import supervisor\n    supervisor.SHELL_ANSWER_TIMEOUT_S = 2.0\n"
    text = program.read_text().replace("from __future__ import annotations\n", "")
    assert prepare in text
    script = tmp_path / "agent.py"
    script.write_text(f"__file__ = {str(program)!r}\n" + text.replace(prepare, prepare + limit))
    monkeypatch.setattr(fork_server_client, "AGENT", script)
    async with NamespaceBackend(store, scratch) as opened:
        yield opened


def until(name: str) -> str:
    return f"until [ -e {name} ]; do sleep 0.01; done"


async def is_stopped(world: World) -> None:
    """Let what waits with `until('stop')` continue between two commands, and wait until it has stopped the shell."""
    assert (await world.run(":", timeout=PATIENCE)).ok  # the shell has reported its state
    (world.path / "stop").touch()
    async with asyncio.timeout(PATIENCE):
        while not (world.path / "stopped").exists():  # noqa: ASYNC110  # a world sets no event here
            await asyncio.sleep(0.01)


@pytest.mark.linux_ns
async def test_a_shell_stopped_between_two_commands_blocks_nothing_for_ever(
    impatient: NamespaceBackend, base: Snapshot, spec: WorldSpec
) -> None:
    """Neither while it reports its state, after the status, nor later; and the next command is not lost."""
    telling, later = await impatient.fork(base, spec, 2)
    report = f"trap '[[ $BASH_COMMAND == *{VARIABLE}* ]] && kill -STOP $$' DEBUG"
    assert (await telling.run(report, timeout=PATIENCE)).ok
    assert (await later.run(f"({until('stop')}; kill -STOP $$; touch stopped; {until('go')}; kill -CONT $$) &")).ok
    await is_stopped(later)
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
    assert (result.exit_code, result.timed_out) == (137, False)  # of the shell, which sent malformed data
    assert await peak_kb(world) < 200_000
    assert await well(world)


async def test_a_gigabyte_of_output_is_read_and_not_kept(backend: Backend, base: Snapshot, spec: WorldSpec) -> None:
    world = await backend.materialise(base, replace(spec, max_output=1 << 20))
    result = await world.run("head -c 1G /dev/zero; echo end >&2", timeout=PATIENCE)
    assert (len(result.stdout_bytes), result.stderr, result.truncated, result.ok) == (1 << 20, "end\n", True, True)
    assert await peak_kb(world) < 60_000


async def test_a_shell_that_does_not_read_does_not_block_the_agent(world: World) -> None:
    await world.run(f"({until('stop')}; kill -STOP $$; touch stopped) &")
    await is_stopped(world)
    result = await asyncio.wait_for(world.run(": " + "x" * 1_000_000, timeout=1.0), PATIENCE)
    assert result.timed_out
    assert await well(world)


# Ends


async def test_an_escaped_grandchild_ends_with_its_world(world: World, out: Out) -> None:
    runaway = (
        "( setsid setsid bash -c 'trap \"\" TERM HUP; echo $$ > ready; exec sleep 1000' >/dev/null 2>&1 & ) & true"
    )
    await out(world, runaway)
    await out(world, "until [ -s ready ]; do sleep 0.01; done")
    assert await world.background_processes() == 1
    mine = [processes.all_processes()[pid].key for pid in await family(world)]
    assert len(mine) == 3  # the agent, the shell and it
    await world.close()
    assert not set(mine) & {process.key for process in processes.all_processes().values()}
