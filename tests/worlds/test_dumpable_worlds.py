"""`World.create(dumpable=True)`: snapshots, forks and names keep the processes of the shell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.host import criu
from ramify.sandboxes.linux import ptrace
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World

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
