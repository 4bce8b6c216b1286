"""The backends of the rollouts: worlds, Docker and bubblewrap, the last two by mini-swe-agent's own environments.

bubblewrap has no images. It gets the unpacked common layers read-only and a copy of the project for each rollout.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rollouts.task_images import WORKDIR, TaskImage

_QUIET = logging.getLogger("ramify-bench")


class Backend(ABC):
    name: str

    @abstractmethod
    def environment(self, image: TaskImage) -> Any:
        """A fresh environment of mini-swe-agent over the image; `opened` cleans it up."""

    @contextmanager
    def opened(self, image: TaskImage) -> Iterator[Any]:
        environment = self.environment(image)
        try:
            yield environment
        finally:
            environment.cleanup()

    def settled(self) -> None:  # noqa: B027 - most backends leave nothing
        """End what is still ending in the background."""


class Worlds(Backend):
    name = "Ramify"

    def __init__(self, home: Path, ids: dict[str, str]) -> None:
        """ids: of the images, by name."""
        self.home, self.ids = home, ids

    def environment(self, image: TaskImage) -> Any:
        from ramify.integrations.mini_swe_agent import WorldEnvironment

        return WorldEnvironment(image=self.ids[image.name], home=str(self.home))


class Docker(Backend):
    """Without a network, as worlds are."""

    name = "Docker"
    label = f"ramify-bench={os.getpid()}"  # of this run alone

    def environment(self, image: TaskImage) -> Any:
        from minisweagent.environments.docker import DockerEnvironment

        run = ["--rm", "--network", "none", "--label", self.label]
        return DockerEnvironment(image=image.name, cwd=WORKDIR, run_args=run, logger=_QUIET)

    def settled(self) -> None:
        """mini-swe-agent stops a container in the background, which takes ten seconds: `sleep` ignores the signal.
        The benchmark ends them at once, between what it measures."""
        if left := docker("ps", "-aq", "--filter", f"label={self.label}").split():
            subprocess.run(["docker", "rm", "-f", *left], capture_output=True)


class Bubblewrap(Backend):
    name = "bubblewrap"

    def environment(self, image: TaskImage) -> Any:
        from minisweagent.environments.extra.bubblewrap import BubblewrapEnvironment

        made = BubblewrapEnvironment(wrapper_args=isolation(image.root), env=image.env, logger=_QUIET)
        shutil.copytree(image.task.folder, made.working_dir, symlinks=True, dirs_exist_ok=True)
        return made


def isolation(root: Path) -> list[str]:
    fixed = ["--unshare-all", "--new-session", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
    return ["--ro-bind", str(root), "/", *fixed, "--tmpfs", tempfile.gettempdir()]  # holds the rollout's copy


def docker(*words: str) -> str:
    """What `docker` prints. Raises RuntimeError."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"docker {' '.join(words[:2])}: {done.stderr.strip()}")
    return done.stdout


def load(images: Sequence[TaskImage]) -> None:
    for image in images:
        docker("load", "--quiet", "--input", str(image.archive))
