"""A Ray cluster of raylets on this machine, each with a home of its own, and runtimes that share one bucket."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import postgres

from ramify import Runtime
from ramify.fleet.types import FleetEvent

STORE_BYTES = 80 << 20
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Raylets:
    """A cluster on this machine. bucket: the homes of its nodes know it, so all tests use it."""

    cluster: Any
    folder: Path
    bucket: Path
    started: int = 0

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **variables: str) -> Any:
        """Start a raylet with one CPU and a new home."""
        self.started += 1
        home = self.folder / f"home{self.started}"
        return self.cluster.add_node(
            num_cpus=1,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            env_vars={
                "RAMIFY_HOME": str(home),
                "RAMIFY_SANDBOX": "docker",
                **variables,
            },  # the fleet says which counts
        )

    def kill(self, raylet: Any) -> None:
        self.cluster.remove_node(raylet, allow_graceful=False)


@contextmanager
def two_raylets(folder: Path) -> Iterator[Raylets]:
    pytest.importorskip("ray", reason="needs Ray (ramify[ray]; .ci/run ray installs it)")
    from ray.cluster_utils import Cluster

    found = Raylets(Cluster(), folder, folder / "bucket")
    try:
        found.add()
        found.add()
        yield found
    finally:
        found.cluster.shutdown()


@pytest.fixture(scope="session")
def raylets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raylets]:
    """Two nodes of this version of Ramify."""
    with two_raylets(tmp_path_factory.mktemp("raylets")) as found:
        yield found


@pytest.fixture
def own_raylets(tmp_path: Path) -> Iterator[Raylets]:
    """A cluster for a test that breaks it."""
    with two_raylets(tmp_path / "raylets") as found:
        yield found


@dataclass
class Heard:
    events: list[FleetEvent] = field(default_factory=list)

    def of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.events if isinstance(one, kind)]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the workflows of `fleet_app` write what they do."""
    made = tmp_path / "log"
    made.mkdir()
    return made


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shared.db"
        return
    if why := postgres.why_not():
        pytest.skip(why)
    with postgres.server() as server:
        yield postgres.new_database(server)


@pytest.fixture
async def shared(raylets: Raylets, tmp_path: Path) -> AsyncIterator[Runtime]:
    """The runtime of the program that has the fleet."""
    async with Runtime(
        home=tmp_path / "program", database=tmp_path / "shared.db", remote=raylets.bucket, sandbox="copy"
    ) as opened:
        yield opened


@pytest.fixture(scope="session")
def other_version(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a folder for PYTHONPATH with this Ramify under another version."""

    def make(version: str) -> Path:
        root = tmp_path_factory.mktemp("other")
        package = root / "ramify"
        package.mkdir()
        for module in (REPOSITORY / "api").iterdir():
            if module.name not in ("__init__.py", "__pycache__"):
                (package / module.name).symlink_to(module)
        for init in REPOSITORY.glob("*/__init__.py"):
            if init.parent.name != "api":
                (package / init.parent.name).symlink_to(init.parent)
        text = (REPOSITORY / "api" / "__init__.py").read_text()
        at = next(line for line in text.splitlines() if line.startswith("__version__"))
        (package / "__init__.py").write_text(text.replace(at, f'__version__ = "{version}"'))
        return root

    return make
