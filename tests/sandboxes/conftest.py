from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes import doctor
from ramify.sandboxes.contract import Backend, World, WorldSpec
from ramify.sandboxes.copying import CopyBackend
from ramify.sandboxes.namespaces.backend import NamespaceBackend
from ramify.sandboxes.testing import Answer, ScriptedBackend


@functools.cache
def why_no_namespaces() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        return doctor.namespaces(Path(scratch)).reason


@pytest.fixture(autouse=True)
def _needs_namespaces(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("linux_ns") and why_no_namespaces():
        pytest.skip(why_no_namespaces())


def bash_script(tree: Path, command: str) -> Answer:
    """The scripted backend's script where a test needs what a command does to the tree."""
    done = subprocess.run(["bash", "-c", command], cwd=tree, capture_output=True, stdin=subprocess.DEVNULL)
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "package" / "inner").mkdir(parents=True)
    (folder / "readme.txt").write_text("as it was\n")
    (folder / "package" / "code.py").write_text("x = 1\n")
    (folder / "package" / "inner" / "deep.txt").write_text("deep\n")
    (folder / "link").symlink_to("readme.txt")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "ramify" / "store")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "ramify" / "worlds"


@pytest.fixture
def base(store: SnapshotStore, workspace: Path) -> Snapshot:
    return store.import_tree(workspace).snapshot


@pytest.fixture
def spec(workspace: Path) -> WorldSpec:
    return WorldSpec(mount_at=workspace, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"})


# To hold another backend to the contract, add it here.
BACKENDS: dict[str, Callable[[SnapshotStore, Path], Backend]] = {
    "namespaces": NamespaceBackend,
    "copy": CopyBackend,
    "scripted": lambda store, scratch: ScriptedBackend(store, scratch, bash_script),
}
SHELLS = [pytest.param("namespaces", marks=pytest.mark.linux_ns), "copy"]
ALL = [*SHELLS, "scripted"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `backend` runs on every backend; one marked `shell` on those that have one."""
    if "backend" in metafunc.fixturenames:
        shell = metafunc.module.__name__.endswith("test_shells")
        metafunc.parametrize("kind", SHELLS if shell else ALL)


@pytest.fixture
async def backend(kind: str, store: SnapshotStore, scratch: Path) -> AsyncIterator[Backend]:
    async with BACKENDS[kind](store, scratch) as opened:
        yield opened


@pytest.fixture
async def namespaces(store: SnapshotStore, scratch: Path) -> AsyncIterator[NamespaceBackend]:
    async with NamespaceBackend(store, scratch) as opened:
        yield opened


@pytest.fixture
async def world(backend: Backend, base: Snapshot, spec: WorldSpec) -> World:
    return await backend.materialise(base, spec)


@pytest.fixture
def out() -> Callable[..., Awaitable[str]]:
    """Run a command that must succeed; its output."""

    async def out(world: World, command: str) -> str:
        result = await world.run(command)
        assert result.ok, f"{command}: exit {result.exit_code}\n{result.stdout}{result.stderr}"
        return result.stdout

    return out


@pytest.fixture
def home_workspace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        (Path(folder) / "here.txt").write_text("at home\n")
        yield Path(folder)
