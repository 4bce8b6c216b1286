"""The parts of a project's code that a workflow or a step uses, each with a digest: functions, classes, constants and
imports, by name and through the project's own modules, as far as names lead.

What is imported inside a function is found by its file, as what that file imports in turn is: whether a module is
loaded already differs between two processes of one run.

Not seen: what is only reached through an object (a method of a value that nobody annotated), values in closures that
are no functions, what changes while running, names made by `setattr` or `exec`.

A digest is of the parts' texts (`syntax`), in the order in which they are met, with what their names mean: the same
under every version of Python, wherever a part stands, and whatever a function of the project is called. In plans of
format 5 and before it was of `ast.dump`, without an order.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from types import FunctionType

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.python.canonical_text import (
    Free,
    Piece,
    ast_dump_for,
    body_of,
    is_plain_function,
    names_passed,
    pieces_of,
    reads_function_names,
    text_of,
)
from ramify.compiler.frontend.python.modules import Module, Modules, dumped
from ramify.compiler.frontend.python.name_resolution import plain_function, step_info
from ramify.compiler.frontend.python.names import Use, uses_of
from ramify.compiler.frontend.python.sources import (
    Function,
    Sources,
    in_same_project,
    patch_names_in,
    patched_aliases,
)
from ramify.compiler.plan import CodePart, site_file

Key = tuple[str, str]  # a file, and a name in it


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What binds one name."""

    name: str
    where: str
    texts: tuple[str, ...]
    nodes: tuple[ast.AST, ...]
    module: Module

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()


class CodeIndex:
    """What one compilation found out of the project's code."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._modules = Modules(sources)
        self._uses: dict[Key, tuple[tuple[Use, Key], ...]] = {}
        self._asked: set[tuple[str, str, tuple[str, ...]]] = set()
        self.parts: dict[Key, Part] = {}
        self.steps: dict[Key, str] = {}  # names that are steps, and how these are called
        self.used_by: dict[Key, set[str]] = {}  # by which steps

    def part(self, function: Function) -> Key:
        """The part that a function is."""
        key = self._key(function)
        if key not in self.parts:
            module = self._modules.of(function)
            text = (self._text(function.node),)
            self.parts[key] = Part(key[1], function.where(), text, (function.node,), module)
        return key

    def _key(self, function: Function) -> Key:
        """Several may have one name: the lambdas of a scope."""
        names = (f"{function.name} {number}" if number > 1 else function.name for number in count(1))
        for name in names:
            known = self.parts.get((function.path, name))
            if known is None or known.nodes == (function.node,) or not self._sources.since_format_5:
                return function.path, name
        raise AssertionError("unreachable")

    def closure(self, starts: Iterable[Key], *, into_steps: bool) -> set[Key]:
        """These parts and what they use, in turn. `into_steps`: what a step calls of other steps is part of it."""
        found, todo = set[Key](), list(starts)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo += (to for _, to in self.uses(key) if into_steps or to not in self.steps)
        return found

    def _text(self, node: ast.AST) -> str:
        if self._sources.since_format_6:
            return text_of(node)
        return dumped(node) if self._sources.minor is None else ast_dump_for(node, self._sources.minor)

    def digest(self, starts: Iterable[Key], *, into_steps: bool) -> str:
        """Of these parts and what they use, in turn; see `closure`."""
        if self._sources.since_format_6:
            return self.written(starts := list(starts), into_steps=into_steps).all_of(starts)
        keys = self.closure(starts, into_steps=into_steps)
        texts = sorted(text for key in keys for text in self.parts[key].texts)
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()

    def written(self, starts: Iterable[Key], *, into_steps: bool) -> Written:
        """What these parts and what they use are written to."""
        nodes = (node for key in self.closure(starts, into_steps=into_steps) for node in self.parts[key].nodes)
        return Written(self, into_steps=into_steps, names_are_seen=any(map(reads_function_names, nodes)))

    def patches(self) -> tuple[str, ...]:
        """The names that the parts ask `patched` for."""
        found = set[str]()
        for part in self.parts.values():
            calls = patched_aliases(self._sources.tree(part.module.path)) if part.nodes else frozenset()
            found.update(name for node in part.nodes if calls for name in patch_names_in(node, calls))
        return tuple(sorted(found))

    def handed(self) -> frozenset[str]:
        """The names that the parts use otherwise than to call them: what they mean may be called unseen."""
        found = set[str]()
        for part in self.parts.values():
            for node in part.nodes:
                found |= names_passed(node)
        return frozenset(found)

    def told(self) -> tuple[CodePart, ...]:
        """The parts that steps use, or come after, for the plan."""
        found = ((self.parts[key], steps) for key, steps in self.used_by.items())
        told = (CodePart(part.name, part.where, part.digest, tuple(sorted(steps))) for part, steps in found)
        return tuple(sorted(told, key=lambda part: (part.name, part.where)))

    def uses(self, key: Key) -> tuple[tuple[Use, Key], ...]:
        """Where a part uses others."""
        known = self._uses.get(key)
        if known is None:
            part = self.parts[key]
            seen = (use for node in part.nodes for use in uses_of(node))
            found = ((use, to) for use in seen for to in self._meant(part.module, use.name, use.chain, use.module))
            known = self._uses[key] = tuple((use, to) for use, to in found if to != key)
        return known

    def _meant(self, module: Module, name: str, chain: tuple[str, ...], base: str | None = None) -> Iterator[Key]:
        """The parts that a dotted name is, or one that is imported while running (`base`: from there)."""
        if base is not None:
            yield self._outside(module, name, f"from {base} import {name}")
            if self._sources.since_format_5:
                yield from self._by_file(module, name, base)
            return
        asked = (module.path, name, chain)
        if asked in self._asked:  # modules that import each other's names
            return
        self._asked.add(asked)
        yield from self._found(module, name, chain)
        self._asked.discard(asked)

    def _found(self, module: Module, name: str, chain: tuple[str, ...]) -> Iterator[Key]:
        statements = module.table.get(name, ())
        plain = [node for node in statements if not _is_import(node)]
        if plain:
            yield self._bound(module, name, plain)
        for node in statements:
            if isinstance(node, ast.Import):
                yield from self._of_import(module, node, name, chain)
            elif isinstance(node, ast.ImportFrom):
                origin = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
                yield from self._imported(module, node, origin, chain, name)
        if not statements:
            starred = [key for node in module.table.get("*", ()) for key in self._starred(module, node, name, chain)]
            yield from starred or self._by_value(module, module.values.get(name))

    def _bound(self, module: Module, name: str, nodes: list[ast.AST]) -> Key:
        key = (module.path, name)
        if key not in self.parts:
            where = f"{site_file(module.path)}:{getattr(nodes[0], 'lineno', 1)}"
            self.parts[key] = Part(name, where, tuple(map(self._text, nodes)), tuple(nodes), module)
        info = step_info(module.values.get(name))
        if info is not None:
            self.steps[key] = info.name
        return key

    def _of_import(self, module: Module, node: ast.Import, name: str, chain: tuple[str, ...]) -> Iterator[Key]:
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                start = alias.name if alias.asname else name
                yield from self._in_module(module, start, chain, f"import {start}", name)

    def _imported(
        self, module: Module, node: ast.ImportFrom, origin: str, chain: tuple[str, ...], name: str
    ) -> Iterator[Key]:
        source = module.source(node.level, node.module)
        text, inner = f"from {source} import {origin}", f"{source}.{origin}"
        there = self._modules.imported(module, source)
        if self._modules.is_module(inner, module) and (there is None or origin not in there.table):
            yield from self._in_module(module, inner, chain, text, name)
        elif there is None:
            yield self._outside(module, name, text)
        else:
            yield from self._meant(there, origin, chain)

    def _starred(self, module: Module, node: ast.AST, name: str, chain: tuple[str, ...]) -> Iterator[Key]:
        """What `from ... import *` brings of a module of the project: constants, too, which say not where they are
        from."""
        if not isinstance(node, ast.ImportFrom):
            return
        there = self._modules.imported(module, module.source(node.level, node.module))
        if there is None:
            return
        named = module.by_file and name in there.table
        if named or (name in module.values and there.values.get(name) is module.values[name]):
            yield from self._meant(there, name, chain)

    def _in_module(self, module: Module, start: str, chain: tuple[str, ...], text: str, name: str) -> Iterator[Key]:
        """What attributes of a module are; all that it binds, where it is handed on whole."""
        while chain and self._modules.is_module(f"{start}.{chain[0]}", module):
            start, chain = f"{start}.{chain[0]}", chain[1:]
        there = self._modules.imported(module, start)
        if there is None:
            yield self._outside(module, name, text)
        else:
            yield from self._all_of(there, chain)

    def _all_of(self, there: Module, chain: tuple[str, ...] = ()) -> Iterator[Key]:
        own = (name for name, nodes in there.table.items() if not all(map(_is_import, nodes)))
        for each in chain[:1] or (sorted(own) if self._sources.since_format_6 else own):
            yield from self._meant(there, each, chain[1:])

    def _by_file(self, module: Module, name: str, base: str) -> Iterator[Key]:
        """What `from base import name`, or `import name`, inside a function brings of the project."""
        level = len(base) - len(base.lstrip("."))
        source = module.source(level, base[level:]) if base else ""
        there = self._modules.beside(module, source) if source else None
        if there is not None and (name in there.table or "*" in there.table):
            yield from self._meant(there, name, ())
        elif (inner := self._modules.beside(module, f"{source}.{name}".lstrip("."))) is not None:
            yield from self._all_of(inner)

    def _outside(self, module: Module, name: str, text: str) -> Key:
        """Of another project only the name is known."""
        key = (module.path, f"{name} ({text})")
        if key not in self.parts:
            self.parts[key] = Part(name, site_file(module.path), (text,), (), module)
        return key

    def _by_value(self, module: Module, value: object) -> Iterator[Key]:
        """A function or class that no statement of the module binds: of a closure, or put there while running."""
        plain = plain_function(value)
        if isinstance(plain, FunctionType) and _near(module.home, plain):
            try:
                key = self.part(self._sources.function(plain))
            except SourceError:  # made by exec
                return
            if (info := step_info(value)) is not None:
                self.steps[key] = info.name
            yield key
        elif isinstance(value, type) and (there := self._modules.loaded(module.home, value.__module__)) is not None:
            name = value.__qualname__.partition(".")[0]
            if name in there.table:
                yield from self._meant(there, name, ())


class Written:
    """Parts written down one after the other, each once, under the number with which others name it."""

    def __init__(self, codes: CodeIndex, *, into_steps: bool, names_are_seen: bool) -> None:
        self._codes, self._into_steps, self._names_are_seen = codes, into_steps, names_are_seen
        self._numbers: dict[Key, int] = {}
        self._todo: list[Key] = []
        self._hash = hashlib.sha256()

    def all_of(self, starts: Iterable[Key]) -> str:
        for key in starts:
            self._number(key)
        return self.digest()

    def digest(self) -> str:
        """Of all that was written, with what it uses."""
        while self._todo:
            key = self._todo.pop(0)
            part = self._codes.parts[key]
            self._hash.update(f"\n#{self._numbers[key]} ".encode())
            for node in part.nodes:
                self.write(key, body_of(node) if self._is_anonymous(key) else pieces_of(node))
            for text in part.texts if not part.nodes else ():
                self._hash.update(text.encode())
        return self._hash.hexdigest()

    def write(self, key: Key, pieces: Iterable[Piece]) -> None:
        """Text of that part."""
        meant: dict[tuple[str, tuple[str, ...], str | None], list[Key]] = {}
        for use, to in self._codes.uses(key):
            found = meant.setdefault((use.name, use.chain, use.module), [])
            if to not in found:
                found.append(to)
        for piece in pieces:
            text = piece if isinstance(piece, str) else self._filled(piece, meant)
            self._hash.update(text.encode("utf-8", "surrogatepass"))

    def _filled(self, free: Free, meant: dict[tuple[str, tuple[str, ...], str | None], list[Key]]) -> str:
        keys = meant.get((free.name, free.chain, free.module), [])
        known = len(keys) == 1 and not free.chain and not free.hidden and free.module is None
        if known and (self._is_step(keys[0]) or self._is_anonymous(keys[0])):
            return self._named(keys[0])
        told = ",".join(f"{key[1]} {self._named(key)}" for key in keys)
        return f"<{free} {told}>"

    def _named(self, key: Key) -> str:
        return f"<step {self._codes.steps[key]}>" if self._is_step(key) else f"<#{self._number(key)}>"

    def _number(self, key: Key) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self._numbers)
            self._todo.append(key)
        return self._numbers[key]

    def _is_step(self, key: Key) -> bool:
        return key in self._codes.steps and not self._into_steps

    def _is_anonymous(self, key: Key) -> bool:
        """Whether nothing tells a function's name from another, so that it may have any."""
        nodes = self._codes.parts[key].nodes
        return len(nodes) == 1 and is_plain_function(nodes[0]) and not self._names_are_seen


def _near(home: Function, function: FunctionType) -> bool:
    return in_same_project(home, function.__module__, function.__code__.co_filename)


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def codes_of(sources: Sources) -> CodeIndex:
    if sources.codes is None:
        sources.codes = CodeIndex(sources)
    return sources.codes


def digest_of(functions: Iterable[Function], sources: Sources, steps: Iterable[str]) -> str:
    """Of functions with all that they use; a change of them may affect these steps."""
    codes = codes_of(sources)
    starts = [codes.part(function) for function in functions]
    for key in codes.closure(starts, into_steps=True):
        codes.used_by.setdefault(key, set()).update(steps)
    return codes.digest(starts, into_steps=True)
