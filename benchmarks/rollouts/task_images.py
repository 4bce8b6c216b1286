"""One image for each task, in the forms that the backends read: the same bytes for all.

Three layers: this machine's programs with the running Python, pytest, and the project. The first two are the same for
all tasks.
"""

from __future__ import annotations

import io
import subprocess
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.rollouts.projects import Task
from ramify.sandboxes.backends.docker import RootFs
from ramify.sandboxes.backends.docker.host_programs import as_root
from tests.images.image_builder import BuiltImage, write_docker_save

WORKDIR = "/testbed"
TOOLS = "opt/pytest"
_PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_UNUSED = frozenset({"test", "idlelib", "turtledemo", "ensurepip", "site-packages", "dist-packages", "lib2to3"})


@dataclass(frozen=True)
class TaskImage:
    """`archive`: as `docker save` writes it, with the tag `name`. `root`: the two common layers, unpacked."""

    name: str
    task: Task
    archive: Path
    root: Path
    env: dict[str, str]
    layer_bytes: tuple[int, ...]


def build(tasks: Iterable[Task], folder: Path) -> list[TaskImage]:
    common = [_programs(), _tools()]
    root = folder / "root"
    (root / tempfile.gettempdir().lstrip("/")).mkdir(parents=True)  # where bubblewrap mounts a rollout's copy
    for layer in common:
        subprocess.run(["tar", "-x", "--no-same-owner", "-C", root], input=layer, check=True)
    return [_image(task, common, root, folder) for task in tasks]


def _image(task: Task, common: list[bytes], root: Path, folder: Path) -> TaskImage:
    name = f"ramify-bench/{task.project.name}:1"
    layers = [*common, _project(task)]
    env = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": f"/{TOOLS}:{task.project.path}",
        "PYTHONDONTWRITEBYTECODE": "",  # Python writes its caches, as in most images
        "LANG": "C.UTF-8",
    }
    settings = {"WorkingDir": WORKDIR, "Env": [f"{key}={value}" for key, value in env.items()]}
    image = BuiltImage(layers, settings, compress=bytes)
    archive = write_docker_save(folder / f"{task.project.name}.tar", image, tags=(name,))
    return TaskImage(name, task, archive, root, env, tuple(map(len, layers)))


def _programs() -> bytes:
    """Programs, the standard library, and its compiled modules, without which every first `python3` compiles it."""
    made = io.BytesIO()
    RootFs.of_host(python=True).write(made)
    made.seek(0)  # to append, tarfile reads it from here
    library = Path(sysconfig.get_path("stdlib"))
    compiled = [p for p in library.rglob("*.pyc") if not _UNUSED & {*p.relative_to(library).parts}]
    with tarfile.open(fileobj=made, mode="a") as tar:
        for path in sorted(compiled):
            tar.add(path, str(path).lstrip("/"), filter=as_root)
    return made.getvalue()


def _tools() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for package in _PACKAGES:
            for file in distribution(package).files or ():
                path = Path(str(file.locate()))
                if ".." not in file.parts and path.is_file():
                    tar.add(path, f"{TOOLS}/{file}", filter=as_root)
    return made.getvalue()


def _project(task: Task) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(task.folder, WORKDIR.lstrip("/"), filter=as_root)
    return made.getvalue()
