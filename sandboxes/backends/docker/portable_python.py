"""Make the host's Python run in any container. The agent needs one, and most images have none, or an old one.

The interpreter is mounted with its own dynamic loader and libraries, so the image's C library does not matter. An
image needs nothing but bash.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ramify.sandboxes.errors import BackendUnavailable

LINE = re.compile(r"^\s+(?:(?P<name>\S+) => )?(?P<path>/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """The path of each library, by the name that programs load it by (libz.so.1, not the file's own libz.so.1.2.13).

    The loader itself is included, by its full path. Scripts and static programs need none. Raises
    `BackendUnavailable` if a library is missing.
    """
    asked = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True)
    if "=> not found" in asked.stdout:
        missing = [line.strip() for line in asked.stdout.splitlines() if "not found" in line]
        raise BackendUnavailable(f"libraries are missing on this machine: {', '.join(missing)}")
    return {match["name"] or match["path"]: Path(match["path"]) for match in LINE.finditer(asked.stdout)}


def is_loader(name: str) -> bool:
    return Path(name).name.startswith(("ld-", "ld64.so", "ld.so"))


AGENT = Path(__file__).parents[2] / "agent" / "__main__.py"
PLACE = "/ramify/python"  # where containers see it
CODE = "/ramify/sandboxes"  # where they see ramify.sandboxes


@dataclass(frozen=True, slots=True)
class PortablePython:
    """A Python that runs in containers. `folder` holds `bin/python3` and `lib/`; it is mounted at PLACE, with
    `standard` in it."""

    folder: Path
    loader: str  # the dynamic loader's name in `lib`
    standard: Path  # the host's standard library

    @property
    def command(self) -> list[str]:
        """The agent's command line in a container."""
        return self.running("container")

    def running(self, program: str) -> list[str]:
        """The command line in a container of one of the agent's programs."""
        start = [f"{PLACE}/lib/{self.loader}", "--library-path", f"{PLACE}/lib", f"{PLACE}/bin/python3"]
        return [*start, "-I", "-S", "-B", f"{CODE}/agent/{AGENT.name}", program]

    @property
    def mounts(self) -> dict[str, Path]:
        """The host's folders to mount read-only, by their places in the container."""
        return {
            PLACE: self.folder,
            f"{PLACE}/lib/{self.standard.name}": self.standard,
            CODE: AGENT.parents[1],
        }


def make_portable_python(folder: Path) -> PortablePython:
    """Make a portable Python in `folder`: about ten files, a tenth of a second. Raises `BackendUnavailable`."""
    python, standard = Path(os.path.realpath(sys.executable)), Path(sysconfig.get_path("stdlib"))
    asked = subprocess.run([python, "-I", "-S", AGENT, "extensions"], capture_output=True, text=True)
    if asked.returncode != 0:
        raise BackendUnavailable(f"{python} cannot run the agent: {asked.stderr.strip()}")
    needed = libraries([python, *map(Path, asked.stdout.splitlines())])
    loaders = [Path(name).name for name in needed if is_loader(name)]
    if not loaders:
        raise BackendUnavailable(f"{python} has no dynamic loader, so its parts cannot be moved into a container")
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / standard.name).mkdir(parents=True)  # a mount point
    shutil.copy(python, folder / "bin" / "python3")
    for name, path in needed.items():
        shutil.copy(path, folder / "lib" / Path(name).name)
    return PortablePython(folder, loaders[0], standard)
