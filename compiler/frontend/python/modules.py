"""The modules of the user's project: what each binds at its top level, how one is found, and which others an import
of it also imports.

A module that is loaded is known with its values. Code that is imported inside a function is found by its file alone,
because whether a module is loaded already may differ between two processes of one run.

`dependencies` gives what a function uses of its own module. It does not cover other modules, closures, values that
functions change at run time, or names made by `setattr` or `exec`.

`reachable_modules` counts imports inside functions, too, since they run before what they import is used. Of an import
whose name is computed, as in a loop over `pkgutil.iter_modules(plugins.__path__)`, every module of the package
counts.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from weakref import WeakKeyDictionary

from ramify.compiler.frontend.python.names import dotted_name, nodes_in
from ramify.compiler.frontend.python.sources import Function, Sources, in_same_project, root_of
from ramify.compiler.frontend.python.spec_inputs import folder_was_listed, is_file, loaded_module, values_were_read


@dataclass(frozen=True, slots=True, eq=False)
class ProjectModule:
    """A module of the project. For a function with a closure, the values include those of the closure."""

    name: str
    path: str
    package: str
    values: Mapping[str, object]
    bindings: Mapping[str, list[ast.AST]]  # for each name, the top-level statements that bind it
    home: Function  # a function of the project it belongs to
    root: Path  # the folder that holds its top-level package, or the module itself
    by_file: bool = False  # known by its file alone: its values are not known, and it need not be loaded

    def source(self, level: int, name: str | None) -> str:
        """Return the full name of the module that `from name import …` means here, with `level` leading dots."""
        above = self.package.split(".") if level else []
        return ".".join([*above[: len(above) - level + 1], *filter(None, [name])])


class ProjectModules:
    """Finds modules of the project, by name or by file, and keeps them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._loaded: dict[tuple[str, str, str], ProjectModule | None] = {}
        self._files: dict[tuple[Path, str], ProjectModule | None] = {}

    def of(self, function: Function) -> ProjectModule:
        """Return the module of a function, with the values that the function sees."""
        package = function.outer.get("__package__")
        package = package if isinstance(package, str) else ""
        table = bindings(function.path, self._sources)
        return ProjectModule(
            function.module, function.path, package, function.outer, table, function, root_of(function.path)
        )

    def imported(self, by: ProjectModule, name: str) -> ProjectModule | None:
        """Return a module that `by` imports; None if it belongs to another project."""
        return self.beside(by, name) if by.by_file else self.loaded(by.home, name)

    def is_module(self, name: str, by: ProjectModule) -> bool:
        if by.by_file:
            return self.beside(by, name) is not None
        return loaded_module(name) is not None or name in sys.modules

    def loaded(self, home: Function, name: str) -> ProjectModule | None:
        """Return a module of the same project as `home` that is loaded under this name."""
        key = (home.path, home.module, name)
        if key not in self._loaded:
            self._loaded[key] = self._read_loaded(home, name)
        return self._loaded[key]

    def beside(self, by: ProjectModule, name: str) -> ProjectModule | None:
        """Return a module by its file, under the folder that holds the packages of `by`, loaded or not."""
        key = (by.root, name)
        if key not in self._files:
            self._files[key] = self._read_file(by, name)
        return self._files[key]

    def _read_loaded(self, home: Function, name: str) -> ProjectModule | None:
        module = loaded_module(name)
        path = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or path is None or not path.endswith(".py"):
            return None
        if not in_same_project(home, name, path):
            return None
        try:
            table = bindings(path, self._sources)
        except SyntaxError:  # the file changed since it was imported
            return None
        values_were_read(vars(module))
        return ProjectModule(name, path, module.__package__ or "", vars(module), table, home, root_of(path))

    def _read_file(self, by: ProjectModule, name: str) -> ProjectModule | None:
        place = by.root.joinpath(*name.split("."))
        for path, package in (
            (place.with_name(f"{place.name}.py"), name.rpartition(".")[0]),
            (place / "__init__.py", name),
        ):
            if not is_file(path) or not in_same_project(by.home, name, str(path)):
                continue
            if str(path) == by.path:
                return by
            try:
                table = bindings(str(path), self._sources)
            except (SyntaxError, UnicodeDecodeError):  # importing it will report this
                return None
            values: Mapping[str, object] = MappingProxyType({})
            return ProjectModule(name, str(path), package, values, table, by.home, by.root, by_file=True)
        return None


# What a module binds, and what a function uses of it


def dependencies(function: Function, sources: Sources) -> set[ast.AST]:
    """Return the function and the top-level statements of its module that it uses, directly or not."""
    known = sources.dependencies.get(function.node)
    if known is None:
        known = sources.dependencies[function.node] = _dependencies(function, sources)
    return known


def _dependencies(function: Function, sources: Sources) -> set[ast.AST]:
    table = bindings(function.path, sources)
    found: set[ast.AST] = {function.node}
    todo: list[ast.AST] = [function.node]
    while todo:
        used = (node for name in used_names(todo.pop()) for node in table.get(name, ()))
        fresh = [node for node in used if node not in found]
        found.update(fresh)
        todo += fresh
    return found


_known_names: WeakKeyDictionary[ast.AST, set[str]] = WeakKeyDictionary()


def used_names(node: ast.AST) -> set[str]:
    """Return every name that occurs in a piece of syntax."""
    names = _known_names.get(node)
    if names is None:
        names = {inner.id for inner in nodes_in(node) if isinstance(inner, ast.Name)}
        _known_names[node] = names
    return names


def bindings(path: str, sources: Sources) -> dict[str, list[ast.AST]]:
    """Return, for each name, the top-level statements of a file that bind it or change what it is bound to."""
    table = sources.bindings.get(path)
    if table is None:
        table = sources.bindings[path] = {}
        for statement in sources.tree(path).body:
            names = bound_names(statement)
            if sources.since_format_6:
                names = names | changed_names(statement)
            for name in names:
                table.setdefault(name, []).append(statement)
    return table


def bound_names(statement: ast.AST) -> set[str]:
    """Return the names that a statement binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
            inner = (node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt))
            handlers = statement.handlers if isinstance(statement, ast.Try) else []
            inside = [*inner, *(node for handler in handlers for node in handler.body)]
            return set().union(_stored(statement), *map(bound_names, inside))
        case _:
            return _stored(statement)


MUTATORS = frozenset(
    (
        *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop", "popitem"),
        *("popleft", "remove", "reverse", "setdefault", "sort", "update"),
    )
)
"""Methods by which a list, dict, set or deque is changed. Other methods are not followed: `log.setLevel(…)` is no
part of what a workflow does."""


def changed_names(statement: ast.AST) -> set[str]:
    """Return the names whose objects a top-level statement changes: `CFG["amount"] = 1`, `CFG.update(…)`, `C.x = 1`,
    also in a loop or condition. Statements inside functions and classes do not count."""
    found, todo = set[str](), [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            found |= _base_name(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            found |= _base_name(node.func)
        todo += ast.iter_child_nodes(node)
    return found


def _base_name(node: ast.AST) -> set[str]:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _stored(statement: ast.AST) -> set[str]:
    return {n.id for n in nodes_in(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


# Digests of plans of format 5 and earlier, which are made from `ast.dump`

_known_dumps: WeakKeyDictionary[ast.AST, str] = WeakKeyDictionary()


def digest(nodes: Iterable[ast.AST]) -> str:
    """Return the sha256 of syntax trees, whatever their order."""
    texts = sorted(map(dumped, nodes))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def dumped(node: ast.AST) -> str:
    """Return `ast.dump` of a node. It is kept, since several functions use the same statement."""
    text = _known_dumps.get(node)
    if text is None:
        text = _known_dumps[node] = ast.dump(node)
    return text


_IMPORTERS = frozenset({"import_module", "__import__"})


def reachable_modules(modules: ProjectModules, entry: ProjectModule, sources: Sources) -> tuple[ProjectModule, ...]:
    """Return a module and those that it imports, directly or not, each once. Files that do not parse are left out."""
    found: dict[str, ProjectModule] = {}
    todo = [entry]
    while todo:
        module = todo.pop(0)
        if module.path in found:
            continue
        try:
            tree = sources.tree(module.path)
        except (SyntaxError, UnicodeDecodeError):  # importing it will report this
            continue
        found[module.path] = module
        for name in dict.fromkeys(_imported(module, tree)):
            target = modules.imported(module, name) or modules.beside(module, name)
            todo += [target] if target is not None else []
    return tuple(found.values())


def _imported(module: ProjectModule, tree: ast.Module) -> Iterator[str]:
    yield from imported_by_call(module, tree)
    for node in nodes_in(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield from _with_parents(alias.name)
            case ast.ImportFrom(names=aliases):
                source = module.source(node.level, node.module)
                yield from _with_parents(source)
                yield from (f"{source}.{alias.name}".lstrip(".") for alias in aliases if alias.name != "*")


def imported_by_call(module: ProjectModule, node: ast.AST) -> Iterator[str]:
    """Yield the modules that `import_module(…)` in a piece of syntax may import."""
    for call in nodes_in(node):
        match call:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[asked, *_]) if name in _IMPORTERS:
                yield from _asked(module, node, asked)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _asked(module: ProjectModule, around: ast.AST, asked: ast.expr) -> Iterator[str]:
    """Yield the modules that `import_module(asked)` may import."""
    if isinstance(asked, ast.Name) and asked.id == "__name__":
        return
    if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
        name = asked.value
        yield from _with_parents(f"{module.package}{name}" if name.startswith(".") else name)
        return
    first = asked.values[0] if isinstance(asked, ast.JoinedStr) and asked.values else asked
    first = first.left if isinstance(first, ast.BinOp) else first
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and "." in first.value.strip("."):
        yield from _inside(module, first.value.rpartition(".")[0])
    elif isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.endswith("."):
        yield from _inside(module, first.value.strip(".") or module.package)
    else:
        yield from _inside(module, module.package)
        for node in nodes_in(around):  # `plugins.__path__`, or `plugins.__name__`
            if isinstance(node, ast.Attribute) and node.attr in ("__path__", "__name__", "__file__"):
                yield from _inside(module, ".".join(dotted_name(node.value) or ()))


def _inside(module: ProjectModule, package: str) -> Iterator[str]:
    """Yield the modules of a package."""
    folder = module.root.joinpath(*package.split(".")) if package else None
    folder_was_listed()
    if folder is None or not folder.is_dir():
        return
    for file in sorted(folder.rglob("*.py")):
        parts = Path(file).relative_to(module.root).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
