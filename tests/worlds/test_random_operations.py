"""Whatever is done to a world, by the host or inside, in whatever order: its files and its shell are as expected."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ramify.fork_engine.types import Snapshot
from ramify.worlds.home import WorldHome
from ramify.worlds.world import World
from tests.samples import sample

pytestmark = pytest.mark.linux_ns

OPERATIONS = (
    "write",
    "unlink",
    "exec",
    "exec",
    "run",
    "snapshot",
    "snapshot",
    "restore",
    "restore",
    "fork",
    "reopen",
)
LIST = "for f in $(ls -A); do echo $f=$(cat $f); done"


@dataclass
class Model:
    """What the world must hold, and what it held at each snapshot."""

    files: dict[str, str] = field(default_factory=lambda: {"a": "0"})
    variable: str = ""
    states: list[tuple[Snapshot, dict[str, str], str]] = field(default_factory=list)


async def files_of(world: World) -> dict[str, str]:
    said = await world.exec(LIST)
    return dict(line.split("=", 1) for line in said.stdout.splitlines())


async def operate(world: World, model: Model, rng: random.Random, home: WorldHome) -> World:
    operation, name, value = rng.choice(OPERATIONS), rng.choice("abcd"), str(rng.randrange(10**6))
    if operation == "write":
        await world.write(name, value)
        model.files[name] = value
    elif operation == "unlink":
        (world.path / name).unlink(missing_ok=True)
        model.files.pop(name, None)
    elif operation == "exec":
        await world.exec(f"echo {value} > {name}", check=True)
        model.files[name] = value
    elif operation == "run":
        await world.run(f"echo {value} > {name}; VARIABLE={value}", check=True)
        model.files[name] = model.variable = value
    elif operation == "snapshot":
        model.states.append((await world.snapshot(), dict(model.files), model.variable))
    elif operation == "restore" and model.states:
        state, files, model.variable = rng.choice(model.states[-4:])
        await world.restore(state.id)
        model.files = dict(files)
    elif operation == "fork":
        (fork,) = await world.fork(1)
        async with fork:
            assert await files_of(fork) == model.files
    elif operation == "reopen":
        await world.close()
        return await World.open("mine", home=home)
    return world


@pytest.mark.parametrize("seed", range(sample(2, 4)))
async def test_a_world_is_what_was_done_to_it(tmp_path: Path, seed: int) -> None:
    rng, model = random.Random(seed), Model()
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a").write_text("0")
    async with WorldHome(tmp_path / "home", "namespaces") as home:
        world = await World.create(repo, home=home, name="mine")
        for _ in range(80):
            world = await operate(world, model, rng, home)
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0, 0.02, 0.1)))  # places are prepared meanwhile, or not
            if rng.random() < 0.3:
                assert await files_of(world) == model.files
                assert (await world.run("echo $VARIABLE")).stdout.strip() == model.variable
        assert await files_of(world) == model.files
        await world.close()
