"""`World.create(dumpable=True)`: snapshots, forks and names keep the processes of the shell."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.host import criu
from ramify.sandboxes.linux import ptrace
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.samples import sample

pytestmark = [
    pytest.mark.linux_ns,
    pytest.mark.criu,
    pytest.mark.skipif(not criu.command(), reason=f"CRIU is not installed in {criu.folder()}: make criu"),
    pytest.mark.skipif(ptrace.why_not() != "", reason=ptrace.why_not()),
]
COUNTING = "(n=0; while :; do n=$((n + 1)); echo $n > count; sleep 0.02; done) & job=$!"


async def counted(world: World, more_than: int) -> int:
    """Wait until the job has counted further."""
    async with asyncio.timeout(20):
        while (now := int((await world.exec("cat count")).stdout or 0)) <= more_than:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.02)
    return now


async def test_a_job_goes_on_in_forks_and_when_the_world_is_opened_again(tmp_path: Path, repo: Path) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        async with World.create(repo, home=home, name="job", dumpable=True) as world:
            await world.run(COUNTING, check=True)
            reached = await counted(world, 3)
            begun = await world.begin_snapshot()
            (fork,) = await world.fork()
            assert (await begun).tier.whole, (await begun).processes.reason
            await counted(fork, reached)
            await fork.run("kill $job", check=True)
            reached = await counted(world, reached)
            await fork.close()
        async with World.open("job", home=home) as world:
            assert await counted(world, reached) > reached
            await world.run("kill $job", check=True)


KILLED = """
import asyncio, os, sys
from ramify.fork_engine import crash_points
from ramify.worlds.world import World
repo, home, step = sys.argv[1:]
JOB = "(n=0; while :; do echo $n >> log; n=$((n + 1)); sleep 0.002; done) & job=$!"
async def trial(number):
    passed = 0
    def at(name):
        nonlocal passed
        passed += 1
        if passed == number:
            print(name, flush=True)
            os._exit(9)
    world = await World.create(repo, home=home, sandbox="namespaces", name=f"world{number}", dumpable=True)
    await world.run(JOB, check=True)
    await world.write("phase", "one")
    assert (await world.snapshot()).tier.whole
    await world.write("phase", "two")
    crash_points.at = at
    begun = await world.begin_snapshot()
    await world.write("phase", "three")
    assert (await begun).tier.whole
    print("told", flush=True)
    os._exit(0)
for number in range(1, 99, int(step)):  # children of one process that has its modules loaded
    child = os.fork()
    if child == 0:
        asyncio.run(trial(number))
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 9:
        break
"""


async def test_a_crash_before_a_live_snapshot_is_awaited_leaves_the_processes_of_the_state_before(
    tmp_path: Path, repo: Path
) -> None:
    able = doctor.namespaces(tmp_path)
    if not able.available:
        pytest.skip(able.reason)
    step = sample(7, 1)
    words = [sys.executable, "-c", KILLED, str(repo), str(tmp_path / "home"), str(step)]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
    points = done.stdout.split()
    assert points[-1:] == ["told"], done.stderr
    assert len(points) > 1
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        for at, point in enumerate(points):
            async with World.open(f"world{1 + at * step}", home=home) as world:
                assert await world.read("phase") == (b"two" if point == "told" else b"one"), point
                begun = len((await world.read("log")).splitlines())
                await world.run(
                    f"until [ $(wc -l < log) -gt {begun + 5} ]; do sleep 0.01; done; kill $job", check=True
                )
                lines = (await world.read("log")).split()
                assert lines == [b"%d" % n for n in range(len(lines))], f"{point}: not of one instant"
