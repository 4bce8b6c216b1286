"""The parts of the project's code that a workflow or a step uses, each with a digest.

A part is a function, a class, a constant or an import. Parts are found by name, through the modules of the project.
An import inside a function is followed by file, and so are the imports of that file: whether a module is loaded
already may differ between two processes of one run.

A registry brings what is registered in it (`registrations`), and code that looks names up as it runs
(`globals()[name]`) brings what these names may mean (`lookups_in`).

A step brings the methods of what it returns to the workflow (`returned_methods`).

Not found: code that is reached only through another object (a method of a value without annotation), closure values
that are not functions, and what changes at run time.

`part_digests` makes digests of them.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from types import FunctionType
from typing import Any

from ramify.compiler.errors import SourceError
from ramify.compiler.frontend.python.canonical_text import (
    ast_dump_for,
    text_of,
)
from ramify.compiler.frontend.python.module_names import lookups_in
from ramify.compiler.frontend.python.modules import ProjectModule, ProjectModules, dumped, imported_by_call
from ramify.compiler.frontend.python.name_resolution import (
    decorated_step,
    plain_function,
    step_info,
    workflow_info,
)
from ramify.compiler.frontend.python.names import ANYWHERE, Use, uses_of
from ramify.compiler.frontend.python.registrations import ANY_NAME, Registration, Registrations
from ramify.compiler.frontend.python.returned_methods import ReturnedMethods
from ramify.compiler.frontend.python.sources import (
    Function,
    Sources,
    in_same_project,
)
from ramify.compiler.plan import CodePart, site_file

Key = tuple[str, str]
"""A file, and a name in it."""
RETURNED = "<returned>"
"""The `module` of a use of what a step returns, at the use of the step."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The code that binds one name."""

    name: str
    where: str  # file:line
    texts: tuple[str, ...]
    nodes: tuple[ast.AST, ...]  # none for an import from another project
    module: ProjectModule

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.texts).encode()).hexdigest()


class CodeIndex:
    """The parts that one compilation has found. Get it by `sources.analysis(CodeIndex)`.

    Attributes:
        parts: The parts by key.
        steps: The names of the steps among the parts.
        used_by: The names of the steps that use a part, or that run after a use of it.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._modules = ProjectModules(sources)
        self._uses: dict[Key, tuple[tuple[Use, Key], ...]] = {}
        self._used: dict[Key, tuple[Key, ...]] = {}
        self._decorated: dict[Key, Key] = {}  # by part: the step that it decorates
        self._resolving: set[tuple[str, str, tuple[str, ...]]] = set()
        self._entry: Function | None = None
        self._registrations: Registrations | None = None
        self.returned = ReturnedMethods(self)
        self.texts_for_digests: dict[tuple[Key, bool], Any] = {}  # cache of `part_digests`
        self.parts: dict[Key, Part] = {}
        self.steps: dict[Key, str] = {}
        self.used_by: dict[Key, set[str]] = {}

    @property
    def is_ordered(self) -> bool:
        """Whether digests cover the order in which parts are met, as they do since format 6."""
        return self._sources.since_format_6

    def start_from(self, workflow: Function) -> None:
        """Look for registrations in the modules that the workflow's module imports."""
        self._entry = workflow

    def forget_uses(self, keys: Iterable[Key]) -> None:
        """Forget what is known of the uses of these parts, and of what stands in them."""
        among = set(keys)
        for known in [each for each, uses in self._used.items() if not among.isdisjoint(uses)]:
            del self._used[known], self._uses[known]

    def part(self, function: Function) -> Key:
        """Add a function as a part, and return its key."""
        self._entry = self._entry or function
        key = self._key(function)
        if key not in self.parts:
            module = self._modules.of(function)
            text = (self._text(function.node),)
            self.parts[key] = Part(key[1], function.where(), text, (function.node,), module)
        return key

    def _key(self, function: Function) -> Key:
        """Return a key that no other function has. The lambdas of one scope share a name, so they are numbered."""
        names = (f"{function.name} {number}" if number > 1 else function.name for number in count(1))
        for name in names:
            known = self.parts.get((function.path, name))
            if known is None or known.nodes == (function.node,) or not self._sources.since_format_5:
                return function.path, name
        raise AssertionError("unreachable")

    def closure(self, starts: Iterable[Key], *, into_steps: bool) -> set[Key]:
        """Return these parts and all parts that they use, directly or not.

        Args:
            starts: The parts to begin with.
            into_steps: Also follow calls of steps.
        """
        found, todo = set[Key](), list(starts)
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo += (to for to in self.used(key) if to not in found and (into_steps or to not in self.steps))
        return found

    def used(self, key: Key) -> tuple[Key, ...]:
        """Return the parts that a part uses, each once."""
        known = self._used.get(key)
        if known is None:
            known = self._used[key] = tuple(dict.fromkeys(to for _, to in self.uses(key)))
        return known

    def _text(self, node: ast.AST) -> str:
        if self._sources.since_format_6:
            return text_of(node)
        return dumped(node) if self._sources.minor is None else ast_dump_for(node, self._sources.minor)

    def for_plan(self) -> tuple[CodePart, ...]:
        """Return the parts that affect steps, as the plan stores them."""
        found = ((self.parts[key], steps) for key, steps in self.used_by.items())
        stored = (CodePart(part.name, part.where, part.digest, tuple(sorted(steps))) for part, steps in found)
        return tuple(sorted(stored, key=lambda part: (part.name, part.where)))

    def uses(self, key: Key) -> tuple[tuple[Use, Key], ...]:
        """Return where a part uses other parts."""
        known = self._uses.get(key)
        if known is None:
            part = self.parts[key]
            uses = (use for node in part.nodes for use in uses_of(node))
            found = ((use, to) for use in uses for to in self.resolve(part.module, use.name, use.chain, use.module))
            skipped = self.returned.names_without_meaning(key)
            named = tuple((use, to) for use, to in found if to != key and use.name not in skipped)
            if key in self._decorated:
                named = (*named, (ANYWHERE, self._decorated[key]))
            looked_up = tuple((ANYWHERE, to) for to in self._looked_up(part) if to != key)
            direct = (*named, *looked_up, *((ANYWHERE, to) for to in self.registered_in(key)))
            returned = ((_returned(use), each) for use, to in direct for each in self.returned.of(to) if each != key)
            known = self._uses[key] = (*direct, *returned)
        return known

    def implied(self, key: Key) -> tuple[Key, ...]:
        """Return the parts that a part uses without naming them: what is registered in it, and what it looks up."""
        return tuple(to for use, to in self.uses(key) if use is ANYWHERE)

    def registered_in(self, key: Key) -> tuple[Key, ...]:
        """Return the parts that are registered in what a part binds, by name."""
        part = self.parts[key]
        found = {
            self._registration(part, each) for each in self._registered(*key) if each.statement not in part.nodes
        }
        return tuple(sorted(found - {key}, key=lambda one: one[1]))

    def _registered(self, path: str, name: str) -> tuple[Registration, ...]:
        if not self._sources.since_format_7 or self._entry is None:
            return ()
        if self._registrations is None:
            self._registrations = Registrations(self._modules, self._modules.of(self._entry), self._sources)
        return self._registrations.of(path, name)

    def _registration(self, part: Part, found: Registration) -> Key:
        module = found.module
        if found.name is not None:
            plain = [node for node in module.bindings[found.name] if not _is_import(node)]
            return self._bound(module, found.name, plain)
        changing = [each.statement for each in self._registered(part.module.path, part.name) if each.name is None]
        nodes: list[ast.AST] = [node for node in changing if node in self._sources.tree(module.path).body]
        return self._bound(module, f"registrations in {part.name}", nodes)

    def _looked_up(self, part: Part) -> Iterator[Key]:
        """Yield what the names may mean that the code looks up as it runs. Workflows are left out: steps cannot call
        them, and a workflow changes with its steps."""
        if not self._sources.since_format_7:
            return
        module = part.module
        found = set[Key]()
        for lookup in dict.fromkeys(each for node in part.nodes for each in lookups_in(node)):
            for name in (ANY_NAME, *module.bindings):
                if (name == ANY_NAME or lookup.may_mean(name)) and workflow_info(module.values.get(name)) is None:
                    found.update(self.resolve(module, name, ()))
        for name in dict.fromkeys(each for node in part.nodes for each in imported_by_call(module, node)):
            target = self._modules.beside(module, name)
            found.update(self._all_of(target) if target is not None else ())
        yield from sorted((key for key in found if self.parts[key].nodes), key=lambda one: one[1])

    def resolve(
        self, module: ProjectModule, name: str, chain: tuple[str, ...], base: str | None = None
    ) -> Iterator[Key]:
        """Yield the parts that a dotted name means; with `base`, those of `from base import name` in a function."""
        if base is not None:
            yield self._external(module, name, f"from {base} import {name}")
            if self._sources.since_format_5:
                yield from self._imported_by_file(module, name, base)
            return
        asked = (module.path, name, chain)
        if asked in self._resolving:  # two modules import each other's names
            return
        self._resolving.add(asked)
        yield from self._resolve_global(module, name, chain)
        self._resolving.discard(asked)

    def _resolve_global(self, module: ProjectModule, name: str, chain: tuple[str, ...]) -> Iterator[Key]:
        statements = module.bindings.get(name, ())
        plain = [node for node in statements if not _is_import(node)]
        if plain:
            yield self._bound(module, name, plain)
        for node in statements:
            if isinstance(node, ast.Import):
                yield from self._imported_module(module, node, name, chain)
            elif isinstance(node, ast.ImportFrom):
                origin = next(alias.name for alias in node.names if (alias.asname or alias.name) == name)
                yield from self.imported_name(module, node, origin, chain, name)
        if not statements:
            stars = module.bindings.get("*", ())
            starred = [key for node in stars for key in self._starred(module, node, name, chain)]
            yield from starred or self._by_value(module, module.values.get(name))
            yield from self._bound_at_run_time(module, name)

    def _bound_at_run_time(self, module: ProjectModule, name: str) -> Iterator[Key]:
        """Yield the statements that bind a name by `globals()[…] = …`, `setattr` or `exec`."""
        if hasattr(builtins, name):
            return
        for each in (name, ANY_NAME):
            nodes: list[ast.AST] = [found.statement for found in self._registered(module.path, each)]
            if nodes:
                yield self._bound(module, f"{each} (bound at run time)", nodes)

    def _bound(self, module: ProjectModule, name: str, nodes: list[ast.AST]) -> Key:
        value = module.values.get(name)
        if self._sources.since_format_8 and (inner := decorated_step(value)) is not None:
            return self._bound_decorated(module, name, nodes, inner)
        key = self.add(module, name, nodes)
        info = step_info(value)
        if info is not None:
            self.steps[key] = info.name
        return key

    def _bound_decorated(self, module: ProjectModule, name: str, nodes: list[ast.AST], step: object) -> Key:
        """Return a part with what wraps a step, but without the text of the step, which is a part of its own."""
        outside = [each for node in nodes for each in getattr(node, "decorator_list", (node,))]
        key = self.add(module, f"{name} (decorated)", outside)
        for inner in self._by_value(module, step):
            self._decorated[key] = inner
        return key

    def add(self, module: ProjectModule, name: str, nodes: list[ast.AST]) -> Key:
        key = (module.path, name)
        if key not in self.parts:
            where = f"{site_file(module.path)}:{getattr(nodes[0], 'lineno', 1)}"
            self.parts[key] = Part(name, where, tuple(map(self._text, nodes)), tuple(nodes), module)
        return key

    def _imported_module(
        self, module: ProjectModule, node: ast.Import, name: str, chain: tuple[str, ...]
    ) -> Iterator[Key]:
        for alias in node.names:
            if (alias.asname or alias.name.partition(".")[0]) == name:
                start = alias.name if alias.asname else name
                yield from self._in_module(module, start, chain, f"import {start}", name)

    def imported_name(
        self, module: ProjectModule, node: ast.ImportFrom, origin: str, chain: tuple[str, ...], name: str
    ) -> Iterator[Key]:
        source = module.source(node.level, node.module)
        text, inner = f"from {source} import {origin}", f"{source}.{origin}"
        target = self._modules.imported(module, source)
        if self._modules.is_module(inner, module) and (target is None or origin not in target.bindings):
            yield from self._in_module(module, inner, chain, text, name)
        elif target is None:
            yield self._external(module, name, text)
        else:
            yield from self.resolve(target, origin, chain)

    def _starred(self, module: ProjectModule, node: ast.AST, name: str, chain: tuple[str, ...]) -> Iterator[Key]:
        """Yield what `from … import *` of a project module brings under this name.

        Constants count as well, though a value alone does not show where it comes from.
        """
        if not isinstance(node, ast.ImportFrom):
            return
        target = self._modules.imported(module, module.source(node.level, node.module))
        if target is None:
            return
        named = module.by_file and name in target.bindings
        if named or (name in module.values and target.values.get(name) is module.values[name]):
            yield from self.resolve(target, name, chain)

    def _in_module(
        self, module: ProjectModule, start: str, chain: tuple[str, ...], text: str, name: str
    ) -> Iterator[Key]:
        """Yield what an attribute chain on a module means; all that the module binds where it is used as a value."""
        while chain and self._modules.is_module(f"{start}.{chain[0]}", module):
            start, chain = f"{start}.{chain[0]}", chain[1:]
        target = self._modules.imported(module, start)
        if target is None:
            yield self._external(module, name, text)
        else:
            yield from self._all_of(target, chain)

    def _all_of(self, target: ProjectModule, chain: tuple[str, ...] = ()) -> Iterator[Key]:
        own = (name for name, nodes in target.bindings.items() if not all(map(_is_import, nodes)))
        for each in chain[:1] or (sorted(own) if self._sources.since_format_6 else own):
            yield from self.resolve(target, each, chain[1:])

    def _imported_by_file(self, module: ProjectModule, name: str, base: str) -> Iterator[Key]:
        """Yield what `from base import name`, or `import name`, inside a function brings of the project."""
        level = len(base) - len(base.lstrip("."))
        source = module.source(level, base[level:]) if base else ""
        target = self._modules.beside(module, source) if source else None
        if target is not None and (name in target.bindings or "*" in target.bindings):
            yield from self.resolve(target, name, ())
        elif (inner := self._modules.beside(module, f"{source}.{name}".lstrip("."))) is not None:
            yield from self._all_of(inner)

    def _external(self, module: ProjectModule, name: str, text: str) -> Key:
        """Add an import from another project as a part. Only its name is known."""
        key = (module.path, f"{name} ({text})")
        if key not in self.parts:
            self.parts[key] = Part(name, site_file(module.path), (text,), (), module)
        return key

    def _by_value(self, module: ProjectModule, value: object) -> Iterator[Key]:
        """Yield a function or class that no statement of the module binds: from a closure, or set at run time."""
        inner = decorated_step(value) if self._sources.since_format_8 else None
        plain = plain_function(value)
        if isinstance(plain, FunctionType) and _is_in_project(module.home, plain):
            read = self._sources.function if inner is None else self._sources.wrapper
            try:
                key = self.part(read(plain))
            except SourceError:  # made by exec
                return
            if inner is not None:
                self._decorated[key] = next(self._by_value(module, inner))
            elif (info := step_info(value)) is not None:
                self.steps[key] = info.name
            yield key
        elif isinstance(value, type):
            target = self._modules.loaded(module.home, value.__module__)
            name = value.__qualname__.partition(".")[0]
            if target is not None and name in target.bindings:
                yield from self.resolve(target, name, ())


def _returned(use: Use) -> Use:
    return use if use is ANYWHERE else replace(use, module=RETURNED)


def _is_in_project(home: Function, function: FunctionType) -> bool:
    return in_same_project(home, function.__module__, function.__code__.co_filename)


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)
