"""Source text of functions: from a function object to its syntax tree, with positions as in the running code.

`Sources` reads each file of a compilation once. `Function` is one function in it. Blocks under `if patched("name"):`
can be read as if the patch did not exist. Reading source files is the only I/O of the compiler.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import groupby
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.python.canonical_text import plain_text
from ramify.compiler.frontend.python.names import dotted_name, nodes_in
from ramify.compiler.frontend.python.spec_inputs import (
    closure_was_read,
    code_was_read,
    file_was_read,
    static_attribute,
    values_were_read,
)
from ramify.compiler.parsing import shared_tree_of, tree_of
from ramify.compiler.plan import PLAN_VERSION, Site, site_file, text_digest
from ramify.compiler.spec import FileAccess

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Analysis = TypeVar("Analysis")
PATCHED = "patched"
"""The name of `ramify.patched`."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the user's code, with its syntax tree and the values of its global and closure names."""

    name: str
    module: str
    path: str
    node: Definition
    outer: Mapping[str, object] = field(repr=False)  # the module's globals, overlaid by the closure's variables

    def where(self, node: ast.expr | ast.stmt | None = None) -> str:
        """Return `file:line` of a node in it, or of the function itself."""
        line = self.node.lineno if node is None else node.lineno
        return f"{site_file(self.path)}:{line}"

    def site(self, node: ast.expr) -> Site:
        end_line, end_col = node.end_lineno, node.end_col_offset
        assert end_line is not None and end_col is not None
        return Site(site_file(self.path), node.lineno, node.col_offset, end_line, end_col)

    def lookup(self, node: ast.expr) -> object | None:
        """Return the object that a dotted name denotes; None for any other expression. Runs no user code."""
        if isinstance(node, ast.Name):
            return self.outer.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.lookup(node.value)
            if isinstance(owner, ModuleType):
                values_were_read(owner.__dict__)
                return owner.__dict__.get(node.attr)
            return static_attribute(owner, node.attr, None) if isinstance(owner, type) else None
        return None


def walk_definitions(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield every node inside the functions and classes among these nodes, from the top of the file downwards."""
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from nodes_in(node)


def own_nodes(definition: Definition) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body. Functions and classes defined in it are yielded, but not entered."""
    todo: list[ast.AST] = [definition.body] if isinstance(definition, ast.Lambda) else list(definition.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)


class Sources:
    """The source files read in one compilation. Each is parsed once.

    Args:
        version: Read and digest code as plans of this format do.
        minor: The minor version of Python whose syntax trees the digests of format 5 and earlier are made from.
        without: Names of patches. Blocks under `if patched(name)` with these names are read as their `else`.
    """

    def __init__(
        self, *, version: int = PLAN_VERSION, minor: int | None = None, without: frozenset[str] = frozenset()
    ) -> None:
        self.since_format_5 = version > 4
        self.since_format_6 = version > 5  # digests of canonical text; before, of `ast.dump` without an order
        self.since_format_7 = version > 6  # digests cover what is registered, and what is looked up by name
        self.since_format_8 = version > 7  # a step under another decorator is a graph break, and digests cover that
        self.since_format_9 = version > 8  # digests cover the methods of what steps return
        self.minor, self.without = minor, without
        self._trees: dict[str, ast.Module] = {}
        self._texts: dict[str, str] = {}
        self._definitions: dict[str, dict[tuple[str, int], list[Definition]]] = {}
        self._rebound: dict[str, frozenset[str]] = {}
        self._analyses: dict[Callable[[Sources], Any], Any] = {}
        # caches of `modules`: by function, and by file
        self.dependencies: dict[Definition, set[ast.AST]] = {}
        self.bindings: dict[str, dict[str, list[ast.AST]]] = {}
        # cache of `langgraph.nodes`: several nodes may share one function
        self.files: dict[Callable[..., Any], FileAccess | None] = {}
        # cache of `world_access`, by names and module
        self.modules_used: dict[tuple[frozenset[str], str], frozenset[str] | None] = {}

    def analysis(self, kind: Callable[[Sources], Analysis]) -> Analysis:
        """Return the one analysis of this class for these sources. The first call makes it, by `kind(sources)`."""
        if kind not in self._analyses:
            self._analyses[kind] = kind(self)
        found: Analysis = self._analyses[kind]
        return found

    def function(self, function: Callable[..., Any]) -> Function:
        """Return a function with its syntax tree; of a decorated one, the function that is wrapped.

        Raises:
            SourceError: The source text is not available, or is not that of the running code.
        """
        plain = inspect.unwrap(function)
        if not isinstance(plain, FunctionType):
            name = getattr(function, "__qualname__", repr(function))
            raise SourceError("not a Python function", where=name, mend="decorate a function made with `def`")
        return self.wrapper(plain)

    def wrapper(self, plain: FunctionType) -> Function:
        """As `function`, for the function itself and not for one that it wraps."""
        code = plain.__code__
        node = self._find(plain, code)
        outer = {**plain.__globals__, **(closed := closure_values(plain))}
        values_were_read(plain.__globals__)
        code_was_read(plain)
        closure_was_read(partial(closure_values, plain), closed)
        return Function(plain.__qualname__, plain.__module__ or "", code.co_filename, node, outer)

    def tree(self, path: str, module_globals: dict[str, Any] | None = None) -> ast.Module:
        """Return the syntax tree of a file.

        Raises:
            SyntaxError: The file cannot be parsed.
        """
        if path not in self._trees:
            text = "".join(linecache.getlines(path, module_globals))
            file_was_read(path)
            known = self._texts.setdefault(site_file(path), text_digest(text))
            if known != text_digest(text):  # two files share this name, so it identifies neither
                self._texts[site_file(path)] = ""
            without = self.without
            self._trees[path] = (
                without_patches(tree_of(text, path), without) if without else shared_tree_of(text, path)
            )
        return self._trees[path]

    @property
    def texts(self) -> tuple[tuple[str, str], ...]:
        """The files read, as a `Site` names them, each with the digest of its text."""
        return tuple(sorted(self._texts.items()))

    def rebound_globals(self, path: str) -> frozenset[str]:
        """Return the globals of a module that its functions rebind while they run."""
        if not self.since_format_5:
            return frozenset()
        if path not in self._rebound:
            functions = [node for node in nodes_in(self.tree(path)) if isinstance(node, Definition)]
            self._rebound[path] = frozenset(name for each in functions for name in _bound_globals(each))
        return self._rebound[path]

    def _find(self, function: FunctionType, code: CodeType) -> Definition:
        path, where = code.co_filename, f"{site_file(code.co_filename)}:{code.co_firstlineno}"
        try:
            tree = self.tree(path, function.__globals__)
        except SyntaxError as error:
            raise SourceError(f"{path} does not parse: {error}", where=where, mend="correct the file") from error
        if path not in self._definitions:
            definitions = self._definitions[path] = {}
            for node in nodes_in(tree):
                if isinstance(node, Definition):
                    key = getattr(node, "name", "<lambda>"), _first_line(node)
                    definitions.setdefault(key, []).append(node)
        here = self._definitions[path].get((code.co_name, code.co_firstlineno), [])
        found = here[-1] if here else None
        if len(here) > 1 and (found := _lambda_of(code, here)) is None:
            what = f"several functions called {function.__qualname__} begin on that line, and Python keeps no columns"
            raise SourceError(what, where=where, mend="put each on a line of its own, or unset PYTHONNODEBUGRANGES")
        if found is None:
            if not tree.body and path.endswith(".py"):  # only its bytecode was loaded
                what = f"the source of {function.__qualname__} is missing: {path} is not there, empty or not readable"
                raise SourceError(what, where=where, mend="put the file there, and make it readable")
            what = f"the source of {function.__qualname__} is not in {path} at that line"
            raise SourceError(what, where=where, mend="keep it in a file, and import it again after a change")
        return found


def _bound_globals(function: Definition) -> set[str]:
    declared = {name for node in nodes_in(function) if isinstance(node, ast.Global) for name in node.names}
    if not declared:
        return declared
    return declared & {
        node.id for node in nodes_in(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _lambda_of(code: CodeType, lambdas: list[Definition]) -> Definition | None:
    """Return which of several lambdas on one line has this code, by the columns of its instructions; None if the code
    has no columns. A lambda in a lambda is the inner one."""
    spans = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None and end_column is not None
        if (line, column) != (end_line, end_column)  # an instruction without an expression
    ]

    def fit(node: Definition) -> tuple[int, tuple[int, int]]:
        assert isinstance(node, ast.Lambda), "only lambdas share a name and a line"
        body = node.body
        first, last = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
        return sum(first <= start and end <= last for start, end in spans), first

    if spans:
        return max(lambdas, key=fit)
    # Python 3.12 keeps no columns of a constant
    match [each for each in dis.get_instructions(code) if each.opname not in ("RESUME", "RETURN_VALUE")]:
        case [dis.Instruction(opname="LOAD_CONST" | "RETURN_CONST", argval=value)]:
            return next((node for node in lambdas if _constant(node) == repr(value)), None)
    return None


def _constant(function: Definition) -> str | None:
    """Return the `repr` of what a lambda returns, if that is a constant."""
    try:
        return repr(ast.literal_eval(function.body)) if isinstance(function, ast.Lambda) else None
    except (TypeError, ValueError):
        return None


def _first_line(node: Definition) -> int:
    """Return the first line as the code object has it: that of the first decorator, if there is one."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return decorators[0].lineno if decorators else node.lineno


def closure_values(function: Callable[..., Any]) -> dict[str, object]:
    """Return the closure's variables that are bound by now, with their values."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def in_same_project(workflow: Function, module: str | None, path: str) -> bool:
    """Return whether code belongs to the workflow's project: its top-level package, or its folder and subfolders.

    Files count as well as names, since a program that was started directly is called `__main__`.
    """
    if "site-packages" in PurePath(path).parts:
        return False
    package = workflow.module.partition(".")[0]
    if package != "__main__" and (module or "").partition(".")[0] == package:
        return True
    return PurePath(path).is_relative_to(project_folder(workflow.path))


@cache
def root_of(path: str) -> Path:
    """Return the folder that holds the top-level package of a file, found by its `__init__.py` files.

    For a file outside a package it is the file's folder.
    """
    folder = Path(path).parent
    while (folder / "__init__.py").exists() and folder.parent != folder:
        folder = folder.parent
    return folder


@cache
def project_folder(path: str) -> Path:
    """Return the folder with the code of a file's project: its top-level package, or the folder of the file."""
    root = root_of(path)
    inside = PurePath(path).relative_to(root).parts
    return root / inside[0] if len(inside) > 1 else root


# Patches


def without_patches(tree: ast.Module, names: frozenset[str]) -> ast.Module:
    """Return the tree with each `if patched(name)` replaced by its `else`, for these names. Positions are kept."""
    aliases = patched_aliases(ast.walk(tree))  # not `nodes_in`, since the tree is changed afterwards
    changed = _PatchRemover(aliases, names).visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


def patch_names_in(tree: ast.AST, aliases: frozenset[str]) -> Iterator[str]:
    """Yield the names of the patches that a piece of syntax asks for."""
    for node in nodes_in(tree):
        if isinstance(node, ast.Call) and (name := _patch_name(node, aliases)) is not None:
            yield name


def patched_aliases(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names under which a module with these nodes imports `ramify.patched`."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {f"{each.asname or each.name}.{PATCHED}" for each in node.names if each.name == "ramify"}
        elif isinstance(node, ast.ImportFrom) and node.module == "ramify" and not node.level:
            found |= {each.asname or each.name for each in node.names if each.name == PATCHED}
    return frozenset(found)


def may_ask_for_patches(node: ast.AST) -> bool:
    """Return whether a piece of syntax may call `patched`, under any name."""
    return any(
        isinstance(each, ast.Call)
        and isinstance(each.func, ast.Name | ast.Attribute)
        and len(each.args) == 1
        and isinstance(each.args[0], ast.Constant)
        and isinstance(each.args[0].value, str)
        and not each.keywords
        for each in nodes_in(node)
    )


def _patch_name(node: ast.expr, aliases: frozenset[str]) -> str | None:
    match node:
        case ast.Call(func=func, args=[ast.Constant(value=str(name))], keywords=[]):
            return name if ".".join(dotted_name(func) or ()) in aliases else None
        case _:
            return None


class _PatchRemover(ast.NodeTransformer):
    def __init__(self, aliases: frozenset[str], names: frozenset[str]) -> None:
        self._aliases, self._names = aliases, names

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.AST]:
        match node.test:
            case ast.UnaryOp(op=ast.Not(), operand=test) if _patch_name(test, self._aliases) in self._names:
                kept = node.body
            case test if _patch_name(test, self._aliases) in self._names:
                kept = node.orelse
            case _:
                return self.generic_visit(node)
        found: list[ast.AST] = []
        for statement in kept:
            visited = self.visit(statement)
            found += visited if isinstance(visited, list) else [visited]
        return found

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if _patch_name(node.test, self._aliases) in self._names:
            found: ast.AST = self.visit(node.orelse)
            return found
        return self.generic_visit(node)


# What identifies a call, besides its position

_parents: WeakKeyDictionary[ast.AST, dict[ast.AST, ast.AST]] = WeakKeyDictionary()


def call_text(call: ast.expr, definition: Definition, *, ordered: bool = True) -> str:
    """Return a text that identifies a call without its position: its arguments, and what its result is used for.

    Two calls have the same text if only their positions differ. Names are as they are written. `ordered`: keyword
    arguments are in the order of their names, since a call is the same in any order of them.
    """
    parents = _parents.get(definition)
    if parents is None:
        parents = {child: node for node in nodes_in(definition) for child in ast.iter_child_nodes(node)}
        _parents[definition] = parents
    found = [plain_text(_with_ordered_keywords(call) if ordered else call)]
    node: ast.AST = call
    while not isinstance(node, ast.stmt) and node is not definition and node in parents:
        child, node = node, parents[node]
        found.append(_role(child, node))
    return "\n".join(filter(None, found))


def _with_ordered_keywords(call: ast.expr) -> ast.expr:
    """Return a call with its keyword arguments in the order of their names. One after `**` stays after it."""
    if isinstance(call, ast.Await):
        return ast.Await(_with_ordered_keywords(call.value))
    if not isinstance(call, ast.Call) or len(call.keywords) < 2:
        return call
    keywords: list[ast.keyword] = []
    for is_named, group in groupby(call.keywords, key=lambda each: each.arg is not None):
        several = list(group)
        keywords += sorted(several, key=lambda each: each.arg or "") if is_named else several
    return ast.Call(call.func, call.args, keywords)


def _role(child: ast.AST, parent: ast.AST) -> str:
    """Return how a node uses one of its children."""
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
            field = next(name for name, value in ast.iter_fields(parent) if value is child or _is_in(child, value))
            return f"{type(parent).__name__}.{field}"


def _is_in(child: ast.AST, value: object) -> bool:
    return isinstance(value, list) and any(each is child for each in value)
