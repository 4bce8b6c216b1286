"""The modules of the project that importing a module also imports, found by their files.

Imports inside functions count, too, since they run before what they import is used. Of an import whose name is
computed, as in a loop over `pkgutil.iter_modules(plugins.__path__)`, every module of the package counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ramify.compiler.frontend.python.modules import ProjectModule, ProjectModules
from ramify.compiler.frontend.python.names import dotted_name, nodes_in
from ramify.compiler.frontend.python.sources import Sources

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
    if folder is None or not folder.is_dir():
        return
    for file in sorted(folder.rglob("*.py")):
        parts = Path(file).relative_to(module.root).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
