"""The image of a process, without its pages: `process_dump.py` writes it, `process_restore.py` reads it. Stdlib only.

An image is a folder: this record (`NOTE`), the pages (`PAGES`), and perhaps the pages of the image that it builds on
(`BASE_PAGES`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ramify.sandboxes.agent.checkpointing.memory_image import StoredArea
from ramify.sandboxes.linux.process_memory import Area
from ramify.sandboxes.linux.resource_limits import SCHEDULED_AS_ITS_PARENT, Scheduling

PAGES, BASE_PAGES, NOTE = "pages", "ground", "session.json"

Lock = tuple[str, int, int]
"""A lock of a process on a part of a file: READ or WRITE, its first byte, and its length, 0 for all that follows."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A descriptor of a file that can be opened again by its path, or of one of the session's own pipes."""

    number: int
    path: str  # inside; "pipe:NAME" of a pipe in the agent's private folder
    flags: int
    position: int
    kept_on_exec: bool
    same_as: int = -1  # an earlier descriptor of the same open file
    locks: tuple[Lock, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """What a new process needs to become this one."""

    path: str
    name: str  # as `ps` shows it
    cwd: str
    umask: int
    limits: dict[str, tuple[int, int]]
    identity: tuple[int, int]  # of the interpreter's file: its size and time
    kernel: str
    cwd_removed: bool = False
    scheduling: Scheduling = SCHEDULED_AS_ITS_PARENT


@dataclass(frozen=True, slots=True)
class Thread:
    """The state that the processor and the kernel keep of the one thread."""

    registers: dict[str, int]
    floats: str  # hex
    blocked: int
    restartable: tuple[int, int, int]
    tid_address: int
    robust: tuple[int, int]
    stack: str  # hex: its alternate signal stack
    actions: dict[int, str]  # by signal: hex
    subreaper: int = 0
    death_signal: int = 0  # sent when its parent ends
    clocks: tuple[int, ...] = ()  # since the machine's boot, in the order of `process_dump.CLOCKS`: seconds
    options: tuple[int, ...] = ()  # in the order of `process_dump.OPTIONS`; of images of earlier versions none


@dataclass(frozen=True, slots=True)
class Image:
    """A session's image without its pages. Stored as a file in the image's folder."""

    session: str
    pid: int
    program: Program
    thread: Thread
    places: tuple[int, ...]  # as `PLACES`, and where its heap ends
    kernels: tuple[Area, ...]  # the vDSO and its data
    areas: tuple[StoredArea, ...]
    files: tuple[OpenFile, ...]

    def write(self, folder: Path) -> None:
        (folder / NOTE).write_text(json.dumps(self, default=_fields))

    @classmethod
    def read(cls, folder: Path) -> Self:
        raw = json.loads((folder / NOTE).read_text())
        raw["program"] = _program_in(raw["program"])
        raw["thread"] = Thread(**raw["thread"])
        raw["kernels"] = tuple(Area(**area) for area in raw["kernels"])
        raw["areas"] = tuple(StoredArea(**kept | {"area": Area(**kept["area"])}) for kept in raw["areas"])
        raw["files"] = tuple(OpenFile(**file | {"locks": _locks_in(file)}) for file in raw["files"])
        return cls(**raw)


def _fields(record: Any) -> dict[str, Any]:
    """A record's fields. `dataclasses.asdict` would copy every value first: 3 ms for three programs."""
    return {name: getattr(record, name) for name in record.__slots__}


def _program_in(raw: dict[str, Any]) -> Program:
    """`scheduling` is missing in images of earlier versions."""
    how = dict(raw.get("scheduling", {}))
    if how.get("cpus") is not None:
        how["cpus"] = tuple(how["cpus"])
    return Program(**raw | {"identity": tuple(raw["identity"]), "scheduling": Scheduling(**how)})


def _locks_in(raw: dict[str, list[list[object]]]) -> tuple[Lock, ...]:
    return tuple((str(kind), int(str(first)), int(str(length))) for kind, first, length in raw.get("locks", ()))


def remove_image(folder: Path) -> None:
    """Remove the folder of an image, which has only files. Raises `OSError`. `shutil` is not imported for this: every
    process that is forked from the agent would carry the libraries of its archive formats."""
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
