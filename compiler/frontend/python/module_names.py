"""What a name of a module is bound to, by the syntax of the project's modules alone, through their imports."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeAlias

from ramify.compiler.frontend.python.modules import ProjectModule, ProjectModules, bound_names

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Target:
    """A name of a module, whose object is changed."""

    path: str
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """The statements that bind a name in a module."""

    module: ProjectModule
    name: str
    statements: tuple[ast.stmt, ...]

    @property
    def target(self) -> Target:
        return Target(self.module.path, self.name)

    def definition(self) -> Definition | ast.ClassDef | None:
        last = self.statements[-1] if self.statements else None
        return last if isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None


class ModuleNames:
    """Resolves names of modules. It reads the files that it needs and loads nothing."""

    def __init__(self, modules: ProjectModules) -> None:
        self._modules = modules
        self._bound: dict[str, dict[str, list[ast.stmt]]] = {}

    def is_whole(self, module: ProjectModule, dotted: list[str]) -> bool:
        """Return whether all but the last of these names are modules."""
        return self._modules_before(module, dotted) == len(dotted) - 1

    def _modules_before(self, module: ProjectModule, dotted: list[str]) -> int:
        for count in range(len(dotted) - 1, 0, -1):
            if self.as_module(module, dotted[:count]) is not None:
                return count
        return 0

    def as_module(self, module: ProjectModule, dotted: list[str]) -> ProjectModule | None:
        """Return the module of the project that a dotted name means."""
        for statement in self._statements(module).get(dotted[0], ()):
            name: str | None = None
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    if alias.asname == dotted[0]:
                        name = alias.name
                    elif alias.asname is None and alias.name.partition(".")[0] == dotted[0]:
                        name = dotted[0]
            elif isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == dotted[0]:
                        name = f"{module.source(statement.level, statement.module)}.{alias.name}"
            if name is not None:
                return self._imported(module, ".".join([name, *dotted[1:]]))
        return None

    def _imported(self, by: ProjectModule, name: str) -> ProjectModule | None:
        return self._modules.imported(by, name) or self._modules.beside(by, name)

    def resolve(self, module: ProjectModule, name: str, chain: tuple[str, ...], depth: int = 0) -> Bound | None:
        """Return what a name is bound to, through imports; of `module.name`, the name in the module."""
        if depth > 20:  # two modules import each other's names
            return None
        dotted = [name, *chain]
        count = self._modules_before(module, dotted)
        if count:
            inner = self.as_module(module, dotted[:count])
            assert inner is not None
            return self.resolve(inner, dotted[count], chain[count:], depth + 1)
        statements = self._statements(module)
        for statement in reversed(statements.get(name, ())):
            if isinstance(statement, ast.ImportFrom):
                target = self._imported(module, module.source(statement.level, statement.module))
                origin = next((a.name for a in statement.names if (a.asname or a.name) == name), None)
                return None if target is None or origin is None else self.resolve(target, origin, (), depth + 1)
            if not isinstance(statement, ast.Import):
                return Bound(module, name, tuple(statements[name]))
        for statement in () if name in statements else statements.get("*", ()):
            assert isinstance(statement, ast.ImportFrom)
            target = self._imported(module, module.source(statement.level, statement.module))
            if target is not None and (found := self.resolve(target, name, (), depth + 1)) is not None:
                return found
        return None

    def _statements(self, module: ProjectModule) -> dict[str, list[ast.stmt]]:
        if module.path not in self._bound:
            table = self._bound[module.path] = {}
            nodes = {id(node): node for nodes in module.bindings.values() for node in nodes}
            for node in sorted(nodes.values(), key=lambda node: getattr(node, "lineno", 0)):
                if isinstance(node, ast.stmt):
                    for name in bound_names(node):
                        table.setdefault(name, []).append(node)
        return self._bound[module.path]
