"""What every backend must do, whatever its worlds are made of: trees, seals, forks, rollbacks, ends."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import LayerId, ProcessTier, Snapshot
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import MIB, Backend, Limits, World, WorldSpec, required_features
from ramify.sandboxes.egress.settings import Egress
from ramify.sandboxes.errors import SandboxError, Unsupported, WorldDied, WorldStartFailed

Out = Callable[[World, str], Awaitable[str]]


def plain_scan(tree: Path) -> dict[str, tuple[str, int, str]]:
    """Every path below `tree`, with its kind, permission bits, and content or target."""
    found = {}
    for folder, names, files in os.walk(tree):
        for name in (*names, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                what = ("symlink", 0, str(path.readlink()))
            elif stat.S_ISDIR(mode):
                what = ("dir", stat.S_IMODE(mode), "")
            else:
                what = ("file", stat.S_IMODE(mode), path.read_bytes().hex())
            found[str(path.relative_to(tree))] = what
    return found


def restored(store: SnapshotStore, snapshot: Snapshot, into: Path) -> dict[str, tuple[str, int, str]]:
    store.materialise(snapshot, into)
    return plain_scan(into)


async def test_a_world_shows_the_snapshot_and_leaves_the_workspace_alone(
    world: World, workspace: Path, out: Out
) -> None:
    before = plain_scan(workspace)
    assert plain_scan(world.path) == before
    assert await out(world, "cat link package/inner/deep.txt; ./run.sh") == "as it was\ndeep\nran\n"
    await out(world, "echo changed > readme.txt; rm -r package; touch new")
    assert plain_scan(workspace) == before


async def test_exit_codes_and_streams(world: World) -> None:
    result = await world.run("echo out; echo err >&2; (exit 42)")
    assert (result.exit_code, result.stdout, result.stderr) == (42, "out\n", "err\n")
    assert not result.ok
    assert (await world.run("true")).ok


async def test_a_sequence_is_one_quoted_command(world: World) -> None:
    words = ["a b", "$HOME", "'", '"', "*", "", "new\nline", "\\", "ü"]
    result = await world.run(["printf", "<%s>", *words])
    assert result.stdout == "".join(f"<{word}>" for word in words)


async def test_commands_that_no_shell_can_execute_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="NUL"):
        await world.run("echo a\0b")
    with pytest.raises(ValueError, match="surrogate"):
        await world.run("echo a\ud800b")
    with pytest.raises(ValueError, match="surrogate"):
        await world.run("pwd", cwd="\ud800")
    with pytest.raises(ValueError, match="not-a-name"):
        await world.run("true", env={"not-a-name": "1"})


async def test_a_seal_holds_every_kind_of_change(
    world: World, store: SnapshotStore, tmp_path: Path, out: Out
) -> None:
    base = world.snapshot
    await out(
        world,
        """
        echo more >> readme.txt; echo new > new.txt; chmod 700 run.sh; rm link; ln -s nowhere link
        rm -r package; mkdir package; echo other > package/code.py     # an opaque folder
        mkdir -p a/b; mv new.txt a/b/moved.txt; rm -r a; mkdir a; touch "a/ü *"; printf '\\xff\\x00' > binary
        mkdir locked; touch locked/in; chmod 555 locked
        """,
    )
    sealed = await world.seal()
    seen = plain_scan(world.path)
    assert seen["binary"] == ("file", 0o644, "ff00")
    assert "package/inner" not in seen
    assert restored(store, sealed, tmp_path / "restored") == seen
    assert {path: entry.content[:2] for path, entry in store.entries(sealed).items() if path} == {
        path: (kind, mode) if kind != "symlink" else (kind, store.entries(sealed)[path].mode)
        for path, (kind, mode, _) in seen.items()
    }
    assert world.snapshot is sealed
    assert sealed.base == base.base
    assert sealed.tier is ProcessTier.NONE


async def test_seals_stack(
    world: World, backend: Backend, spec: WorldSpec, store: SnapshotStore, tmp_path: Path, out: Out
) -> None:
    expected = []
    for turn in range(5):
        await out(
            world, f"echo {turn} > turn; mkdir d{turn}; touch d{turn}/f; rm -rf d{turn - 2}; rm -rf keep; mkdir keep"
        )
        expected.append((await world.seal(), plain_scan(world.path)))
    assert len({snapshot.id for snapshot, _ in expected}) == 5
    for turn, (snapshot, seen) in enumerate(expected):
        assert restored(store, snapshot, tmp_path / f"restored{turn}") == seen
    fork = await backend.materialise(expected[2][0], spec)
    assert plain_scan(fork.path) == expected[2][1]


async def test_a_seal_that_was_begun_holds_what_was_before_it(
    world: World, store: SnapshotStore, out: Out, tmp_path: Path
) -> None:
    await out(world, "echo before > first")
    begun = await world.begin_seal()
    await out(world, "echo after > first; echo after > second")
    sealed = await begun
    tree = restored(store, sealed, tmp_path / "restored")
    assert tree["first"][2] == b"before\n".hex()
    assert "second" not in tree
    later = await world.seal()
    assert later.parents == (sealed.id,)
    assert restored(store, later, tmp_path / "later")["second"][2] == b"after\n".hex()


async def test_seals_that_were_begun_come_in_their_order(world: World, store: SnapshotStore, out: Out) -> None:
    begun = []
    for number in range(3):
        await out(world, f"echo {number} > counted")
        begun.append(await world.begin_seal())
    sealed = [await one for one in begun]
    assert [one.parents for one in sealed[1:]] == [(one.id,) for one in sealed[:-1]]
    assert world.snapshot is sealed[-1]


async def test_a_world_that_is_closed_ends_the_seal_that_was_begun(world: World, base: Snapshot, out: Out) -> None:
    await out(world, "echo new > file")
    begun = await world.begin_seal()
    await world.close()
    with suppress(SandboxError):  # it may not have taken the state
        assert (await begun).parents == (base.id,)
    with pytest.raises(WorldDied):
        await (await world.begin_seal())


async def test_a_seal_without_changes_gives_the_same_snapshot(world: World, base: Snapshot, out: Out) -> None:
    assert await world.seal() is base
    await out(world, "cat readme.txt; ls -R")
    assert (await world.seal()).id == base.id
    await out(world, "echo x > new")
    sealed = await world.seal()
    assert sealed.id != base.id
    assert (await world.seal()).id == sealed.id


async def test_writes_of_the_host_through_path_are_changes(
    world: World, backend: Backend, spec: WorldSpec, out: Out
) -> None:
    (world.path / "package" / "code.py").write_text("x = 2\n")
    (world.path / "readme.txt").unlink()
    assert await out(world, "cat package/code.py; ls") == "x = 2\nlink\npackage\nrun.sh\n"
    fork = await backend.materialise(await world.seal(), spec)
    assert (fork.path / "package" / "code.py").read_text() == "x = 2\n"
    (world.path / "after").write_text("still there after a seal\n")
    assert await out(world, "cat after") == "still there after a seal\n"
    assert not (fork.path / "after").exists()


async def test_siblings_see_nothing_of_each_other(
    world: World, backend: Backend, spec: WorldSpec, base: Snapshot, out: Out
) -> None:
    await out(world, "echo parent > who")
    sealed = await world.seal()
    left, right = await asyncio.gather(*(backend.materialise(sealed, spec) for _ in range(2)))
    await asyncio.gather(out(left, "echo left > who"), out(right, "rm who"), out(world, "echo later > who"))
    assert await out(left, "cat who") == "left\n"
    assert not (right.path / "who").exists()
    assert await out(world, "cat who") == "later\n"
    first, second = await left.seal(), await right.seal()
    assert len({first.id, second.id, sealed.id}) == 3
    assert left.id != right.id


async def test_a_fork_is_n_worlds_at_once(
    world: World, backend: Backend, spec: WorldSpec, scratch: Path, out: Out
) -> None:
    await out(world, "echo parent > who")
    sealed = await world.seal()
    forks = await backend.fork(sealed, spec, 3)
    assert len({fork.id for fork in forks} | {world.id}) == 4
    assert [fork.snapshot.id for fork in forks] == [sealed.id] * 3
    await asyncio.gather(*(out(fork, f"cat who; echo {n} > who") for n, fork in enumerate(forks)))
    assert [(fork.path / "who").read_text() for fork in forks] == ["0\n", "1\n", "2\n"]
    assert (world.path / "who").read_text() == "parent\n"
    assert await backend.fork(sealed, spec, 0) == []
    with pytest.raises(ValueError, match="-1 ways"):
        await backend.fork(sealed, spec, -1)


async def test_a_fork_that_fails_leaves_no_world(
    backend: Backend, base: Snapshot, spec: WorldSpec, list_scratch: Callable[[], list[Path]]
) -> None:
    before = list_scratch()
    gone = replace(base, layers=(LayerId("0" * 64),))
    with pytest.raises((SandboxError, ForkEngineError)):
        await backend.fork(gone, spec, 3)
    assert list_scratch() == before


ASKED: dict[Feature, dict[str, Any]] = {
    Feature.IMAGES: {"image": Path("/nowhere/image.tar")},
    Feature.HOST_NETWORK: {"network": True},
    Feature.EGRESS: {"egress": Egress(["pypi.org"])},
    Feature.COMMANDS: {"startup": ("true",)},
    Feature.MEMORY_LIMIT: {"limits": Limits(memory_bytes=500 * MIB)},
    Feature.PROCESS_LIMIT: {"limits": Limits(processes=100)},
    Feature.FILE_LIMIT: {"limits": Limits(file_bytes=MIB)},
    Feature.DISK_LIMIT: {"limits": Limits(disk_bytes=100 * MIB)},
    Feature.OPEN_FILES_LIMIT: {"limits": Limits(open_files=200)},
    Feature.CPU_LIMIT: {"limits": Limits(cpu_s=5)},
}


async def test_missing_features_are_refused(
    backend: Backend, base: Snapshot, spec: WorldSpec, list_scratch: Callable[[], list[Path]]
) -> None:
    before = list_scratch()
    for feature, asked in ASKED.items():
        if not backend.capabilities.can(feature):
            with pytest.raises(Unsupported) as refused:
                await backend.materialise(base, replace(spec, **asked))
            assert (refused.value.backend, refused.value.feature) == (backend.name, feature.value)
            assert refused.value.reason == backend.capabilities.why_not(feature)
    assert list_scratch() == before


@pytest.mark.parametrize("env", [{"": "1"}, {"A=B": "1"}, {"A": "1\0"}, {"A\0": "1"}])
async def test_variables_that_no_process_can_have_are_refused(
    backend: Backend, base: Snapshot, spec: WorldSpec, env: dict[str, str]
) -> None:
    for asked in (replace(spec, env=env), replace(spec, secrets=env)):
        with pytest.raises(WorldStartFailed, match="no process can have the variable") as refused:
            await backend.materialise(base, asked)
        assert "1\0" not in str(refused.value)


def test_every_request_of_a_specification_has_a_feature(spec: WorldSpec) -> None:
    for feature, asked in ASKED.items():
        assert list(required_features(replace(spec, **asked))) == [feature]
    assert list(required_features(spec)) == []


async def test_rollback_drops_changes(world: World, base: Snapshot, workspace: Path, out: Out) -> None:
    await out(world, "echo x > kept")
    sealed = await world.seal()
    await out(world, "rm -r package kept; echo y > dropped")
    await world.rollback(sealed)
    assert world.snapshot is sealed
    assert plain_scan(world.path).keys() == plain_scan(workspace).keys() | {"kept"}
    assert await out(world, "ls") == "kept\nlink\npackage\nreadme.txt\nrun.sh\n"
    await world.rollback(base)
    assert plain_scan(world.path) == plain_scan(workspace)
    assert (await world.seal()).id == base.id


async def test_close_is_idempotent_and_frees_the_disk(
    world: World, backend: Backend, scratch: Path, out: Out
) -> None:
    await out(world, "mkdir -p a/b; touch a/b/c; chmod 000 a/b; chmod 000 a")
    await world.close()
    await world.close()
    assert not list(scratch.rglob(world.id))
    for use in (world.run("true"), world.seal(), world.rollback(world.snapshot), world.background_processes()):
        with pytest.raises(WorldDied):
            await use
    with pytest.raises(WorldDied):
        _ = world.path


async def test_leaving_the_backend_ends_its_worlds(world: World, backend: Backend, scratch: Path) -> None:
    await backend.__aexit__(None, None, None)
    with pytest.raises(WorldDied):
        await world.run("true")
    assert list(scratch.iterdir()) == []


async def test_overlapping_runs_wait_for_each_other(world: World, out: Out) -> None:
    await asyncio.gather(*(out(world, f"echo begin {n} >> log; sleep 0.01; echo end {n} >> log") for n in range(5)))
    lines = (world.path / "log").read_text().split("\n")
    for begin, end in zip(lines[0:10:2], lines[1:10:2], strict=True):
        assert begin.replace("begin", "end") == end
