"""Bugs that people reported of other sandboxes and container tools, rebuilt on worlds. `REPORTS` has their ids."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.linux import processes
from ramify.worlds.blocking import SyncWorld
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

pytestmark = pytest.mark.linux_ns
PATIENCE = 60.0


@dataclass(frozen=True)
class Place:
    """Where a report is rebuilt. `folder` is empty."""

    home: WorldHome
    folder: Path

    def outside(self, program: str) -> subprocess.Popen[str]:
        """Start a program in another process, which may open worlds in a home of its own. Variable `home` has its
        path."""
        home = self.folder / "other-home"
        text = f"import asyncio, os, signal, sys\nfrom ramify import World\nhome = {str(home)!r}\n{program}"
        env = {**os.environ, "RAMIFY_SANDBOX": "namespaces"}
        return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=env)


async def output(program: subprocess.Popen[str]) -> str:
    told, _ = await asyncio.to_thread(program.communicate, timeout=PATIENCE)
    return told


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def remade_folder_hides_the_old_one(at: Place) -> None:
    """A folder that was removed and made again showed its old files from the layer below."""
    async with World.create(home=at.home) as world:
        make = 'for d in . ~; do mkdir -p "$d/re-made/inner" && echo foo > "$d/re-made/inner/foo"; done'
        await world.exec(make, check=True)
        (before,) = await world.fork()
        await before.exec('for d in . ~; do rm -r "$d/re-made" && mkdir "$d/re-made" && touch "$d/re-made/bar"; done')
        (after,) = await before.fork()
        assert (await after.exec("ls -R re-made; ls ~/re-made")).stdout == "re-made:\nbar\nbar\n"
        await world.merge(before)
        assert (await world.exec("ls -R re-made; ls ~/re-made")).stdout == "re-made:\nbar\nbar\n"
        for fork in (before, after):
            await fork.close()


async def deletions_are_kept(at: Place) -> None:
    """What a container deleted came back from its committed image."""
    (at.folder / "repo/sub").mkdir(parents=True)
    for name in ("file", "sub/one", "sub/two"):
        (at.folder / "repo" / name).write_text("1")
    async with World.create(at.folder / "repo", home=at.home) as world:
        await world.exec("rm file sub/one && chmod 700 sub")
        state = await world.snapshot()
    async with World.create(snapshot=state, home=at.home) as world:
        assert (await world.exec("find . -type f")).stdout == "./sub/two\n"
        await world.checkout(at.folder / "out")
    assert [path.name for path in (at.folder / "out").rglob("*")] == ["sub", "two"]


async def later_layers_merge_into_folders(at: Place) -> None:
    """A folder that a later layer only touched hid what the layers below have in it."""
    async with World.create(home=at.home) as world:
        await world.exec("mkdir -p ~/conf.d && echo 1 > ~/conf.d/base", check=True)
        forks = await world.fork(2)
        for fork, name in zip(forks, ("one", "two"), strict=True):
            await fork.exec(f"echo {name} > ~/conf.d/{name}")
            await world.merge(fork)
            await fork.close()
        assert (await world.exec("cd ~/conf.d && cat base one two")).stdout == "1\none\ntwo\n"


async def an_owner_that_ignores_sigchld(at: Place) -> None:
    """A sandbox never ended if the process that started it ignored SIGCHLD. What it blocks is inherited, too."""
    program = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
async def main():
    async with World.create(home=home) as world:
        print((await world.exec("sleep .1 & wait; false; echo $?")).stdout, end="")
        print((await world.run("(exit 3)")).exit_code)
        print((await world.exec("timeout .1 sleep 1234")).exit_code)
asyncio.run(main())
"""
    assert await output(at.outside(program)) == "1\n3\n124\n"


async def a_killed_owner_leaves_nothing(at: Place) -> None:
    """A sandbox outlived its owner if the owner was killed while the sandbox started."""
    mark = f"mark-{uuid.uuid4().hex}"
    program = f"""
async def main():
    async with World.create(home=home) as world:
        print("made", flush=True)
        async with world.start(["bash", "-c", "exec -a {mark} sleep 1234"]) as process:
            print("started", flush=True)
            await process.wait()
asyncio.run(main())
"""
    for line in ("made", "started"):
        owner = at.outside(program)
        assert owner.stdout is not None
        while await asyncio.to_thread(owner.stdout.readline) != f"{line}\n":
            assert owner.poll() is None
        owner.kill()
        await output(owner)
        await until(lambda: not named(mark))


def named(mark: str) -> list[str]:
    """The processes of this machine with these words in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


async def the_thread_that_made_it_may_end(at: Place) -> None:
    """A sandbox was killed when the thread that had started it ended, by PR_SET_PDEATHSIG."""
    made: list[SyncWorld] = []

    def make() -> None:
        made.append(SyncWorld.create(home=at.folder / "other-home", sandbox="namespaces"))
        made[0].exec("echo 1 > file")

    thread = threading.Thread(target=make)
    thread.start()
    await asyncio.to_thread(thread.join)
    world = made[0]
    assert (await asyncio.to_thread(world.exec, "cat file")).stdout == "1\n"
    await asyncio.to_thread(world.close)


async def no_zombies(at: Place) -> None:
    """Each run of a sandbox left a zombie with its caller."""
    async with World.create(home=at.home) as world:
        await world.exec("true")
    before = set(processes.children(os.getpid()))
    for _ in range(3):
        async with World.create(home=at.home) as world:
            await world.exec("(sleep 60 &) ; true")
            inside = (await world.exec("cat /proc/[0-9]*/stat | grep -c ' Z '")).stdout
            assert inside == "0\n"
    await until(lambda: not zombies(set(processes.children(os.getpid())) - before))


def zombies(pids: set[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                found.append(pid)
    return found


async def a_timeout_ends_the_command(at: Place) -> None:
    """A command that timed out ran on in the sandbox."""
    async with World.create(home=at.home) as world:
        for run in (world.exec, world.run):
            result = await run("setsid sleep 4321 & (sleep 4321); echo never", timeout=0.5)
            assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, "")
            assert (await world.exec("grep -l sleep /proc/[0-9]*/comm")).stdout == ""
        assert (await world.run("echo usable")).stdout == "usable\n"


async def heredocs_in_sessions(at: Place) -> None:
    """A heredoc in a session never returned."""
    async with World.create(home=at.home) as world:
        for shell in (world.run, world.shell("other").run, world.exec):
            result = await shell("cat > text <<'EOF'\nhello $HOME `date` 'x\nEOF\ncat text; (exit 7)")
            assert (result.stdout, result.exit_code) == ("hello $HOME `date` 'x\n", 7)


async def two_outputs(at: Place) -> None:
    """Standard error was mixed into standard output."""
    async with World.create(home=at.home) as world:
        for run in (world.exec, world.run, world.shell("other").run):
            result = await run("echo out; echo err >&2; (exit 5)")
            assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 5)


@dataclass(frozen=True)
class Report:
    ids: str
    check: Callable[[Place], Awaitable[None]]


REPORTS = (
    Report("containers/podman#3021, containers/fuse-overlayfs#138, moby/moby#42662", remade_folder_hides_the_old_one),
    Report("containers/buildah#1709, containers/container-libs#1170", deletions_are_kept),
    Report("containers/podman#12347", later_layers_merge_into_folders),
    Report("containers/bubblewrap#705", an_owner_that_ignores_sigchld),
    Report("containers/bubblewrap#633, containers/bubblewrap#700", a_killed_owner_leaves_nothing),
    Report("containers/bubblewrap#692", the_thread_that_made_it_may_end),
    Report("containers/bubblewrap#697", no_zombies),
    Report("e2b-dev/E2B#500", a_timeout_ends_the_command),
    Report("daytonaio/daytona#4230, SWE-agent/SWE-ReX#5", heredocs_in_sessions),
    Report("daytonaio/daytona#2067", two_outputs),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.ids.split(", ")[0])
async def test_it_does_not_happen_here(report: Report, tmp_path: Path) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)
    folder = tmp_path / "place"
    folder.mkdir()
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        await report.check(Place(home, folder))
