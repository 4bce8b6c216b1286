"""What every backend that has named shells must do: state of their own, in parallel, carried by a fork."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import MergeStrategy, ProcessTier
from ramify.sandboxes.contract import Backend, Limit, World, WorldSpec
from ramify.sandboxes.errors import WorldDied
from ramify.sandboxes.process_contract import PersistentShell, ProcessStarter

SHELLS_ONLY = True
PATIENCE_S = 60.0


@pytest.fixture
def starter(world: World) -> ProcessStarter:
    assert isinstance(world, ProcessStarter)
    return world


async def out(shell: PersistentShell, command: str) -> str:
    result = await shell.run(command, timeout=PATIENCE_S)
    assert result.ok, result
    return result.stdout


async def test_each_shell_keeps_its_own_state(starter: ProcessStarter, world: World) -> None:
    one, two = await starter.shell("one"), await starter.shell("two")
    await out(one, "cd package; export A=1; plain=2; f() { echo f$1; }; shopt -s nullglob; alias x='echo aliased'")
    assert (await out(one, "pwd; echo $A $plain; f 3; echo none*")).endswith("/package\n1 2\nf3\n\n")
    assert (await out(two, "basename $PWD; echo ${A:-none} ${plain:-none}")).endswith("\nnone none\n")
    assert (await world.run("echo ${A:-none}")).stdout == "none\n"
    assert await starter.shell("one") is one
    with pytest.raises(ValueError, match="not a name"):
        await starter.shell("a/b")


async def test_streams_input_folder_variables_and_codes(starter: ProcessStarter) -> None:
    shell = await starter.shell("s")
    result = await shell.run("echo out; echo err >&2; (exit 5)")
    assert (result.exit_code, result.stdout, result.stderr) == (5, "out\n", "err\n")
    data = bytes(range(256)) * 40 + b"\\0'\n"
    assert (await shell.run("cat", stdin=data)).stdout_bytes == data
    assert (await shell.run("cat")).stdout == ""
    within = await shell.run("echo $X; basename $PWD", env={"X": "a b"}, cwd="package")
    assert within.stdout == "a b\npackage\n"
    assert await out(shell, "echo ${X:-none}; ls run.sh") == "none\nrun.sh\n"
    assert (await shell.run("seq 300000")).stdout.endswith("\n300000\n")
    assert (await out(shell, "echo '" + "x" * 300_000 + "' | wc -c")).strip() == "300001"  # a long script is taken


async def test_shells_run_beside_each_other(starter: ProcessStarter, world: World) -> None:
    """Each waits for the other: they would never end one after the other."""
    one, two = await starter.shell("one"), await starter.shell("two")
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(
            one.run("until [ -e b ]; do sleep 0.01; done; touch c"),
            two.run("touch a; until [ -e c ]; do sleep 0.01; done"),
            world.run("until [ -e a ]; do sleep 0.01; done; touch b"),
        )
    assert all(result.ok for result in results)


async def test_a_shell_that_ended_comes_back_as_it_was(starter: ProcessStarter) -> None:
    shell = await starter.shell("s")
    await out(shell, "cd package; f() { echo f; }; export A='1 2'")
    assert (await shell.run("lost=1; exit 3")).exit_code == 3
    assert (await out(shell, "basename $PWD; f; echo $A ${lost:-none}")).split() == ["package", "f", "1", "2", "none"]
    for patience in (0.3, 3.0, 30.0):
        late = await shell.run("echo early; setsid sleep 1000 & sleep 1000", timeout=patience)
        if late.stdout:
            break  # else the machine was so busy that the command had not begun
    assert (late.exit_code, late.timed_out, late.limit, late.stdout) == (124, True, Limit.TIME, "early\n")
    assert await out(shell, "f") == "f\n"
    await shell.close()
    assert await out(shell, "echo ${A:-none}; ls readme.txt") == "none\nreadme.txt\n"


async def test_a_cancelled_command_leaves_nothing(starter: ProcessStarter, world: World) -> None:
    shell = await starter.shell("s")
    await out(shell, "A=1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await shell.run("sleep 1000 & setsid sleep 1000")
    assert await world.background_processes() == 0
    assert await out(shell, "echo $A") == "1\n"


async def test_a_fork_has_the_shells_and_a_seal_does_not_see_idle_ones(
    starter: ProcessStarter, world: World, backend: Backend, spec: WorldSpec
) -> None:
    shell = await starter.shell("s")
    await out(shell, "trap 'echo trapped > trapped' EXIT; cd package; export A=1; g() { echo g; }")
    sealed = await world.seal()
    assert sealed.processes.tier is ProcessTier.NONE and sealed.processes.dropped == 0
    assert [name for name, _ in sealed.processes.shells] == ["s"]
    assert (await world.seal()).id == sealed.id
    fork = await backend.materialise(sealed, spec)
    assert isinstance(fork, ProcessStarter)
    assert await out(await fork.shell("s"), "basename $PWD; g; echo $A; A=2; ls ..") != ""
    assert await out(await fork.shell("s"), "basename $PWD; g; echo $A") == "package\ng\n2\n"
    assert await out(shell, "basename $PWD; g; echo $A") == "package\ng\n1\n"
    assert not (world.path / "trapped").exists()
    assert (await fork.seal()).processes.shells != sealed.processes.shells  # type: ignore[attr-defined]
    await world.rollback(sealed)
    assert await out(await starter.shell("s"), "basename $PWD; g; echo $A") == "package\ng\n1\n"


async def test_a_seal_spares_the_jobs_of_a_shell(starter: ProcessStarter, world: World) -> None:
    shell = await starter.shell("s")
    await out(shell, "sleep 1000 & me=$!")
    sealed = await world.seal()
    assert sealed.processes.dropped >= 1
    assert await out(shell, "kill $me && wait $me || echo $?") == "143\n"


async def test_a_rollback_ends_shells(starter: ProcessStarter, world: World) -> None:
    shell = await starter.shell("s")
    await out(shell, "A=1")
    await world.rollback(world.snapshot)
    with pytest.raises(WorldDied):
        await shell.run("true")
    assert await out(await starter.shell("s"), "echo ${A:-none}") == "none\n"
    await world.close()
    with pytest.raises(WorldDied):
        await starter.shell("s")


async def test_no_state_has_a_secret(backend: Backend, store: SnapshotStore, workspace: Path) -> None:
    spec = WorldSpec(workspace, env={"PATH": os.environ["PATH"]}, secrets={"TOKEN": "tell-nobody"})
    world = await backend.materialise(store.import_tree(workspace).snapshot, spec)
    assert isinstance(world, ProcessStarter)
    shell = await world.shell("s")
    assert await out(shell, "echo $TOKEN; export COPY=$TOKEN; also=$TOKEN; kept=1") == "tell-nobody\n"
    ((_, blob),) = (await world.seal()).processes.shells
    assert b"tell-nobody" not in store.blob(blob) and b"kept" in store.blob(blob)


async def test_a_merge_takes_each_shell_from_the_side_that_changed_it(
    starter: ProcessStarter, world: World, backend: Backend, spec: WorldSpec, store: SnapshotStore
) -> None:
    for name in ("mine", "yours", "both"):
        await out(await starter.shell(name), "A=0")
    base = await world.seal()
    fork = await backend.materialise(base, spec)
    assert isinstance(fork, ProcessStarter)
    for one, names in ((starter, ("mine", "both")), (fork, ("yours", "both", "new"))):
        for name in names:
            await out(await one.shell(name), f"A={name}; B={one is fork}")
    ours, theirs = await world.seal(), await fork.seal()  # type: ignore[attr-defined]
    merged = store.merge(base, ours, theirs)
    assert "both sides changed the shell 'both'" in merged.processes.reason
    await world.rollback(merged)
    told = [await out(await starter.shell(name), "echo $A") for name in ("mine", "yours", "new", "both")]
    assert told == ["mine\n", "yours\n", "new\n", "\n"]
    kept = store.merge(base, ours, theirs, strategy=MergeStrategy.THEIRS)
    assert dict(kept.processes.shells)["both"] == dict(theirs.processes.shells)["both"]
    assert not store.fsck().problems
