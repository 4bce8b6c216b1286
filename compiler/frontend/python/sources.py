"""From a function object to its syntax tree, in its file, so that positions are those of the running code.

Reading source text is the compiler's one look outside itself.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.python.canonical_text import plain_text
from ramify.compiler.plan import PLAN_VERSION, Site, site_file, text_digest
from ramify.compiler.spec import Files

if TYPE_CHECKING:
    from ramify.compiler.frontend.python.code_parts import CodeIndex

NAME = "patched"


def without_patches(tree: ast.Module, names: frozenset[str]) -> ast.Module:
    """The tree with each `if patched(name)` replaced by its `else`, for these names. Positions stay."""
    changed = _Without(patched_aliases(tree), names).visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


def patch_names_in(tree: ast.AST, calls: frozenset[str]) -> Iterator[str]:
    """The names of the patches in a piece of syntax."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _patch(node, calls)) is not None:
            yield name


def patched_aliases(tree: ast.Module) -> frozenset[str]:
    """How a module calls `ramify.patched`, by its imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {f"{each.asname or each.name}.{NAME}" for each in node.names if each.name == "ramify"}
        elif isinstance(node, ast.ImportFrom) and node.module == "ramify" and not node.level:
            found |= {each.asname or each.name for each in node.names if each.name == NAME}
    return frozenset(found)


def _patch(node: ast.expr, calls: frozenset[str]) -> str | None:
    match node:
        case ast.Call(func=func, args=[ast.Constant(value=str(name))], keywords=[]):
            return name if _dotted(func) in calls else None
        case _:
            return None


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}"
        case _:
            return None


class _Without(ast.NodeTransformer):
    def __init__(self, calls: frozenset[str], names: frozenset[str]) -> None:
        self._calls, self._names = calls, names

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.AST]:
        match node.test:
            case ast.UnaryOp(op=ast.Not(), operand=test) if _patch(test, self._calls) in self._names:
                kept = node.body
            case test if _patch(test, self._calls) in self._names:
                kept = node.orelse
            case _:
                return self.generic_visit(node)
        found: list[ast.AST] = []
        for statement in kept:
            seen = self.visit(statement)
            found += seen if isinstance(seen, list) else [seen]
        return found

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if _patch(node.test, self._calls) in self._names:
            found: ast.AST = self.visit(node.orelse)
            return found
        return self.generic_visit(node)


Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    module: str
    path: str
    node: Definition
    outer: Mapping[str, object] = field(repr=False)  # module globals, and over them the closure's variables

    def where(self, node: ast.expr | ast.stmt | None = None) -> str:
        line = self.node.lineno if node is None else node.lineno
        return f"{site_file(self.path)}:{line}"

    def site(self, node: ast.expr) -> Site:
        end_line, end_col = node.end_lineno, node.end_col_offset
        assert end_line is not None and end_col is not None
        return Site(site_file(self.path), node.lineno, node.col_offset, end_line, end_col)

    def names(self, node: ast.expr) -> object | None:
        """The object that a dotted name is, None for anything else. No code of the user's runs."""
        if isinstance(node, ast.Name):
            return self.outer.get(node.id)
        if isinstance(node, ast.Attribute):
            home = self.names(node.value)
            if isinstance(home, ModuleType):
                return home.__dict__.get(node.attr)
            return inspect.getattr_static(home, node.attr, None) if isinstance(home, type) else None
        return None


def within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All that the functions and classes among these nodes hold, from the top of the file downwards."""
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from ast.walk(node)


class Sources:
    """The files read in one compilation, each parsed once.

    `version`: code is read and digested as for plans of that format. `minor`: digests of format 5 and before are
    those of Python 3.`minor`. `without`: blocks under `if patched(name)` with these names are read as their `else`.
    """

    def __init__(
        self, *, version: int = PLAN_VERSION, minor: int | None = None, without: frozenset[str] = frozenset()
    ) -> None:
        self.since_format_5 = version > 4
        self.since_format_6 = version > 5  # else digests are of `ast.dump`, whatever its parts mean to each other
        self.minor, self.without = minor, without
        self._trees: dict[str, ast.Module] = {}
        self._texts: dict[str, str] = {}
        self._definitions: dict[str, dict[tuple[str, int], Definition]] = {}
        self._rebound: dict[str, frozenset[str]] = {}
        # what `digest` found out, by the function and by the file
        self.dependencies: dict[Definition, set[ast.AST]] = {}
        self.bindings: dict[str, dict[str, list[ast.AST]]] = {}
        self.files: dict[Callable[..., Any], Files | None] = {}  # of a graph's nodes: several may be one function
        self.codes: CodeIndex | None = None  # what `code` found out
        self.reached: dict[str, frozenset[str] | None] = {}  # what `reached` found out, by the module

    def function(self, function: Callable[..., Any]) -> Function:
        """Raises SourceError if the text is not to be had, or is not that of the code which runs."""
        plain = inspect.unwrap(function)
        if not isinstance(plain, FunctionType):
            name = getattr(function, "__qualname__", repr(function))
            raise SourceError("not a Python function", where=name, mend="decorate a function made with `def`")
        return self.outermost(plain)

    def outermost(self, plain: FunctionType) -> Function:
        """The same of a function itself, and not of the one that it wraps."""
        code = plain.__code__
        node = self._find(plain, code)
        outer = {**plain.__globals__, **closure_values(plain)}
        return Function(plain.__qualname__, plain.__module__ or "", code.co_filename, node, outer)

    def tree(self, path: str, module_globals: dict[str, Any] | None = None) -> ast.Module:
        if path not in self._trees:
            text = "".join(linecache.getlines(path, module_globals))
            known = self._texts.setdefault(site_file(path), text_digest(text))
            if known != text_digest(text):  # two files of one name: neither is known by it
                self._texts[site_file(path)] = ""
            tree = ast.parse(text, filename=path)
            self._trees[path] = without_patches(tree, self.without) if self.without else tree
        return self._trees[path]

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """What was read, and digests of the texts."""
        return tuple(sorted(self._texts.items()))

    def rebound(self, path: str) -> frozenset[str]:
        """The globals of a module that its functions bind anew while they run."""
        if not self.since_format_5:
            return frozenset()
        if path not in self._rebound:
            functions = [node for node in ast.walk(self.tree(path)) if isinstance(node, Definition)]
            self._rebound[path] = frozenset(name for each in functions for name in _bound_globals(each))
        return self._rebound[path]

    def _find(self, function: FunctionType, code: CodeType) -> Definition:
        path, where = code.co_filename, f"{site_file(code.co_filename)}:{code.co_firstlineno}"
        try:
            tree = self.tree(path, function.__globals__)
        except SyntaxError as error:
            raise SourceError(f"{path} does not parse: {error}", where=where, mend="mend the file") from error
        if path not in self._definitions:
            self._definitions[path] = {
                (getattr(node, "name", "<lambda>"), _first_line(node)): node
                for node in ast.walk(tree)
                if isinstance(node, Definition)
            }
        found = self._definitions[path].get((code.co_name, code.co_firstlineno))
        if found is None:
            what = f"the source of {function.__qualname__} is not in {path} at that line"
            raise SourceError(what, where=where, mend="keep it in a file, and import it again after a change")
        return found


def _bound_globals(function: Definition) -> set[str]:
    said = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
    if not said:
        return said
    return said & {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _first_line(node: Definition) -> int:
    """As the code object counts: decorators belong to the function."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return decorators[0].lineno if decorators else node.lineno


def closure_values(function: Callable[..., Any]) -> dict[str, object]:
    """The names of the functions around it that are bound by now, and their values."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet: nothing to resolve the name to
            continue
    return found


def in_same_project(workflow: Function, module: str | None, path: str) -> bool:
    """Whether code is of the workflow's project: its top-level package, or its folder and what is under that. By
    files too: the program that was started has its name in a package only where it is imported."""
    if "site-packages" in PurePath(path).parts:
        return False
    package = workflow.module.partition(".")[0]
    if package != "__main__" and (module or "").partition(".")[0] == package:
        return True
    return PurePath(path).is_relative_to(_home_of(workflow.path))


@cache
def root_of(path: str) -> Path:
    """Where the top-level package of a file stands, by the `__init__.py` files beside and above it; without one, its
    folder."""
    folder = Path(path).parent
    while (folder / "__init__.py").exists() and folder.parent != folder:
        folder = folder.parent
    return folder


@cache
def _home_of(path: str) -> Path:
    root = root_of(path)
    inside = PurePath(path).relative_to(root).parts
    return root / inside[0] if len(inside) > 1 else root


_parents: WeakKeyDictionary[ast.AST, dict[ast.AST, ast.AST]] = WeakKeyDictionary()


def source_of(call: ast.expr, definition: Definition) -> str:
    """Equal for calls that nothing but their places tells apart. By the names as they are written."""
    parents = _parents.get(definition)
    if parents is None:
        parents = {child: node for node in ast.walk(definition) for child in ast.iter_child_nodes(node)}
        _parents[definition] = parents
    found = [plain_text(call)]
    node: ast.AST = call
    while not isinstance(node, ast.stmt) and node is not definition and node in parents:
        child, node = node, parents[node]
        found.append(_role(child, node))
    return "\n".join(filter(None, found))


def _role(child: ast.AST, parent: ast.AST) -> str:
    """What a node does with what stands in it."""
    match parent:
        case ast.Await():
            return ""
        case ast.Dict(keys=keys, values=values):
            named = [key for key, value in zip(keys, values, strict=True) if value is child and key is not None]
            return f"dict {''.join(map(plain_text, named))}"
        case ast.keyword(arg=name):
            return f"keyword {name}"
        case ast.Call(func=func):
            return f"call {plain_text(func)}"
        case ast.NamedExpr(target=target):
            return f"bound {plain_text(target)}"
        case ast.Assign(targets=targets):
            return f"bound {' '.join(map(plain_text, targets))}"
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return f"bound {plain_text(target)}"
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return f"for {plain_text(target)}"
        case ast.withitem(optional_vars=ast.expr() as target):
            return f"with {plain_text(target)}"
        case _:
            field = next(name for name, value in ast.iter_fields(parent) if value is child or _among(child, value))
            return f"{type(parent).__name__}.{field}"


def _among(child: ast.AST, value: object) -> bool:
    return isinstance(value, list) and any(each is child for each in value)
