"""The methods of the objects that steps return: they decide what a workflow does with a recorded result.

A workflow need not name the class of what a step returns. So the classes are taken from the step's return
annotation: also inside containers, unions, aliases and texts, with their bases, their subclasses and the classes of
their fields. Of a step whose annotation leaves the class open (none, `Any`, an abstract class), the classes that its
code uses count. So do the exceptions that a step's code uses, since the workflow may catch them.

Only methods count whose names the workflow uses as attributes, and those that Python calls by itself (`__iter__`,
`__lt__`). Other methods are used by steps alone, and a step may be mended. Fields do not count: a recorded value of a
class that gained a field is read as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Protocol

from ramify.compiler.frontend.python.modules import ProjectModule
from ramify.compiler.frontend.python.names import arguments_of, dotted_name, nodes_in
from ramify.compiler.parsing import parsed

Key = tuple[str, str]
_Method = ast.FunctionDef | ast.AsyncFunctionDef
_OPEN = frozenset(("Any", "object", "list", "dict", "tuple", "set", "Protocol", "ABC", "ABCMeta", "TypeVar"))
_BY_STEPS = frozenset(
    f"__{name}__"
    for name in (
        *("new", "init", "post_init", "init_subclass", "class_getitem", "set_name", "del", "slots", "match_args"),
        *("enter", "exit", "aenter", "aexit", "reduce", "reduce_ex", "getstate", "setstate", "copy", "deepcopy"),
    )
)
"""Special methods that make, close or copy an object."""
_READERS = frozenset(("getattr", "methodcaller", "attrgetter"))


class CodePart(Protocol):
    """What is needed of a part of the code."""

    @property
    def nodes(self) -> tuple[ast.AST, ...]: ...

    @property
    def texts(self) -> tuple[str, ...]: ...

    @property
    def module(self) -> ProjectModule: ...


class Parts(Protocol):
    """What is needed of the index of code parts."""

    steps: dict[Key, str]

    @property
    def parts(self) -> Mapping[Key, CodePart]: ...

    def resolve(self, module: ProjectModule, name: str, chain: tuple[str, ...]) -> Iterator[Key]: ...

    def imported_name(
        self, module: ProjectModule, node: ast.ImportFrom, origin: str, chain: tuple[str, ...], name: str
    ) -> Iterator[Key]: ...

    def registered_in(self, key: Key) -> tuple[Key, ...]: ...

    def add(self, module: ProjectModule, name: str, nodes: list[ast.AST]) -> Key: ...

    def closure(self, starts: Iterable[Key], *, into_steps: bool) -> set[Key]: ...

    def forget_uses(self, keys: Iterable[Key]) -> None: ...


@dataclass(slots=True)
class _Names:
    """The names of attributes that code uses. `any`: it also computes such names."""

    known: set[str]
    any: bool = False

    def mention(self, name: str) -> bool:
        return self.any or name in self.known


class ReturnedMethods:
    """Finds the methods that a workflow may call of what its steps return."""

    def __init__(self, index: Parts) -> None:
        self._index = index
        self._names = _Names(set())
        self._of: dict[Key, tuple[Key, ...]] = {}
        self._only_named: dict[Key, frozenset[str]] = {}

    def of(self, step: Key) -> tuple[Key, ...]:
        return self._of.get(step, ())

    def names_without_meaning(self, key: Key) -> frozenset[str]:
        """Return the names that stand in a method only in annotations or as the class of an `isinstance`."""
        return self._only_named.get(key, frozenset())

    def find(self, starts: Iterable[Key]) -> None:
        """Find them for a workflow that consists of these parts and what they use."""
        starts, known = list(starts), -1
        classes: dict[Key, tuple[Key, ...]] = {}
        while len(self._names.known) + self._names.any != known:
            known = len(self._names.known) + self._names.any
            reached = self._index.closure(starts, into_steps=False)
            for key in reached:
                for node in self._index.parts[key].nodes:
                    names, computed = _attributes(node)
                    self._names.known |= names
                    self._names.any = self._names.any or computed
            steps = self._index.closure(starts, into_steps=True) & self._index.steps.keys()
            for step in sorted(steps - classes.keys()):
                classes[step] = self._classes_of_step(step)
            before, self._of = self._of, {step: self._ordered(classes[step]) for step in sorted(steps)}
            self._index.forget_uses(step for step, of in self._of.items() if of != before.get(step, ()))

    def _ordered(self, classes: Iterable[Key]) -> tuple[Key, ...]:
        """Return the methods of classes, in an order that depends on neither the classes' names nor their layout."""
        found = dict.fromkeys(method for each in classes for method in self._methods(each))
        return tuple(sorted(found, key=lambda key: (key[1].rpartition(".")[2], self._index.parts[key].texts)))

    # From a step to the classes of its results

    def _classes_of_step(self, step: Key) -> tuple[Key, ...]:
        part = self._index.parts[step]
        found: dict[Key, None] = {}
        is_open = False
        for node in part.nodes:
            if not isinstance(node, _Method):
                continue
            is_open |= node.returns is None or not _names_of(node.returns).isdisjoint(_OPEN)
            if node.returns is not None:
                self._follow(part.module, node.returns, found, set())
        used = [key for key in sorted(self._index.closure([step], into_steps=True)) if self._class_nodes(key)]
        if is_open or any(self._is_abstract(key) for key in found):
            for key in used:
                self._follow_key(key, found, set())
        for key in used:  # the workflow may catch what the step raises
            if self._is_exception(key):
                self._follow_key(key, found, set())
        while fresh := [key for key in used if key not in found and not found.keys().isdisjoint(self._bases(key))]:
            for key in fresh:  # subclasses that the step may make
                self._follow_key(key, found, set())
        return tuple(found)

    def _is_exception(self, key: Key) -> bool:
        value = self._index.parts[key].module.values.get(key[1])
        return isinstance(value, type) and issubclass(value, BaseException)

    def _class_nodes(self, key: Key) -> list[ast.ClassDef]:
        return _class_nodes(self._index.parts[key].nodes, key[1])

    def _bases(self, key: Key) -> set[Key]:
        module = self._index.parts[key].module
        names = (each for node in self._class_nodes(key) for base in node.bases for each in _dotted_names(base))
        return {to for name, chain in names for to in self._index.resolve(module, name, chain)}

    def _is_abstract(self, key: Key) -> bool:
        classes = self._class_nodes(key)
        bases = (name for each in classes for base in (*each.bases, *each.keywords) for name in _names_of(base))
        return not _OPEN.isdisjoint(bases)

    def _follow(self, module: ProjectModule, annotation: ast.AST, found: dict[Key, None], seen: set[Key]) -> None:
        self._follow_keys(self._keys_in(module, annotation), found, seen)

    def _follow_key(self, key: Key, found: dict[Key, None], seen: set[Key]) -> None:
        self._follow_keys(iter((key,)), found, seen)

    def _follow_keys(self, keys: Iterator[Key], found: dict[Key, None], seen: set[Key]) -> None:
        """Add the classes that these parts lead to, depth first; without recursion, since a chain may be long."""
        open_ = [keys]
        while open_:
            key = next(open_[-1], None)
            if key is None:
                open_.pop()
            elif key not in seen and key not in found:
                seen.add(key)
                if self._class_nodes(key):
                    found[key] = None
                open_.append(self._led_to(key))

    def _keys_in(self, module: ProjectModule, annotation: ast.AST) -> Iterator[Key]:
        for name, chain in _dotted_names(annotation):
            yield from tuple(self._index.resolve(module, name, chain))

    def _led_to(self, key: Key) -> Iterator[Key]:
        """Yield the parts that a class or an alias names as types."""
        nodes, module = self._index.parts[key].nodes, self._index.parts[key].module
        classes = _class_nodes(nodes, key[1])
        for node in classes:
            for inner in nodes_in(node):
                if isinstance(inner, ast.AnnAssign):
                    yield from self._keys_in(module, inner.annotation)
                elif isinstance(inner, ast.ClassDef):
                    for base in inner.bases:
                        yield from self._keys_in(module, base)
                elif isinstance(inner, _Method) and inner.returns is not None:
                    yield from self._keys_in(module, inner.returns)
        if classes:
            yield from (other for other in self._index.registered_in(key) if self._class_nodes(other))
            return
        for statement in nodes:
            yield from self._alias(key, module, statement)

    def _alias(self, key: Key, module: ProjectModule, node: ast.AST) -> Iterator[Key]:
        """Follow `Teams = list[Team]`, and imports under `if TYPE_CHECKING:`."""
        if isinstance(node, ast.Assign | ast.AnnAssign) or type(node).__name__ == "TypeAlias":
            value = getattr(node, "value", None)
            if isinstance(value, ast.AST):
                yield from self._keys_in(module, value)
        elif isinstance(node, ast.If | ast.Try):
            for inner in nodes_in(node):
                for alias in inner.names if isinstance(inner, ast.ImportFrom) else ():
                    if isinstance(inner, ast.ImportFrom) and (alias.asname or alias.name) == key[1]:
                        yield from tuple(self._index.imported_name(module, inner, alias.name, (), key[1]))

    # From a class to its methods

    def _methods(self, key: Key) -> Iterator[Key]:
        nodes, module = self._index.parts[key].nodes, self._index.parts[key].module
        classes = _class_nodes(nodes, key[1])
        for node in classes:
            value = module.values.get(key[1])
            is_enum = isinstance(value, type) and issubclass(value, Enum)
            yield from self._members(module, key[1], node, is_enum=is_enum)
        outside: list[ast.AST] = [node for node in nodes if isinstance(node, ast.Assign) and classes]
        if outside:  # `Team.next = …`
            yield self._index.add(module, f"{key[1]} (changed).", outside)
        for node in classes:
            for decorator in node.decorator_list:
                for name, chain in _dotted_names(decorator):
                    for other in tuple(self._index.resolve(module, name, chain)):
                        if self._index.parts[other].nodes:
                            yield other

    def _members(self, module: ProjectModule, owner: str, node: ast.ClassDef, *, is_enum: bool) -> Iterator[Key]:
        named: dict[str, list[ast.AST]] = {}
        for statement in _statements(node.body):
            for name in _bound_members(statement, is_enum=is_enum):
                named.setdefault(name, []).append(statement)
        for name, statements in named.items():
            if self._counts(name, statements):
                key = self._index.add(module, f"{owner}.{name}", statements)
                self._only_named[key] = frozenset.intersection(*map(_only_in_annotations, statements))
                for each in statements:  # `shown = plain`, `total = property(_total)`
                    self._names.known |= {n.id for n in nodes_in(each) if isinstance(n, ast.Name)} & named.keys()
                yield key
        for statement in _statements(node.body):
            if isinstance(statement, ast.ClassDef):
                yield from self._members(module, f"{owner}.{statement.name}", statement, is_enum=False)

    def _counts(self, name: str, statements: Iterable[ast.AST]) -> bool:
        if name.startswith("__") and name.endswith("__"):
            return name not in _BY_STEPS
        decorators = (name for each in statements for name in getattr(each, "decorator_list", ()))
        written = any("serializer" in name for each in decorators for name in _names_of(each))
        return self._names.mention(name) or (written and self._names.mention("model_dump"))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If | ast.Try | ast.With):
            yield from _statements(inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt))
        else:
            yield statement


def _bound_members(statement: ast.stmt, *, is_enum: bool) -> Iterator[str]:
    """Yield the names of a class's methods and constants. Members of an enum, and fields, are compared elsewhere."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets) if not is_enum:
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr()):
            if not _names_of(annotation).isdisjoint(("ClassVar", "Final")):
                yield name


def _class_nodes(nodes: Iterable[ast.AST], name: str) -> list[ast.ClassDef]:
    """Return the definitions of a class among the statements that bind a name, also under a condition."""
    inside = (
        inner
        for node in nodes
        for inner in (nodes_in(node) if isinstance(node, ast.If | ast.Try | ast.With) else (node,))
    )
    return [each for each in inside if isinstance(each, ast.ClassDef) and each.name == name]


def _dotted_names(annotation: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the dotted names in an annotation, also those in texts (`"list[Team]"`), in reading order."""
    todo = [annotation]
    while todo:
        node = todo.pop(0)
        match node:
            case ast.Name() | ast.Attribute() if (dotted := dotted_name(node)) is not None:
                yield dotted[0], tuple(dotted[1:])
                continue
            case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal")):
                continue
            case ast.Constant(value=str(text)) if (inner := _expression(text)) is not None:
                todo.append(inner)
        todo += ast.iter_child_nodes(node)


@cache
def _expression(text: str) -> ast.expr | None:
    if len(text) > 1000:
        return None
    try:
        return parsed(lambda: ast.parse(text.strip(), mode="eval")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names_of(annotation: ast.AST) -> set[str]:
    """Return the last names in an annotation; bare containers by their names, since their items are not known."""
    found, arguments = set[str](), set[int]()
    for node in nodes_in(annotation):
        if isinstance(node, ast.Subscript):
            arguments.add(id(node.value))
    for node in nodes_in(annotation):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
        if name is not None and id(node) not in arguments:
            found.add(name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and (inner := _expression(node.value)):
            found |= _names_of(inner) if not isinstance(inner, ast.Constant) else set()
    return found


def _attributes(root: ast.AST) -> tuple[set[str], bool]:
    """Return the attributes that code names, and whether it also computes names of attributes."""
    found, computed = set[str](), False
    for node in nodes_in(root):
        match node:
            case ast.Attribute(attr=name):
                found.add(name)
            case ast.Constant(value=str(name)) if name.replace(".", "_").isidentifier():
                found.update(name.split("."))
            case ast.MatchClass(kwd_attrs=names):
                found.update(names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args) if name in _READERS:
                asked = args[1:2] if name == "getattr" else args
                computed = computed or not all(isinstance(each, ast.Constant) for each in asked)
    return found, computed


def _only_in_annotations(statement: ast.AST) -> frozenset[str]:
    skipped = set[int]()
    for node in nodes_in(statement):
        inside: list[ast.AST | None] = []
        if isinstance(node, _Method):
            inside = [node.returns, *(argument.annotation for argument in arguments_of(node.args))]
        elif isinstance(node, ast.AnnAssign):
            inside = [node.annotation]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inside = [*node.args[1:]] if node.func.id in ("isinstance", "issubclass") else []
        skipped.update(id(each) for part in inside if part is not None for each in nodes_in(part))
    names = [(node.id, id(node) in skipped) for node in nodes_in(statement) if isinstance(node, ast.Name)]
    return frozenset(name for name, _ in names) - {name for name, aside in names if not aside}
