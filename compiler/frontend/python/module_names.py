"""Names of modules: what a name is bound to, by the syntax of the project's modules alone, through their imports;
which names code looks up as it runs, as in `globals()[name]` and `eval`; and what an import of a module runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ramify.compiler.frontend.python.modules import ProjectModule, ProjectModules, bound_names
from ramify.compiler.frontend.python.names import arguments_of, dotted_name, nodes_in

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_PASSING = frozenset({"cast", "enumerate", "getattr", "iter", "reversed", "vars", "zip"})
"""Functions that give their first argument back, or a part of it."""


def run_by_import(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the syntax that an import runs: no bodies of functions, and not what runs in a main program only."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and _is_main_guard(node.test):
            todo += node.orelse
            continue
        yield node
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                todo += [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            case ast.Lambda():
                todo += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            case _:
                todo += ast.iter_child_nodes(node)


def _is_main_guard(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case _:
            return False


def bases_of(node: ast.expr) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield the names that an expression takes its object from, each with the attributes after it, and whether it is
    called: `TABLE` of `TABLE["a"].setdefault(b, [])`."""
    match node:
        case ast.Name() | ast.Attribute() if (dotted := dotted_name(node)) is not None:
            yield dotted[0], tuple(dotted[1:]), False
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            yield from bases_of(inner)
        case ast.Await(value=inner) | ast.NamedExpr(value=inner):
            yield from bases_of(inner)
        case ast.Call(func=func, args=args):
            yield from ((name, chain, True) for name, chain, _ in bases_of(func))
            if isinstance(func, ast.Name | ast.Attribute) and (dotted_name(func) or [""])[-1] in _PASSING:
                for each in args:
                    yield from bases_of(each)
        case ast.IfExp(body=one, orelse=other):
            yield from bases_of(one)
            yield from bases_of(other)
        case ast.BoolOp(values=values):
            for each in values:
                yield from bases_of(each)


def parameters_of(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the parameters of a function and of those defined in it."""
    arguments = (each for each in nodes_in(definition) if isinstance(each, ast.arguments))
    return frozenset(one.arg for each in arguments for one in arguments_of(each))


def assigned_in(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, list[ast.expr]]:
    """Return the local names of a function, each with the expressions that its object is taken from."""
    found: dict[str, list[ast.expr]] = {}
    declared = {name for node in nodes_in(definition) if isinstance(node, ast.Global) for name in node.names}
    for node in nodes_in(definition):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node.id not in declared:
            found.setdefault(node.id, [])
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and node is not definition:
            found.setdefault(node.name, [])
    for target, value in _assignments(definition):
        for name in ast.walk(target):
            if isinstance(name, ast.Name) and name.id in found:
                found[name.id].append(value)
    return found


def _assignments(definition: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in nodes_in(definition):
        match node:
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                yield target, value
            case ast.For(target=target, iter=value) | ast.AsyncFor(target=target, iter=value):
                yield target, value
            case ast.comprehension(target=target, iter=value):
                yield target, value
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                yield target, value


def is_partial(call: ast.Call) -> bool:
    """Return whether a call is `partial(function, …)`."""
    return bool(call.args) and (dotted_name(call.func) or [""])[-1] == "partial"


def constant_text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


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


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is known of a name that is looked up: how it begins and ends. `exact`: it is all of the name."""

    first: str = ""
    last: str = ""
    exact: bool = False

    def may_mean(self, name: str) -> bool:
        if self.exact:
            return name == self.first
        return name.startswith(self.first) and name.endswith(self.last)


def lookups_in(node: ast.AST) -> Iterator[Lookup]:
    """Yield the names of its own module that a piece of syntax looks up."""
    in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    narrowed = set[int]()
    for inner in nodes_in(node):
        match inner:
            case ast.Subscript(value=names, slice=name) if _is_namespace(names, in_function):
                narrowed.add(id(names))
                if isinstance(inner.ctx, ast.Load):
                    yield _known_of(name)
            case ast.Call(func=ast.Attribute(value=names, attr="get" | "pop"), args=[name, *_]) if _is_namespace(
                names, in_function
            ):
                narrowed.add(id(names))
                yield _known_of(name)
            case ast.Call(func=ast.Attribute(value=names, attr="update" | "setdefault")):
                narrowed.add(id(names))
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[module, name, *_]) if _is_own(module):
                narrowed.add(id(module))
                yield _known_of(name)
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[module, *_]):
                narrowed.add(id(module))
            case ast.Call(func=ast.Name(id="eval" | "exec")):
                yield Lookup()
            case ast.expr() if id(inner) not in narrowed and (_is_namespace(inner, in_function) or _is_own(inner)):
                yield Lookup()


def _is_namespace(node: ast.expr, in_function: bool) -> bool:
    """Return whether an expression gives the names of its module."""
    match node:
        case ast.Call(func=ast.Name(id="globals"), args=[]):
            return True
        case ast.Call(func=ast.Name(id="vars" | "locals"), args=[]):
            return not in_function
        case ast.Call(func=ast.Name(id="vars"), args=[module]) | ast.Attribute(value=module, attr="__dict__"):
            return _is_own(module)
        case _:
            return False


def _is_own(node: ast.expr) -> bool:
    """Return whether an expression gives its own module."""
    match node:
        case ast.Subscript(value=modules, slice=ast.Name(id="__name__")):
            return (dotted_name(modules) or [""])[-1] == "modules"
        case ast.Call(func=func, args=[ast.Name(id="__name__")]):
            return isinstance(func, ast.Name | ast.Attribute) and (dotted_name(func) or [""])[-1] == "import_module"
        case _:
            return False


def _known_of(name: ast.expr) -> Lookup:
    """Return what an expression shows of its text."""
    text = constant_text(name)
    if text is not None:
        return Lookup(text, exact=True)
    match name:
        case ast.JoinedStr(values=[first, *_, last]):
            return Lookup(constant_text(first) or "", constant_text(last) or "")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return Lookup(_known_of(left).first, "" if constant_text(right) is None else constant_text(right) or "")
        case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod()):
            return Lookup(text.partition("%")[0])
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
            return Lookup(text.partition("{")[0])
        case _:
            return Lookup()
