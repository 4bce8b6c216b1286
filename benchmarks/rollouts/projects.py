"""Six projects of the package index, from their source distributions, each with one seeded bug.

A bug is one operator of one line. The project's own tests fail with it and pass without it, which `prepared` checks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "is", "is not")


class NoProjects(Exception):
    """The source distributions cannot be had, or a seeded bug is none. The message says which."""


@dataclass(frozen=True)
class Project:
    """A source distribution and its bug: in the line `line` of `file`, `{}` is the operator."""

    name: str
    version: str
    file: str
    line: str
    right: str
    seeded: str
    tests: tuple[str, ...]

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def attempts(self) -> tuple[str, ...]:
        """Eight lines that an agent could put there. The right one is the last."""
        others = [one for one in OPERATORS if one != self.right]
        return tuple(self.line.format(one) for one in (*others, self.right))

    @property
    def test_command(self) -> str:
        """Without conftest.py: that of boltons does not run under a current pytest."""
        return f"python3 -W ignore::SyntaxWarning -m pytest -q --noconftest {' '.join(self.tests)}"

    @property
    def path(self) -> str:
        """What Python needs in its path: projects keep their package at the top or below src."""
        return "src" if self.file.startswith("src/") else "."


PROJECTS = (
    Project(
        "h11", "0.16.0", "h11/_headers.py", "            elif seen_content_length {} value:", "!=", "==",
        ("h11/tests/test_headers.py",),
    ),
    Project("idna", "3.20", "idna/core.py", '    if label[2:4] {} "--":', "==", "!=", ("tests/test_idna.py",)),
    Project(
        "cachetools", "8.0.2", "src/cachetools/__init__.py",
        "                while self.__currsize + 1 {} maxsize:", ">", ">=", ("tests/test_lru.py",),
    ),
    Project(
        "toolz", "1.2.0", "toolz/itertoolz.py", "        if val2 {} val1:", "<", ">",
        ("toolz/tests/test_itertoolz.py",),
    ),
    Project(
        "boltons", "25.0.0", "boltons/mathutils.py", "    if upper {} lower:", "<", ">", ("tests/test_mathutils.py",)
    ),
    Project(
        "more-itertools", "11.2.1", "more_itertools/recipes.py", "        while index {} c:", ">=", ">",
        ("tests/test_recipes.py", "-k", "NthCombination"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """A project in a folder, with its bug. `number`: of the line, from 1."""

    project: Project
    folder: Path
    number: int


def fetched(cache: Path) -> None:
    """Fetch the source distributions that the folder lacks, by pip. Raises NoProjects."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [one.requirement for one in PROJECTS if _archive(cache, one) is None]
    if not missing:
        return
    words = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*words, "--no-binary", ":all:", "--dest", str(cache), *missing], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise NoProjects(f"pip download {' '.join(missing)} failed: {done.stderr.strip()[-300:]}")


def prepared(cache: Path, folder: Path, count: int) -> list[Task]:
    """Unpack `count` projects into the folder and seed their bugs. Raises NoProjects, also if no test notices one."""
    fetched(cache)
    folder.mkdir()
    return [_seeded(cache, folder, project) for project in PROJECTS[:count]]


def _archive(cache: Path, project: Project) -> Path | None:
    names = {f"{name}-{project.version}.tar.gz" for name in (project.name, project.name.replace("-", "_"))}
    return next((path for path in cache.iterdir() if path.name in names), None)


def _seeded(cache: Path, folder: Path, project: Project) -> Task:
    archive = _archive(cache, project)
    if archive is None:
        raise NoProjects(f"{cache} holds no source distribution of {project.requirement}")
    subprocess.run(["tar", "-xzf", archive, "--no-same-owner", "-C", folder], check=True)
    place = folder / archive.name.removesuffix(".tar.gz")
    source = place / project.file
    lines = source.read_text(encoding="utf-8").splitlines()
    there = [number for number, line in enumerate(lines) if line == project.line.format(project.right)]
    if not there:
        raise NoProjects(
            f"{project.requirement} has no line {project.line.format(project.right)!r} in {project.file}"
        )
    passed = _passes(place, project)
    lines[there[0]] = project.line.format(project.seeded)
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not passed or _passes(place, project):
        found = "pass with" if passed else "fail without"
        raise NoProjects(f"{project.requirement}: its tests {found} the seeded bug")
    return Task(project, place, there[0] + 1)


def _passes(place: Path, project: Project) -> bool:
    only = {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # as in the images
    env = {**os.environ, **only, "PYTHONPATH": project.path}
    words: Sequence[str] = project.test_command.replace("python3", sys.executable, 1).split()
    done = subprocess.run([*words, "-p", "no:cacheprovider"], cwd=place, env=env, capture_output=True)
    return done.returncode == 0
