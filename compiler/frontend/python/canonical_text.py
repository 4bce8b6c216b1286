"""A text of a piece of syntax that says what it does, and not how it is laid out.

Equal for equal code under every supported version of Python, whatever the layout, comments, quotes, parentheses and
local variable names. Needs nothing but `ast`, so that a test can run it under each interpreter.

The names that a function takes from its module are left open (`Free`), for the caller to fill in with what they mean.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SINGLE = (ast.Constant, ast.MatchSingleton)
_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "type_ignores"})
_SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "globals", "inspect", "sys", "_getframe"})
_SEES_NAMES = frozenset({"__name__", "__qualname__"})


@dataclass(frozen=True, slots=True)
class Free:
    """A name that is not bound in the syntax itself, with the attributes after it. `module`: what is imported from
    there while it runs. `hidden`: a class around it may bind the name, too."""

    name: str
    chain: tuple[str, ...] = ()
    module: str | None = None
    hidden: bool = False

    def __str__(self) -> str:
        return ".".join([self.name, *self.chain])


class OwnName(str):
    """The name of the function that is written."""

    __slots__ = ()


Piece = str | Free
_known: WeakKeyDictionary[ast.AST, tuple[Piece, ...]] = WeakKeyDictionary()
_sees: WeakKeyDictionary[ast.AST, bool] = WeakKeyDictionary()


def pieces_of(node: ast.AST) -> tuple[Piece, ...]:
    """The text of a statement at the top of a module, or of a function, in pieces between its free names."""
    known = _known.get(node)
    if known is None:
        writer = _Writer(node)
        writer.write(node, None)
        known = _known[node] = tuple(_joined(writer.pieces))
    return known


def text_of(node: ast.AST, fill: Callable[[Free], str] = str) -> str:
    return "".join(piece if isinstance(piece, str) else fill(piece) for piece in pieces_of(node))


def plain_text(node: ast.AST) -> str:
    """The text of a piece inside a function, with its names as they are written."""
    writer = _Writer()
    writer.write_plainly(node)
    return "".join(map(str, writer.pieces))


def statements_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[tuple[Piece, ...], ...]:
    """As `pieces_of`: what a function takes, and each statement of its body, in order; with its names as they are
    written, since what follows may use them in another way."""
    return _Writer().statements(node)


def is_plain_function(node: ast.AST) -> bool:
    """Whether nobody is told the function's name: no decorator is given it."""
    return isinstance(node, _FUNCTIONS) and not node.decorator_list


def body_of(node: ast.AST) -> tuple[Piece, ...]:
    """As `pieces_of`, of a function without its own name."""
    return tuple(piece for piece in pieces_of(node) if not isinstance(piece, OwnName))


def names_passed(node: ast.AST) -> set[str]:
    """Names and attributes that are not called where they stand, and texts that may name them."""
    called = {id(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)}
    found = set[str]()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                found |= set() if id(inner) in called else {name}
            case ast.Constant(value=str(name)) if name.isidentifier():
                found.add(name)
    return found


def reads_function_names(node: ast.AST) -> bool:
    """Whether it asks a function for its name."""
    known = _sees.get(node)
    if known is None:
        attributes = (inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute))
        texts = (inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant))
        known = _sees[node] = any(name in _SEES_NAMES for name in (*attributes, *filter(_is_text, texts)))
    return known


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    text: list[str] = []
    for piece in pieces:
        if isinstance(piece, str) and not isinstance(piece, OwnName):
            text.append(piece)
        else:
            yield "".join(text)
            yield piece
            text = []
    yield "".join(text)


@dataclass(eq=False, slots=True)
class _Scope:
    """The names of a function, a comprehension or a class."""

    outer: _Scope | None
    bound: set[str] = field(default_factory=set)
    is_class: bool = False
    is_comprehension: bool = False
    elsewhere: set[str] = field(default_factory=set)  # global or nonlocal

    def home(self) -> _Scope:
        """Where `:=` binds."""
        scope = self
        while scope.is_comprehension and scope.outer is not None:
            scope = scope.outer
        return scope


class _Locals:
    """Which names are bound where in one function, and which of them may be called anything."""

    def __init__(self, root: ast.AST) -> None:
        self.scopes: dict[ast.AST, _Scope] = {}
        self.kept: set[str] = set()  # names that something outside the function may see
        self.bound: set[str] = set()
        self.loads: list[tuple[str, _Scope | None]] = []
        self._visit(root, None)
        self.free = {name for name, scope in self.loads if not is_bound(name, scope)[0]}
        dynamic = not self.free.isdisjoint(_SEES_LOCALS)
        self.any_name = set[str]() if dynamic else self.bound - self.kept - self.free

    def _bind(self, name: str, scope: _Scope | None, *, kept: bool) -> None:
        if scope is not None:
            scope.bound.add(name)
            kept = kept or scope.is_class
        self.bound.add(name)
        if kept or name.startswith("__"):
            self.kept.add(name)

    def _visit(self, node: ast.AST, scope: _Scope | None) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if not isinstance(node, ast.Lambda):
                    self._bind(node.name, scope, kept=True)
                inner = self.scopes[node] = _Scope(scope)
                for argument in _arguments(node.args):
                    self._bind(argument.arg, inner, kept=True)
                for each, around in _split(node):
                    self._visit(each, scope if around else inner)
            case ast.ClassDef():
                self._bind(node.name, scope, kept=True)
                inner = self.scopes[node] = _Scope(scope, is_class=True)
                for each, around in _split(node):
                    self._visit(each, scope if around else inner)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = self.scopes[node] = _Scope(scope, is_comprehension=True)
                for each, around in _split(node):
                    self._visit(each, scope if around else inner)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._bind(name, None if scope is None else scope.home(), kept=False)
                self._visit(value, scope)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self.kept.update(names)
                if scope is not None:
                    scope.elsewhere.update(names)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    self._bind((alias.asname or alias.name).partition(".")[0], scope, kept=True)
            case ast.Name(id=name, ctx=ast.Load()):
                self.loads.append((name, scope))
            case ast.Name(id=name):
                self._bind(name, scope, kept=False)
                self.loads.append((name, scope))
            case _:
                for name in _names_in(node):
                    self._bind(name, scope, kept=False)
                for child in ast.iter_child_nodes(node):
                    self._visit(child, scope)


def is_bound(name: str, scope: _Scope | None) -> tuple[bool, bool]:
    """Whether a name is bound by a function or comprehension around it; and whether by a class that it stands in."""
    first, in_class = True, False
    while scope is not None:
        if name in scope.elsewhere:
            outer, found = scope.outer, False
            while outer is not None:  # nonlocal: of a function further out; global: of none
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


def _names_in(node: ast.AST) -> Iterator[str]:
    """Names that a node binds by itself."""
    match node:
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


def _arguments(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (each for each in (arguments.vararg, arguments.kwarg) if each is not None)


def _split(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """What a node with a scope of its own holds, and whether that is read in the scope around it."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            defaults = (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None))
            yield from ((each, True) for each in defaults)
            if isinstance(node, ast.Lambda):
                yield node.body, False
                return
            said = (argument.annotation for argument in _arguments(node.args))
            yield from ((each, True) for each in (*said, node.returns, *node.decorator_list) if each is not None)
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


class _Writer:
    def __init__(self, root: ast.AST | None = None) -> None:
        self.pieces: list[Piece] = []
        self._root = root if isinstance(root, _FUNCTIONS) else None
        self._locals: _Locals | None = None
        self._numbers: dict[str, int] = {}

    def write(self, node: ast.AST, scope: _Scope | None) -> None:
        if self._locals is None and isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            self._locals, self._numbers = _Locals(node), {}
            self._node(node, scope)
            self._locals = None
        else:
            self._node(node, scope)

    def write_plainly(self, node: ast.AST) -> None:
        self._locals = _Locals(ast.Module([], []))
        self._node(node, None)

    def statements(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[tuple[Piece, ...], ...]:
        self._locals = _Locals(node)
        self._locals.any_name = set()
        inner, found = self._locals.scopes[node], []
        self.pieces.append(type(node).__name__)
        self.write(node.args, None)
        for statement in node.body:
            found.append(tuple(_joined(self.pieces)))
            self.pieces = []
            for each in _statements(None, [statement]):
                self._value(each, node, "body", inner)
        return (*found, tuple(_joined(self.pieces)))

    def _node(self, node: ast.AST, scope: _Scope | None) -> None:
        match node:
            case ast.Name(id=name):
                self._name(name, scope, stored=not isinstance(node.ctx, ast.Load))
            case ast.Attribute() if (dotted := _dotted(node)) is not None and not self._is_local(dotted[0], scope):
                self.pieces.append(Free(dotted[0], tuple(dotted[1:]), hidden=is_bound(dotted[0], scope)[1]))
            case ast.Constant():
                self.pieces.append(f"({_constant(node.value)})")
            case ast.JoinedStr():
                self._joined_str(node, scope)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node, scope)
            case _:
                self.pieces.append(f"({type(node).__name__}")
                for name, value in _fields(node):
                    if name == "name" and node is self._root:
                        self.pieces.append(OwnName(f" name='{value}'"))
                        continue
                    self.pieces.append(f" {name}=")
                    self._value(value, node, name, scope)
                self.pieces.append(")")
        if isinstance(node, ast.Import | ast.ImportFrom) and self._locals is not None:
            base = "." * node.level + (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            self.pieces += [Free(alias.name, (), base) for alias in node.names]

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: _Scope | None
    ) -> None:
        """What it goes through first is read in the scope around it."""
        inner = scope if self._locals is None else self._locals.scopes.get(node, scope)
        self.pieces.append(f"({type(node).__name__} ")
        for index, generator in enumerate(node.generators):
            self.pieces.append(" async for " if generator.is_async else " for ")
            self.write(generator.iter, scope if index == 0 else inner)
            for each in (generator.target, *generator.ifs):
                self.pieces.append(",")
                self.write(each, inner)
        for each in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.pieces.append(" give ")
            self.write(each, inner)
        self.pieces.append(")")

    def _value(self, value: object, node: ast.AST, name: str, scope: _Scope | None) -> None:
        if isinstance(value, ast.AST):
            self.write(value, self._scope_of(node, name, value, scope))
        elif isinstance(value, list):
            self.pieces.append("[")
            for each in value:
                self._value(each, node, name, scope)
                self.pieces.append(",")
            self.pieces.append("]")
        elif isinstance(value, str) and name in ("name", "rest") and value in set(_names_in(node)):
            self._name(value, scope, stored=True)
        else:
            self.pieces.append(_constant(value))

    def _scope_of(self, node: ast.AST, name: str, value: ast.AST, scope: _Scope | None) -> _Scope | None:
        if self._locals is None:
            return scope
        inner = self._locals.scopes.get(node)
        if inner is None or isinstance(value, ast.arguments):
            return scope
        if isinstance(value, ast.comprehension):
            return inner  # but what the first of them goes through: see `_node`
        around = any(each is value for each, outside in _split(node) if outside)
        return scope if around else inner

    def _name(self, name: str, scope: _Scope | None, *, stored: bool) -> None:
        if self._locals is not None and name in self._locals.any_name:
            number = self._numbers.setdefault(name, len(self._numbers))
            self.pieces.append(f"%{number}")
        elif stored or self._is_local(name, scope):
            self.pieces.append(f"'{name}'")
        else:
            self.pieces.append(Free(name, hidden=is_bound(name, scope)[1]))

    def _is_local(self, name: str, scope: _Scope | None) -> bool:
        return is_bound(name, scope)[0]

    def _joined_str(self, node: ast.JoinedStr, scope: _Scope | None) -> None:
        """How a text is cut into constants differs between versions of Python."""
        self.pieces.append("(JoinedStr")
        text = ""
        for value in node.values:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                text += value.value
                continue
            if text:
                self.pieces.append(f" {_constant(text)}")
                text = ""
            self.pieces.append(" ")
            self.write(value, scope)
        self.pieces.append(f" {_constant(text)})" if text else ")")


def _fields(node: ast.AST) -> Iterator[tuple[str, object]]:
    """By name; what is empty is left out, as what an older Python has no name for."""
    if isinstance(node, ast.Delete):  # `del (a, b)` is `del a, b`
        yield "targets", [each for target in node.targets for each in _flat(target)]
        return
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if name in _LEFT_OUT or value is None or value == []:
            continue
        if name == "body" and isinstance(value, list):
            value = _statements(node, value)
        elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
            value = _statements(None, value)
        yield name, value


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _flat(each)
    else:
        yield target


def _statements(node: ast.AST | None, body: list[ast.stmt]) -> list[object]:
    """A docstring without its indentation, which formatters change; other texts that stand alone do nothing."""
    found: list[object] = []
    documented = isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Module))
    for index, statement in enumerate(body):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                if documented and index == 0:
                    lines = inspect.cleandoc(text).splitlines()
                    found.append(" doc " + "\n".join(line.rstrip() for line in lines).strip())
            case _:
                found.append(statement)
    return found


def _constant(value: object) -> str:
    match value:
        case bool() | None:
            return str(value)
        case int():
            return f"int {value:x}"
        case str():
            return ascii(value)
        case frozenset():
            return f"frozenset {sorted(map(_constant, value))}"
        case tuple():
            return f"tuple [{', '.join(map(_constant, value))}]"
        case _:
            return f"{type(value).__name__} {value!r}"


def _dotted(node: ast.expr) -> list[str] | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else None


def ast_dump_for(node: ast.AST, minor: int) -> str:
    """What `ast.dump` gives under Python 3.`minor`: digests in plans of format 5 and before are of that text."""

    def said(value: object) -> str:
        if isinstance(value, ast.AST):
            fields = []
            names = value._fields
            if minor == 12 and isinstance(value, (*_FUNCTIONS, ast.ClassDef)) and "type_params" not in names:
                names += ("type_params",)
            for name in names:
                inner = getattr(value, name, [] if name == "type_params" else None)
                optional = inner is None and getattr(type(value), name, ...) is None
                newer = name == "type_params" and minor < 12
                empty = minor >= 13 and (inner == [] or (inner is None and not isinstance(value, _SINGLE)))
                if not (optional or newer or empty):
                    fields.append(f"{name}={said(inner)}")
            return f"{type(value).__name__}({', '.join(fields)})"
        if isinstance(value, list):
            return f"[{', '.join(map(said, value))}]"
        return repr(value)

    return said(node)
