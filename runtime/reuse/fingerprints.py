"""Fingerprints of what a result depends on besides arguments and world: the user's code, and the machine.

A fingerprint is a digest that changes if the thing may have changed. An unnecessary change costs a reuse miss; a
missed change would cause a wrong hit. So in doubt a fingerprint changes (`docs/decisions/021`).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ramify.compiler.parsing import parsed
from ramify.runtime.codec import codec
from ramify.runtime.user_code.workflow_loader import files_of, imported_names, installed_folders
from ramify.sandboxes.contract import WorldSpec

_SYSTEM = ("/etc/os-release", "/etc/alternatives", "/var/lib/dpkg/status", "/var/lib/rpm", "/lib/apk/db/installed")
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/share", "/usr/share", "/opt", "/srv")


def world_fingerprint(spec: WorldSpec, backend: str) -> str | None:
    """Return the fingerprint of all that a command can see besides its files. None if no fingerprint can cover it:
    the world has a network or secrets."""
    if spec.network or spec.secrets:
        return None
    shown = replace(spec, image=None)  # the content key covers the image
    return codec.digest([_own_version(), backend, repr(shown), machine_fingerprint(spec.env.get("PATH", ""))])


@functools.cache
def _own_version() -> str:
    return version("ramify")


def machine_fingerprint(path: str) -> str:
    """Return the fingerprint of the machine's own files: installing a program or package changes one of these
    folders."""
    places = [*_SYSTEM, *_FOLDERS, *filter(None, path.split(os.pathsep)), *sorted(installed_folders(tuple(sys.path)))]
    seen = [f"{place} {_changed(place)}" for place in places]
    return hashlib.sha256("\n".join([sys.version, *os.uname()[2:], *seen]).encode()).hexdigest()


def _changed(place: str) -> str:
    try:
        status = Path(place).stat()
    except OSError:
        return "missing"
    return f"{status.st_ino} {status.st_mtime_ns}"


def code_fingerprint(function: Callable[..., Any]) -> str | None:
    """Return the fingerprint of the user's files that the function's module imports, directly or not; None if the
    module has no file.

    The plan's digest of a step covers what the step uses of its own module. This one covers the other modules as a
    whole, except the standard library and installed packages, which `machine_fingerprint` covers.
    """
    module = sys.modules.get(function.__module__)
    first = getattr(module, "__file__", None)
    if not isinstance(first, str) or not Path(first).is_file():
        return None
    found: dict[str, str] = {}
    todo = [(first, getattr(module, "__package__", None) or "")]
    while todo:
        file, package = todo.pop()
        if file not in found:
            status = Path(file).stat()
            found[file], imported = _read(file, status.st_mtime_ns, status.st_size, package)
            todo += imported
    del found[first]
    return codec.digest(sorted(found.items()))


@functools.lru_cache(maxsize=1024)
def _read(file: str, mtime_ns: int, size: int, package: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return a file's digest, and the user's files that it imports."""
    data = Path(file).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if not file.endswith(".py"):
        return digest, ()
    tree = parsed(lambda: ast.parse(data))
    names = [name for node in ast.walk(tree) for name in imported_names(node, package)]
    return digest, tuple(files_of(names))
