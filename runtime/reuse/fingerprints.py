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
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ramify.runtime.codec import codec
from ramify.sandboxes.contract import WorldSpec

_SYSTEM = ("/etc/os-release", "/etc/alternatives", "/var/lib/dpkg/status", "/var/lib/rpm", "/lib/apk/db/installed")
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/share", "/usr/share", "/opt", "/srv")
_PACKAGES = ("site-packages", "dist-packages")


def world_fingerprint(spec: WorldSpec, backend: str) -> str | None:
    """Return the fingerprint of all that a command can see besides its files. None if no fingerprint can cover it:
    the world has a network or secrets."""
    if spec.network or spec.secrets:
        return None
    shown = replace(spec, image=None)  # the content key covers the image
    return codec.digest([version("ramify"), backend, repr(shown), machine_fingerprint(spec.env.get("PATH", ""))])


def machine_fingerprint(path: str) -> str:
    """Return the fingerprint of the machine's own files: installing a program or package changes one of these
    folders."""
    places = [*_SYSTEM, *_FOLDERS, *filter(None, path.split(os.pathsep)), *sorted(_installed(tuple(sys.path)))]
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
    names = {part for node in ast.walk(ast.parse(data)) for name in _imported(node, package) for part in _above(name)}
    return digest, tuple(_files(sorted(names)))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def imported_names(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the names of an import statement that are modules or may be; nothing for other nodes."""
    return _imported(node, package)


def files_of(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the user's files of these modules and of the packages around them, each with its package."""
    return list(_files(sorted({part for name in names for part in _above(name)})))


def _above(name: str) -> Iterator[str]:
    """Yield a module's name and its packages, whose code an import runs as well."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _files(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if name.partition(".")[0] in sys.stdlib_module_names | {"ramify", ""}:
            continue
        spec = _found(name)
        if spec is not None and spec.origin is not None and _is_the_users(spec.origin):
            package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
            yield spec.origin, package


def _found(name: str) -> ModuleSpec | None:
    """Find a module's spec; None if there is no such module. `importlib.util.find_spec` would import the parent
    packages, and no code must run here that the step does not run itself."""
    above, _, _ = name.rpartition(".")
    path: Sequence[str] | None = None
    if above:
        parent = _found(above)
        path = None if parent is None else parent.submodule_search_locations
        if path is None:
            return None
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, path)) is not None:
            return spec
    return None


def _is_the_users(origin: str) -> bool:
    return Path(origin).exists() and not any(origin.startswith(f"{place}/") for place in _installed(tuple(sys.path)))


@functools.lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> frozenset[str]:
    """Return the folders of the standard library and of installed packages, including other environments on the
    path."""
    own = {place for name in ("purelib", "platlib", "stdlib", "platstdlib") if (place := sysconfig.get_path(name))}
    return frozenset(own | {entry for entry in path if Path(entry).name in _PACKAGES})
