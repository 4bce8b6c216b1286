"""What the user's own git configuration has git run or include from the work tree: `core.hooksPath = scripts/hooks`.

Such a file is no different from one in `.git/hooks`: it runs at the next commit. The configuration is the user's own.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from pathlib import Path

CONFIG = ".git/config"
MOST_BYTES = 1 << 20  # of a configuration that is read

_SECTION = re.compile(r'\s*\[\s*([A-Za-z0-9.-]+)\s*(?:"[^"]*")?\s*\]\s*(.*)')
_KEY = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
_FOLDERS_AND_FILES = frozenset({"hookspath", "path"})  # whose value is a path as it is
_COMMANDS = frozenset({
    "fsmonitor", "sshcommand", "askpass", "editor", "pager", "clean", "smudge", "process", "external", "command",
    "textconv", "driver", "helper", "program", "cmd", "difffilter", "gitproxy",
})  # fmt: skip
_WORDS = re.compile(r"[^\s\"'=;|&()<>`$!\\]+")
_FILE_NAME = re.compile(r".*/.*|.+\.[A-Za-z]{1,4}")


def named_in(config: bytes, folder: str) -> frozenset[str]:
    """The paths in the work tree, relative to it, that a configuration has git run or include. `folder`: where the
    work tree is or will be."""
    found, section = set[str](), ""
    for line in config.decode(errors="replace").splitlines():
        if head := _SECTION.fullmatch(line):
            section, line = head[1].lower(), head[2]
        if not (pair := _KEY.fullmatch(line)):
            continue
        key, value = pair[1].lower(), pair[2].strip().strip('"')
        if key in _FOLDERS_AND_FILES:
            found.add(value)
            if section.startswith("include") and not value.startswith(("~", "/")):  # relative to the configuration
                found.add(posixpath.join(posixpath.dirname(CONFIG), value))
        elif key in _COMMANDS or section == "alias":
            found.update(word for word in _WORDS.findall(value) if _FILE_NAME.fullmatch(word))
    inside = (
        os.path.relpath(one, folder) if one.startswith("/") else posixpath.normpath(one) for one in found if one
    )
    return frozenset(one for one in inside if one not in (".", "..") and not one.startswith(("../", "~")))


def named_by_repository(folder: Path) -> frozenset[str]:
    """The same for the repository that a folder is in, relative to the folder; nothing if there is none."""
    for top in (folder, *folder.parents):
        if (config := _config_of(top)) is not None:
            named = named_in(config, str(top))
            inside = (os.path.relpath(top / one, folder) for one in named)
            return frozenset(one for one in inside if one != "." and not one.startswith(".."))
    return frozenset()


def _config_of(top: Path) -> bytes | None:
    """The configuration of the repository whose work tree is this folder; None if it is none."""
    place = top / ".git"
    try:
        if place.is_file():  # of a submodule, or a further work tree
            place = top / os.fsdecode(_read(place)).removeprefix("gitdir:").strip()
            if (place / "commondir").is_file():
                place /= os.fsdecode(_read(place / "commondir")).strip()
        return _read(place / "config")
    except (OSError, ValueError):  # ValueError: a name with a NUL byte
        return None


def _read(path: Path) -> bytes:
    """Raises `OSError`. What is no regular file is not read: another user may have put a FIFO into a folder above."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        return file.read(MOST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
