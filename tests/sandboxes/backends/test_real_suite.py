"""A real project's own tests give the same results everywhere: outside, in a world, in a fork, after a rollback."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ramify.fork_engine.store import SnapshotStore
from ramify.sandboxes.backends.namespaces.backend import NamespaceBackend
from ramify.sandboxes.contract import Backend, World, WorldSpec
from tests.samples import PATIENT, sample

SHELLS_ONLY = True
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = "toolz==1.0.0"
PATIENCE_S = 240  # with the package index
REPORT = "report.xml"
TESTED = "toolz" if PATIENT else "toolz/tests/test_functoolz.py toolz/tests/test_dicttoolz.py"
SUITE = [sys.executable, *f"-m pytest -q -p no:cacheprovider --junitxml={REPORT} {TESTED}".split()]

PLAIN = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

Results = dict[str, str]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's folder, from its source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:", "--no-deps", PROJECT]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the source distribution of {PROJECT} did not come within {PATIENCE_S} s")
    if done.returncode != 0:
        pytest.skip(f"the source distribution of {PROJECT} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
    (archive,) = folder.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", archive], cwd=folder, check=True)
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def outside(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the test suite without any world."""
    report = tmp_path_factory.mktemp("outside") / REPORT
    command = [part.replace(REPORT, str(report)) for part in SUITE]
    done = subprocess.run(command, cwd=project, env={**os.environ, **PLAIN}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    found = results(report.read_text())
    assert len(found) == sample(85, 180)
    return found


def results(report: str) -> Results:
    """Each test's outcome, by name."""
    return {
        f"{case.get('classname')}::{case.get('name')}": next(iter(case)).tag if len(case) else "passed"
        for case in ET.fromstring(report).iter("testcase")
    }


async def run_suite(world: World) -> Results:
    done = await world.run(SUITE, timeout=120)
    assert done.exit_code in (0, 1), f"pytest could not run: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert (world.path / REPORT).exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found = results((world.path / REPORT).read_text())
    await world.run(["rm", REPORT])
    return found


async def test_the_suite_has_the_same_results_everywhere(
    backend: Backend, project: Path, outside: Results, store: SnapshotStore, spec: WorldSpec
) -> None:
    if backend.name == "copy" and not PATIENT:
        pytest.skip("copies, which isolate nothing, run it with RAMIFY_SLOW=1")
    visible = (Path(sys.prefix), Path(sys.base_prefix))
    await says_the_same(backend, project, outside, store, replace(spec, mount_at=project, visible=visible))


@pytest.mark.linux_ns
async def test_the_suite_has_the_same_results_over_an_image(
    namespaces: NamespaceBackend,
    project: Path,
    outside: Results,
    store: SnapshotStore,
    spec: WorldSpec,
    tmp_path: Path,
    root_file_system: Callable[..., Path],
) -> None:
    """Of the host, only Python and its packages are visible."""
    visible = tuple({Path(sys.prefix), Path(sys.base_prefix), Path(pytest.__file__).parent.parent})
    modules = [module for place in sys.path if place.endswith("lib-dynload") for module in Path(place).glob("*.so")]
    image = root_file_system(tmp_path / "image", "bash", "rm", "sed", beside=(sys.executable, *modules))
    spec = replace(spec, mount_at=Path("/project"), visible=visible, image=image, env={"PATH": "/usr/bin"})
    await says_the_same(namespaces, project, outside, store, spec)


async def says_the_same(
    backend: Backend, project: Path, outside: Results, store: SnapshotStore, spec: WorldSpec
) -> None:
    spec = replace(spec, env={**spec.env, **PLAIN})
    base = store.import_tree(project).snapshot
    world = await backend.materialise(base, spec)
    assert await run_suite(world) == outside

    await world.run("sed -i 's/^def identity(x):$/def identity(x=None):\\n    return 1/' toolz/functoolz.py")
    broken = await world.seal()
    (fork,) = await backend.fork(broken, spec, 1)
    in_fork = await run_suite(fork)
    assert in_fork.keys() == outside.keys()
    assert "failure" in in_fork.values(), "the edit did not reach the tests"
    assert in_fork == await run_suite(world)

    await world.rollback(base)
    assert await run_suite(world) == outside
    (fork,) = await backend.fork(await world.seal(), spec, 1)
    assert await run_suite(fork) == outside
