"""What the user's own git configuration has git run or include from the work tree: `core.hooksPath = scripts/hooks`.

Such a file is no different from one in `.git/hooks`: it runs at the next commit. The configuration is the user's own:
that of the repository, and that of the user for all repositories. An alias runs only when its user types it, as a
Makefile does, so it does not count.
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
_CONTINUED = re.compile(r"\\\r?\n")
_PIECE = re.compile(r'"((?:[^"\\]|\\.)*)"?|\\(.)|([^"\\#;]+)')  # a comment ends the value
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
    for line in _CONTINUED.sub("", config.decode(errors="replace")).splitlines():
        if head := _SECTION.fullmatch(line):
            section, line = head[1].lower(), head[2]
        if section == "alias" or not (pair := _KEY.fullmatch(line)):
            continue
        key, value = pair[1].lower(), _value(pair[2])
        if key in _FOLDERS_AND_FILES:
            found.add(value)
            if section.startswith("include") and not value.startswith(("~", "/")):  # relative to the configuration
                found.add(posixpath.join(posixpath.dirname(CONFIG), value))
        elif key in _COMMANDS:
            found.update(word for word in _WORDS.findall(value) if _FILE_NAME.fullmatch(word))
    inside = (_relative(_expanded(one), folder) for one in found if one)
    return frozenset(one for one in inside if one not in (".", "..") and not one.startswith(("../", "~")))


def named_for(folder: Path) -> frozenset[str]:
    """The same for a folder, relative to it: by the repository that it is in, and by the user's configuration for all
    repositories."""
    own = b"\n".join(map(_read_if_there, _of_user()))
    named = set(named_in(own, str(folder)))
    for top in (folder, *folder.parents):
        if (config := _config_of(top)) is not None:
            named.update(os.path.relpath(top / one, folder) for one in named_in(config + b"\n" + own, str(top)))
            break
    return frozenset(one for one in named if one != "." and not one.startswith(".."))


def _value(written: str) -> str:
    """A value without its quotes, its escapes and the comment after it."""
    said, at = "", 0
    while piece := _PIECE.match(written, at):
        said, at = said + (re.sub(r"\\(.)", r"\1", piece[1] or "") or piece[2] or piece[3] or ""), piece.end()
    return said.strip()


def _expanded(path: str) -> str:
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:  # no home folder
        return path


def _relative(path: str, folder: str) -> str:
    if not path.startswith("/"):
        return posixpath.normpath(path)
    return os.path.relpath(os.path.realpath(path), os.path.realpath(folder))


def _of_user() -> list[Path]:
    """The files with the user's own configuration for all repositories."""
    if named := os.environ.get("GIT_CONFIG_GLOBAL"):
        return [Path(named)]
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return [Path(_expanded(f"{folder}/git/config")), Path(_expanded("~/.gitconfig"))]


def _config_of(top: Path) -> bytes | None:
    """The configuration of the repository whose work tree is this folder; None if it is none."""
    place = top / ".git"
    try:
        shared = place
        if place.is_file():  # of a submodule, or a further work tree
            place = shared = top / os.fsdecode(_read(place)).removeprefix("gitdir:").strip()
            if (place / "commondir").is_file():
                shared = place / os.fsdecode(_read(place / "commondir")).strip()
        return _read(shared / "config") + b"\n" + _read_if_there(place / "config.worktree")
    except (OSError, ValueError):  # ValueError: a name with a NUL byte
        return None


def _read_if_there(path: Path) -> bytes:
    try:
        return _read(path)
    except OSError:
        return b""


def _read(path: Path) -> bytes:
    """Raises `OSError`. What is no regular file is not read: another user may have put a FIFO into a folder above."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        return file.read(MOST_BYTES) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
