"""Secrets are in a world's environment and nowhere else: every byte of the store is searched for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import Backend, World, WorldSpec
from ramify.sandboxes.errors import SandboxError, SealFailed

Out = Callable[[World, str], Awaitable[str]]
SECRET = "hunter2-9f31c07ae5b8"


@pytest.fixture(params=[pytest.param(NamespaceBackend, marks=pytest.mark.linux_ns), CopyBackend])
async def opened(request: pytest.FixtureRequest, store: SnapshotStore, scratch: Path) -> AsyncIterator[Backend]:
    async with request.param(store, scratch) as backend:
        yield backend


@pytest.fixture
def kept(spec: WorldSpec) -> WorldSpec:
    return replace(spec, secrets={"API_TOKEN": SECRET})


def holders(folder: Path, secret: str = SECRET) -> list[Path]:
    """The files below `folder` that contain the secret, in their bytes or their names."""
    found = [path for path in folder.rglob("*") if secret in path.name]
    return found + [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


SPREAD = (
    'export COPY=$API_TOKEN PART="Bearer $API_TOKEN"; plain=$API_TOKEN; list=(a $API_TOKEN); '
    "f() { echo hunter2-9f31c07ae5b8; }; alias g='curl hunter2-9f31c07ae5b8'; trap 'echo hunter2-9f31c07ae5b8' USR1; "
    "kept=yes; export KEPT=yes; cd package"
)


async def test_a_secret_is_in_the_environment_and_in_no_snapshot(
    opened: Backend, base: Snapshot, kept: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await opened.materialise(base, kept)
    assert await out(world, "echo $API_TOKEN") == f"{SECRET}\n"
    await out(world, "touch changed")
    first = await world.seal()
    await out(world, SPREAD)
    second = await world.seal()
    assert holders(store.root) == []
    assert SECRET not in repr((first, second, kept))
    fork = await opened.materialise(second, replace(kept, secrets={"API_TOKEN": "another"}))
    assert await out(fork, "echo $API_TOKEN $KEPT ${PART-none}") == "another yes none\n"
    bare = await opened.materialise(second, replace(kept, secrets={}))
    assert await out(bare, "echo ${API_TOKEN-none}; env | grep -c hunter2; true") == "none\n0\n"
    assert SECRET not in (await bare.run("declare -p; declare -f; alias; trap")).stdout


DISGUISED = (
    'export UPPER=${API_TOKEN^^} LINES_OF="${API_TOKEN%%-*}\n${API_TOKEN#*-}"; left=${API_TOKEN:0:10}; '
    'right=${API_TOKEN:10}; letters=("${API_TOKEN:0:5}" "${API_TOKEN:5:5}" "${API_TOKEN:10:5}" "${API_TOKEN:15}"); '
    'coded=$(printf "Bearer %s" "$API_TOKEN" | base64); hexed=$(printf %s "$API_TOKEN" | od -An -tx1); '
    'alias g="echo ${API_TOKEN^^}"; trap "echo ${API_TOKEN:1}" USR1; kept=yes'
)


async def test_secrets_in_other_forms_are_in_no_snapshot(
    opened: Backend, base: Snapshot, kept: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await opened.materialise(base, kept)
    await out(world, DISGUISED)
    told = (await world.run("declare -p; alias; trap")).stdout
    assert all(name in told for name in ("UPPER", "left", "right", "letters", "coded", "hexed", "alias g", "USR1"))
    fork = await opened.materialise(await world.seal(), replace(kept, secrets={}))
    told = (await fork.run("declare -p; alias; trap")).stdout
    assert 'kept="yes"' in told
    for name in ("UPPER", "LINES_OF", "left=", "right=", "letters", "coded", "hexed", "alias g", "USR1"):
        assert name not in told


async def test_a_directory_with_the_secret_in_its_path_is_in_no_snapshot(
    opened: Backend, base: Snapshot, kept: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    """The directory itself may be where no snapshot looks."""
    world = await opened.materialise(base, kept)
    await out(world, "mkdir -p /dev/shm/$API_TOKEN && cd /dev/shm/$API_TOKEN && touch $OLDPWD/changed")
    sealed = await world.seal()
    await out(world, "rmdir /dev/shm/$API_TOKEN")
    assert holders(store.root) == [] and sealed.cwd == ""


async def test_a_shell_that_ends_and_a_rollback_keep_the_secret_to_the_world(
    opened: Backend, base: Snapshot, kept: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    world = await opened.materialise(base, kept)
    await world.run("touch x; exit 3")
    assert await out(world, "echo $API_TOKEN") == f"{SECRET}\n"
    await world.rollback(await world.seal())
    assert await out(world, "echo $API_TOKEN") == f"{SECRET}\n"
    assert holders(store.root) == []


async def test_no_error_and_no_log_contains_the_secret(
    opened: Backend,
    base: Snapshot,
    kept: WorldSpec,
    scratch: Path,
    store: SnapshotStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    out: Out,
) -> None:
    def refuse(*_: object, **__: object) -> Snapshot:
        raise OSError(28, "No space left on device")

    caplog.set_level(logging.DEBUG)
    world = await opened.materialise(base, kept)
    await out(world, f"touch x; {SPREAD}")
    for method in ("seal_upper", "seal_tree"):
        monkeypatch.setattr(SnapshotStore, method, refuse)
    told: list[BaseException] = []
    with pytest.raises(SealFailed) as failed:
        await world.seal()
    told.append(failed.value)
    monkeypatch.undo()
    running = asyncio.ensure_future(world.run("sleep 99"))
    await asyncio.sleep(0.1)
    await world.close()
    with pytest.raises(SandboxError) as died:
        await running
    told.append(died.value)
    for error in told:
        while error:
            assert SECRET not in f"{error} {error!r}"
            error = error.__cause__ or error.__context__  # type: ignore[assignment]
    assert SECRET not in caplog.text
    assert [path for path in holders(scratch) if path.suffix == ".log" or path.name == "log"] == []


async def test_a_secret_written_by_a_command_is_in_the_store(
    opened: Backend, base: Snapshot, kept: WorldSpec, store: SnapshotStore, out: Out
) -> None:
    """Documented; and it proves that the search above finds what exists."""
    world = await opened.materialise(base, kept)
    await out(world, "echo $API_TOKEN > written")
    await world.seal()
    assert [path.name for path in holders(store.root)] == ["written"]
