"""Canonical text of Python syntax: it states what the code does, and not how the code is laid out.

The text is equal for equal code under every supported version of Python, whatever the layout, comments, quotes,
parentheses and local variable names. Digests of code are digests of this text.

The names that a function takes from its module are left open (`FreeName`); the caller fills in what they mean.

Only the standard library and `names` are imported here, so that a test can load this module under each interpreter.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from ramify.compiler.frontend.python.names import (
    BindingScope,
    LocalNames,
    dotted_name,
    imported_from,
    is_bound,
    names_bound_by,
    parts_by_scope,
)

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SINGLE = (ast.Constant, ast.MatchSingleton)
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_ignores"})


@dataclass(frozen=True, slots=True)
class FreeName:
    """A name that the syntax itself does not bind, with the attributes after it."""

    name: str
    chain: tuple[str, ...] = ()
    module: str | None = None  # set for an import inside a function: the module imported from
    hidden: bool = False  # a class around the use may bind the name, too

    def __str__(self) -> str:
        return ".".join([self.name, *self.chain])


class OwnName(str):
    """The piece of text that names the written function itself."""

    __slots__ = ()


Piece = str | FreeName
_known: WeakKeyDictionary[ast.AST, tuple[Piece, ...]] = WeakKeyDictionary()


def pieces_of(node: ast.AST) -> tuple[Piece, ...]:
    """Return the text of a module-level statement or a function, split at its free names."""
    known = _known.get(node)
    if known is None:
        writer = _Writer(node)
        writer.write(node, None)
        known = _known[node] = tuple(_joined(writer.pieces))
    return known


def text_of(node: ast.AST, fill: Callable[[FreeName], str] = str) -> str:
    """Return the text of a module-level statement or a function; `fill` writes each free name."""
    return "".join(piece if isinstance(piece, str) else fill(piece) for piece in pieces_of(node))


def plain_text(node: ast.AST) -> str:
    """Return the text of syntax inside a function, with all names as they are written."""
    writer = _Writer()
    writer.write_plainly(node)
    return "".join(map(str, writer.pieces))


def statements_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces of a function's parameters, and then of each statement of its body.

    Local names stay as they are written: a later statement may use them in another way.
    """
    return _Writer().statements(node)


def is_plain_function(node: ast.AST) -> bool:
    """Return whether the node is a function without decorators, so that no decorator is passed its name."""
    return isinstance(node, _FUNCTIONS) and not node.decorator_list


def body_of(node: ast.AST) -> tuple[Piece, ...]:
    """Return `pieces_of` a function without the function's own name."""
    return tuple(piece for piece in pieces_of(node) if not isinstance(piece, OwnName))


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


class _Writer:
    def __init__(self, root: ast.AST | None = None) -> None:
        self.pieces: list[Piece] = []
        self._root = root if isinstance(root, _FUNCTIONS) else None
        self._locals: LocalNames | None = None
        self._renamable = set[str]()
        self._numbers: dict[str, int] = {}

    def write(self, node: ast.AST, scope: BindingScope | None) -> None:
        if self._locals is None and isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            self._locals, self._numbers = LocalNames(node), {}
            self._renamable = self._locals.renamable
            self._node(node, scope)
            self._locals, self._renamable = None, set()
        else:
            self._node(node, scope)

    def write_plainly(self, node: ast.AST) -> None:
        self._locals = LocalNames(ast.Module([], []))
        self._node(node, None)

    def statements(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[tuple[Piece, ...], ...]:
        self._locals = LocalNames(node)
        inner, found = self._locals.scopes[node], []
        self.pieces.append(type(node).__name__)
        self.write(node.args, None)
        for statement in node.body:
            found.append(tuple(_joined(self.pieces)))
            self.pieces = []
            for each in _statements(None, [statement]):
                self._value(each, node, "body", inner)
        return (*found, tuple(_joined(self.pieces)))

    def _node(self, node: ast.AST, scope: BindingScope | None) -> None:
        match node:
            case ast.Name(id=name):
                self._name(name, scope, stored=not isinstance(node.ctx, ast.Load))
            case ast.Attribute() if (dotted := dotted_name(node)) is not None and not is_bound(dotted[0], scope)[0]:
                self.pieces.append(FreeName(dotted[0], tuple(dotted[1:]), hidden=is_bound(dotted[0], scope)[1]))
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
            self.pieces += [FreeName(alias.name, (), imported_from(node)) for alias in node.names]

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: BindingScope | None
    ) -> None:
        """Write a comprehension. Its first iterable is evaluated in the scope around it."""
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

    def _value(self, value: object, node: ast.AST, name: str, scope: BindingScope | None) -> None:
        if isinstance(value, ast.AST):
            self.write(value, self._scope_of(node, value, scope))
        elif isinstance(value, list):
            self.pieces.append("[")
            for each in value:
                self._value(each, node, name, scope)
                self.pieces.append(",")
            self.pieces.append("]")
        elif isinstance(value, str) and name in ("name", "rest") and value in set(names_bound_by(node)):
            self._name(value, scope, stored=True)
        else:
            self.pieces.append(_constant(value))

    def _scope_of(self, node: ast.AST, value: ast.AST, scope: BindingScope | None) -> BindingScope | None:
        if self._locals is None:
            return scope
        inner = self._locals.scopes.get(node)
        if inner is None or isinstance(value, ast.arguments):
            return scope
        if isinstance(value, ast.comprehension):
            return inner  # `_comprehension` handles the first iterable
        is_outer = any(part is value for part, outer in parts_by_scope(node) if outer)
        return scope if is_outer else inner

    def _name(self, name: str, scope: BindingScope | None, *, stored: bool) -> None:
        bound, hidden = is_bound(name, scope)
        if name in self._renamable:
            number = self._numbers.setdefault(name, len(self._numbers))
            self.pieces.append(f"%{number}")
        elif stored or bound:
            self.pieces.append(f"'{name}'")
        else:
            self.pieces.append(FreeName(name, hidden=hidden))

    def _joined_str(self, node: ast.JoinedStr, scope: BindingScope | None) -> None:
        """Write an f-string. Adjacent constants are joined, since versions of Python split them differently."""
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
    """Yield the fields by name. Empty ones are omitted, because an older Python may not have them."""
    if isinstance(node, ast.Delete):  # `del (a, b)` is `del a, b`
        yield "targets", [each for target in node.targets for each in _flat(target)]
        return
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if name in _IGNORED_FIELDS or value is None or value == []:
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
    """Return the statements of a body.

    A docstring loses its indentation, which formatters change. Other strings that stand alone have no effect and are
    omitted.
    """
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


def ast_dump_for(node: ast.AST, minor: int) -> str:
    """Return what `ast.dump` gives under Python 3.`minor`.

    Digests in plans of format 5 and earlier are of this text.
    """

    def dump(value: object) -> str:
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
                    fields.append(f"{name}={dump(inner)}")
            return f"{type(value).__name__}({', '.join(fields)})"
        if isinstance(value, list):
            return f"[{', '.join(map(dump, value))}]"
        return repr(value)

    return dump(node)
