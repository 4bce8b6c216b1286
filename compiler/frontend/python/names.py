"""Names in Python syntax: which scope binds a name, and which names a piece of code uses, in what order.

Only the standard library is imported here, so that a test can load this module under every supported Python.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from weakref import WeakKeyDictionary

Position = tuple[int, int]
"""Line and column."""

_END_OF_FILE: Position = (1 << 31, 0)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "globals", "inspect", "sys", "_getframe"})
_FUNCTION_NAMES = frozenset({"__name__", "__qualname__"})


def children(node: ast.AST) -> list[ast.AST]:
    """Return what `ast.iter_child_nodes` yields, in half the time."""
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
    return found


_below: WeakKeyDictionary[ast.AST, tuple[ast.AST, ...]] = WeakKeyDictionary()


def nodes_in(root: ast.AST) -> Iterator[ast.AST]:
    """Yield what `ast.walk` yields. The nodes are kept for the next call: several analyses read the same code."""
    below = _below.get(root)
    if below is None:
        found = [root]
        for node in found:
            found += children(node)
        below = _below[root] = tuple(found[1:])  # not the root itself, which would then live for ever
    return chain((root,), below)


# Uses of names


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a dotted name, at the position of its statement.

    Code in an inner function may run at any time after the function is defined, so the use spans from there to the
    end of the file.
    """

    name: str
    chain: tuple[str, ...]  # the attributes after the name
    first: Position
    last: Position
    loops: frozenset[Position]  # the start of each loop around the use
    module: str | None = None  # set for an import statement: the module imported from; "" for `import name`


ANYWHERE = Use("", (), (0, 0), _END_OF_FILE, frozenset())
"""The use of code that no name in the text leads to."""

_known_uses: WeakKeyDictionary[ast.AST, tuple[Use, ...]] = WeakKeyDictionary()


def uses_of(node: ast.AST) -> tuple[Use, ...]:
    """Return the dotted names that a piece of syntax uses, without duplicates, in reading order."""
    known = _known_uses.get(node)
    if known is None:
        known = _known_uses[node] = tuple(dict.fromkeys(_uses(node)))
    return known


def _uses(root: ast.AST) -> Iterator[Use]:
    todo: list[tuple[ast.AST, Position, Position | None, frozenset[Position]]] = [(root, (0, 0), None, frozenset())]
    while todo:
        node, statement, function, loops = todo.pop()
        position = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        statement = position if isinstance(node, ast.stmt) else statement
        first, last = (statement, statement) if function is None else (function, _END_OF_FILE)
        if isinstance(node, ast.Name | ast.Attribute) and (dotted := dotted_name(node)) is not None:
            yield Use(dotted[0], tuple(dotted[1:]), first, last, loops)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom) and node is not root:
            yield from (Use(alias.name, (), first, last, loops, imported_from(node)) for alias in node.names)
        if isinstance(node, _LOOPS):
            loops |= {position}
        if isinstance(node, _FUNCTIONS) and node is not root and function is None:
            function = statement
        todo += ((child, statement, function, loops) for child in children(node))


def imported_from(node: ast.Import | ast.ImportFrom) -> str:
    """Return the module after `from`, with its leading dots; "" for `import name`."""
    return "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""


def dotted_name(node: ast.expr) -> list[str] | None:
    """Return the parts of `a.b.c`; None for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def names_passed(node: ast.AST) -> set[str]:
    """Return names and attributes that are used as values instead of being called, and strings that may name them."""
    called = {id(inner.func) for inner in nodes_in(node) if isinstance(inner, ast.Call)}
    found = set[str]()
    for inner in nodes_in(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                found |= set() if id(inner) in called else {name}
            case ast.Constant(value=str(name)) if name.isidentifier():
                found.add(name)
    return found


_known_readers: WeakKeyDictionary[ast.AST, bool] = WeakKeyDictionary()


def reads_function_names(node: ast.AST) -> bool:
    """Return whether the code reads the name of a function (`__name__`, `__qualname__`)."""
    known = _known_readers.get(node)
    if known is None:
        attributes = (inner.attr for inner in nodes_in(node) if isinstance(inner, ast.Attribute))
        texts = (inner.value for inner in nodes_in(node) if isinstance(inner, ast.Constant))
        strings = (text for text in texts if isinstance(text, str))
        known = _known_readers[node] = any(name in _FUNCTION_NAMES for name in (*attributes, *strings))
    return known


# Scopes


@dataclass(eq=False, slots=True)
class BindingScope:
    """The names that a function, a comprehension or a class binds."""

    outer: BindingScope | None
    bound: set[str] = field(default_factory=set)
    is_class: bool = False
    is_comprehension: bool = False
    elsewhere: set[str] = field(default_factory=set)  # declared global or nonlocal

    def walrus_scope(self) -> BindingScope:
        """Return the scope in which `:=` binds: the nearest one that is no comprehension."""
        scope = self
        while scope.is_comprehension and scope.outer is not None:
            scope = scope.outer
        return scope


class LocalNames:
    """The names that one function binds, scope by scope, and which of them could be renamed without any effect.

    Attributes:
        scopes: The scope of each function, class and comprehension in it.
        renamable: Local names that nothing outside the function can see. Renaming one does not change behaviour.
    """

    def __init__(self, root: ast.AST) -> None:
        self.scopes: dict[ast.AST, BindingScope] = {}
        self._visible: set[str] = set()  # names that code outside the function may see
        self._bound: set[str] = set()
        self._loads: list[tuple[str, BindingScope | None]] = []
        self._visit(root, None)
        free = {name for name, scope in self._loads if not is_bound(name, scope)[0]}
        reads_locals = not free.isdisjoint(_READS_LOCALS)
        self.renamable = set[str]() if reads_locals else self._bound - self._visible - free

    def _bind(self, name: str, scope: BindingScope | None, *, visible: bool) -> None:
        if scope is not None:
            scope.bound.add(name)
            visible = visible or scope.is_class
        self._bound.add(name)
        if visible or name.startswith("__"):
            self._visible.add(name)

    def _visit(self, node: ast.AST, scope: BindingScope | None) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if not isinstance(node, ast.Lambda):
                    self._bind(node.name, scope, visible=True)
                inner = self.scopes[node] = BindingScope(scope)
                for argument in arguments_of(node.args):
                    self._bind(argument.arg, inner, visible=True)
                self._visit_parts(node, scope, inner)
            case ast.ClassDef():
                self._bind(node.name, scope, visible=True)
                inner = self.scopes[node] = BindingScope(scope, is_class=True)
                self._visit_parts(node, scope, inner)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = self.scopes[node] = BindingScope(scope, is_comprehension=True)
                self._visit_parts(node, scope, inner)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._bind(name, None if scope is None else scope.walrus_scope(), visible=False)
                self._visit(value, scope)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self._visible.update(names)
                if scope is not None:
                    scope.elsewhere.update(names)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self._bind((alias.asname or alias.name).partition(".")[0], scope, visible=True)
            case ast.Name(id=name, ctx=ast.Load()):
                self._loads.append((name, scope))
            case ast.Name(id=name):
                self._bind(name, scope, visible=False)
                self._loads.append((name, scope))
            case _:
                for name in names_bound_by(node):
                    self._bind(name, scope, visible=False)
                for child in children(node):
                    self._visit(child, scope)

    def _visit_parts(self, node: ast.AST, outer: BindingScope | None, inner: BindingScope) -> None:
        for part, is_outer in parts_by_scope(node):
            self._visit(part, outer if is_outer else inner)


def is_bound(name: str, scope: BindingScope | None) -> tuple[bool, bool]:
    """Return whether a function or comprehension around `scope` binds the name, and whether a class there does."""
    first, in_class = True, False
    while scope is not None:
        if name in scope.elsewhere:
            outer, found = scope.outer, False
            while outer is not None:  # nonlocal: an outer function binds it; global: none does
                found = found or (name in outer.bound and not outer.is_class)
                outer = outer.outer
            return found, in_class
        if scope.is_class:
            in_class = in_class or (first and name in scope.bound)
        elif name in scope.bound:
            return True, in_class
        first = first and scope.is_comprehension
        scope = scope.outer
    return False, in_class


def names_bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds by a string field: exception handlers and patterns of `match`."""
    match node:
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


def arguments_of(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Yield every parameter of a function, `*args` and `**kwargs` included."""
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (each for each in (arguments.vararg, arguments.kwarg) if each is not None)


def parts_by_scope(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Yield the parts of a node that opens a scope, each with whether it is evaluated in the scope around it."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            defaults = (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None))
            yield from ((each, True) for each in defaults)
            if isinstance(node, ast.Lambda):
                yield node.body, False
                return
            annotations = (argument.annotation for argument in arguments_of(node.args))
            outer = (*annotations, node.returns, *node.decorator_list)
            yield from ((each, True) for each in outer if each is not None)
            yield from ((each, True) for each in getattr(node, "type_params", ()))
            yield from ((each, False) for each in node.body)
        case ast.ClassDef():
            yield from ((each, True) for each in (*node.bases, *node.keywords, *node.decorator_list))
            yield from ((each, True) for each in getattr(node, "type_params", ()))
            yield from ((each, False) for each in node.body)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            first, *rest = node.generators
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            yield first.iter, True
            yield from ((each, False) for each in (first.target, *first.ifs, *rest, *results))
