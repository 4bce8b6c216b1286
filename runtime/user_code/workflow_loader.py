"""Load a workflow by its reference, `path/to/file.py:name` or `module:name`, in this process or another one.

A file is imported under the dotted name that its package gives it. So relative imports work, and a class has the same
name whether the file was run as a script, imported, or loaded for a run.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import linecache
import sys
import sysconfig
import zipfile
import zipimport
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from ramify import paths
from ramify.runtime.errors import RunError, TargetBroken, TargetNotFound

_targets: set[str] = set()
_PACKAGES = ("site-packages", "dist-packages")


def targets() -> frozenset[str]:
    """Return the names of the modules whose workflows this process runs."""
    return frozenset(_targets)


def register_target(module: str) -> None:
    """Register a module whose workflows are run here: stored values may name types of the modules that it imports."""
    _targets.add(module)


def load_target(ref: str) -> Any:
    """Return the object of `file.py:name` or `module:name`.

    Raises `TargetNotFound`; `TargetBroken` if the module raises, except for `RunError` and `CompileError`, which say
    themselves where the fault is.
    """
    where, _, name = ref.rpartition(":")
    if not where or not name or (where.startswith(".") and not where.endswith(".py")):
        raise TargetNotFound(f"{ref!r}: expected FILE.py:NAME or MODULE:NAME, such as app.py:repair")
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    except (RunError, KeyboardInterrupt):
        raise
    except BaseException as error:
        from ramify.compiler.errors import CompileError  # not loaded where a given plan runs

        if isinstance(error, CompileError):
            raise
        raise TargetBroken(f"{where} could not be loaded: {_told(error)}") from error
    register_target(module.__name__)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise TargetNotFound(f"{where} has no {name!r}")
        found = getattr(found, part)
    return found


def _told(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f'it ended the program ({error!r}): put what it runs under `if __name__ == "__main__":`'
    if isinstance(error, RuntimeError) and "running event loop" in str(error):
        return f'{error}: put `asyncio.run(…)` under `if __name__ == "__main__":`'
    return str(error) or type(error).__name__


def file_ref(function: Any) -> str | None:
    """Return `/abs/file.py:name` of a function; None if it has no file (a notebook, `python -c`)."""
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if file is None or "<locals>" in function.__qualname__:
        return None
    return f"{Path(file).resolve()}:{function.__qualname__}"


def canonical_module(name: str) -> str:
    """Return a module's importable name; for `__main__` the name under which it would be imported."""
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name and spec.name != name:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    found = name if file is None else _dotted(Path(file).resolve())[1]
    return found if file is None or found != name else _apart(Path(file))  # of a folder or an archive that is run


def is_main_module(name: str) -> bool:
    """Whether the running script is the module of that importable name."""
    return name == "__main__" or (name not in sys.modules and canonical_module("__main__") == name)


def _dotted(file: Path) -> tuple[Path, str]:
    """Return the `sys.path` folder and the dotted name of a file, from the `__init__.py` files above it."""
    parts = [] if file.name == "__init__.py" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _load_file(path: Path) -> ModuleType:
    try:
        file = paths.expanded(path).resolve()
    except RuntimeError:  # before Python 3.13, which finds no such file
        raise TargetNotFound(f"{path}: a link that leads to itself") from None
    except FileNotFoundError:  # of os.getcwd, for a relative path
        raise TargetNotFound(f"{path}: the current folder was deleted: go to another one") from None
    try:
        archive = _archive_of(file)
        if archive is None and not file.is_file():
            raise TargetNotFound(f"{path}: {'a folder, not a file' if file.is_dir() else 'no such file'}")
    except OSError as error:  # such as a name that is too long
        raise TargetNotFound(f"{path}: {error.strerror}") from None
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) and Path(str(main.__file__)).resolve() == file:
        return main
    root, dotted = _dotted(file) if archive is None else (archive, _dotted_in(archive, file))
    known = sys.modules.get(dotted)
    if known is not None and _is_file(known, file):
        return known
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    spec = None if known is not None else importlib.util.find_spec(dotted)
    if spec is not None and spec.origin and Path(spec.origin).resolve() == file:
        return importlib.import_module(dotted)
    return _load_apart(file) if archive is None else _load_apart_from_archive(file)


def _archive_of(file: Path) -> Path | None:
    """Return the zip archive that contains a file, such as a zipapp; None if there is none."""
    found = next((place for place in file.parents if place.is_file()), None)
    return found if found is not None and zipfile.is_zipfile(found) else None


def _dotted_in(archive: Path, file: Path) -> str:
    parts = file.relative_to(archive).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _load_apart_from_archive(file: Path) -> ModuleType:
    """As `_load_apart`: the name of the program's own module, `__main__`, is taken."""
    name = _apart(file)
    if (known := sys.modules.get(name)) is not None and _is_file(known, file):
        return known
    importer = zipimport.zipimporter(str(file.parent))
    spec = importer.find_spec(file.stem)
    if spec is None:
        raise TargetNotFound(f"{file}: no such file in the archive")
    module = ModuleType(name)
    module.__file__, module.__spec__, module.__loader__ = str(file), spec, importer
    code, text = importer.get_code(file.stem), importer.get_source(file.stem)
    if text is not None:  # the importer knows the source by the module's own name only
        linecache.cache[code.co_filename] = (len(text), None, text.splitlines(keepends=True), code.co_filename)
    sys.modules[name] = module
    try:
        exec(code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _apart(file: Path) -> str:
    """Return the name of a module whose file has the name of another one."""
    return f"ramify_target_{file.stem}"


def _load_apart(file: Path) -> ModuleType:
    """Load a file under a name of its own, because another module has its name (test.py, json.py)."""
    name = _apart(file)
    if (known := sys.modules.get(name)) is not None and _is_file(known, file):
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TargetNotFound(f"{file}: Python cannot load it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_file(module: ModuleType, file: Path) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and Path(origin).resolve() == file


def _load_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetNotFound(f"no module named {name!r} (looked in the current folder and sys.path)") from error
        raise


# Which of the user's files a module imports


def imported_names(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the names of an import statement that are modules or may be; nothing for other nodes."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def files_of(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the user's files of these modules and of the packages around them, each with its package."""
    return list(_user_files(sorted({part for name in names for part in packages_of(name)})))


def packages_of(name: str) -> Iterator[str]:
    """Yield a module's name and its packages, whose code an import runs as well."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _user_files(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        if name.partition(".")[0] in sys.stdlib_module_names | {"ramify", ""}:
            continue
        spec = _spec_of(name)
        if spec is not None and spec.origin is not None and _is_the_users(spec.origin):
            package = name if spec.submodule_search_locations is not None else name.rpartition(".")[0]
            yield spec.origin, package


def _spec_of(name: str) -> ModuleSpec | None:
    """Find a module's spec; None if there is no such module. `importlib.util.find_spec` would import the parent
    packages, and no code must run here that the step does not run itself."""
    above, _, _ = name.rpartition(".")
    path: Sequence[str] | None = None
    if above:
        parent = _spec_of(above)
        path = None if parent is None else parent.submodule_search_locations
        if path is None:
            return None
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, path)) is not None:
            return spec
    return None


def _is_the_users(origin: str) -> bool:
    return Path(origin).exists() and not any(
        origin.startswith(f"{place}/") for place in installed_folders(tuple(sys.path))
    )


@functools.lru_cache(maxsize=8)
def installed_folders(path: tuple[str, ...]) -> frozenset[str]:
    """Return the folders of the standard library and of installed packages, including other environments on the
    path."""
    own = {place for name in ("purelib", "platlib", "stdlib", "platstdlib") if (place := sysconfig.get_path(name))}
    return frozenset(own | {entry for entry in path if Path(entry).name in _PACKAGES})
