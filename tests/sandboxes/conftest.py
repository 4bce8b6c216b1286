from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes import doctor
from ramify.sandboxes.backends.copying import CopyBackend
from ramify.sandboxes.backends.docker.backend import DockerBackend
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.backends.namespaces.place import STOCK, TREES
from ramify.sandboxes.contract import Backend, World, WorldSpec
from ramify.sandboxes.host import criu
from ramify.sandboxes.testing import Answer, ScriptedBackend
from tests.machine import why_no_namespaces


@functools.cache
def why_not(marker: str) -> str:
    """Why tests with this marker cannot run here; "" if they can."""
    if marker == "docker":
        return doctor.docker().reason
    if marker == "criu":
        return "" if criu.command() else f"CRIU is not installed in {criu.folder()}: make criu"
    return why_no_namespaces()


@pytest.fixture(autouse=True)
def _needs(request: pytest.FixtureRequest) -> None:
    for marker in ("linux_ns", "docker", "criu"):
        if request.node.get_closest_marker(marker) and why_not(marker):
            pytest.skip(why_not(marker))


def bash_script(tree: Path, command: str) -> Answer:
    """A script for the scripted backend, for tests that need a command's effect on the tree."""
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
    python = {Path(sys.prefix), Path(sys.base_prefix)}  # a world hides /tmp, and this environment may stand there
    hidden = tuple(sorted(path for path in python if path.is_relative_to("/tmp") or path.is_relative_to("/var/tmp")))
    return WorldSpec(mount_at=workspace, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}, visible=hidden)


@pytest.fixture
def names_in_tmp(spec: WorldSpec) -> set[str]:
    """The names in a new world's /tmp: the ways to its workspace and to what it is shown there."""
    return {path.parts[2] for path in (spec.mount_at, *spec.visible) if path.is_relative_to("/tmp")}


@dataclass(frozen=True)
class BackendCase:
    """A backend to run the contract tests on."""

    name: str
    open: Callable[[SnapshotStore, Path], Backend]
    marks: tuple[pytest.MarkDecorator, ...] = ()
    shell: bool = True  # whether a real bash runs the commands
    isolated: bool = True


# To hold another backend to the contract, add it here.
CASES = (
    BackendCase("namespaces", NamespaceBackend, (pytest.mark.linux_ns,)),
    BackendCase("docker", DockerBackend, (pytest.mark.docker,)),
    BackendCase("copy", CopyBackend, isolated=False),
    BackendCase(
        "scripted", lambda store, scratch: ScriptedBackend(store, scratch, bash_script), shell=False, isolated=False
    ),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `backend` on every backend; in modules with SHELLS_ONLY, on those with a real shell, and
    with ISOLATED_ONLY, on those whose worlds are isolated."""
    if "backend" in metafunc.fixturenames:
        shells, isolated = (getattr(metafunc.module, name, False) for name in ("SHELLS_ONLY", "ISOLATED_ONLY"))
        cases = [case for case in CASES if (case.shell or not shells) and (case.isolated or not isolated)]
        metafunc.parametrize("case", [pytest.param(case, marks=case.marks, id=case.name) for case in cases])


@pytest.fixture
async def backend(case: BackendCase, store: SnapshotStore, scratch: Path) -> AsyncIterator[Backend]:
    async with case.open(store, scratch) as opened:
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
    """Run a command that must succeed; return its output."""

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


@pytest.fixture
def list_scratch(scratch: Path) -> Callable[[], list[Path]]:
    """Lists everything in the worlds' scratch folder, except what is prepared for future worlds."""

    def list_scratch() -> list[Path]:
        made = {"upper", "work", "work/1"}
        work = "work/1/work"  # overlayfs's own
        made |= {work, f"{work}/incompat", f"{work}/incompat/volatile", f"{work}/incompat/volatile/dirty"}
        folders = [path for path in scratch.glob("*/*") if path.is_dir() and path.name != "root"]
        ready = [path for path in folders if made >= {str(inner.relative_to(path)) for inner in path.rglob("*")}]
        assert len(ready) <= STOCK + TREES
        return sorted(path for path in scratch.rglob("*") if not any(path.is_relative_to(folder) for folder in ready))

    return list_scratch


@pytest.fixture
def root_file_system() -> Callable[..., Path]:
    """Make an image's root file system: some of this machine's programs, and the libraries of these and of
    `beside`."""

    def make(root: Path, *programs: str, beside: Iterable[str | Path] = ()) -> Path:
        for folder in ("usr/bin", "etc"):
            (root / folder).mkdir(parents=True)
        (root / "bin").symlink_to("usr/bin")
        found = {name: os.path.realpath(shutil.which(name) or name) for name in programs}
        for name, path in found.items():
            shutil.copy(path, root / "usr" / "bin" / name)
        libraries: set[str] = set()
        for path in (*found.values(), *beside):
            told = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
            libraries.update(re.findall(r"(/\S+) \(0x", told))
        for library in libraries:
            place = root / library.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(library), place)
        (root / "etc" / "os-release").write_text("NAME=tiny\n")
        return root

    return make
