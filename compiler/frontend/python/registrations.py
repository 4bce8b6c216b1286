"""Which top-level statements change what a name of the project is bound to, though they do not bind it.

A registry is filled by such statements: a function under `@tool` or `@area.register`, a subclass, `register("x", f)`,
`registry.add(f)`, `globals()[name] = f`. What a step does by means of a registry is in them, so they belong to the
digest of each name that they change.

A call changes what the called function changes: the names of its module, and those of its arguments that it stores
into. An object whose class is not known, such as one of another project, is changed by each call of a method that is
given code. Not found: changes made by packages of other projects, and by modules that no module of the workflow
imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ramify.compiler.frontend.python.module_names import (
    Bound,
    Definition,
    ModuleNames,
    Target,
    assigned_in,
    bases_of,
    constant_text,
    is_partial,
    parameters_of,
    run_by_import,
)
from ramify.compiler.frontend.python.modules import (
    MUTATORS,
    ProjectModule,
    ProjectModules,
    bound_names,
    reachable_modules,
)
from ramify.compiler.frontend.python.names import arguments_of, dotted_name, nodes_in
from ramify.compiler.frontend.python.sources import Sources

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOGS = frozenset({"critical", "debug", "error", "exception", "info", "log", "print", "trace", "warn", "warning"})
"""Methods that only write what they are given."""
_CALLERS = frozenset({"filter", "map", "partial"})
"""Functions that call their first argument."""
ANY_NAME = "*"
"""Stands for each name of a module: a statement binds names that are known only at run time."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A parameter of the function that is read, whose argument is changed."""

    name: str


_Changed: TypeAlias = Target | _Parameter


@dataclass(frozen=True, slots=True)
class Registration:
    """A top-level statement that changes an object. `name`: what it binds itself, if it does."""

    module: ProjectModule
    statement: ast.stmt
    name: str | None


@dataclass(slots=True)
class _Place:
    """Where code is read: its module, and the local names of the function around it."""

    module: ProjectModule
    parameters: frozenset[str] = frozenset()
    assigned: Mapping[str, list[ast.expr]] = field(default_factory=dict)  # local names, with what they are bound to

    @classmethod
    def inside(cls, module: ProjectModule, definition: Definition) -> _Place:
        return cls(module, parameters_of(definition), assigned_in(definition))


class Registrations:
    """The registrations in all modules that a workflow's module imports, directly or not."""

    def __init__(self, modules: ProjectModules, entry: ProjectModule, sources: Sources) -> None:
        self._names = ModuleNames(modules)
        self._changes: dict[ast.AST, frozenset[_Changed]] = {}
        self._enumerated: set[Target] = set()
        self._every_class = False
        self._by_target: dict[Target, list[Registration]] = {}
        trees = [(module, sources.tree(module.path)) for module in reachable_modules(modules, entry, sources)]
        for module, tree in trees:
            self._find_enumerated(module, tree)
        for module, tree in trees:
            for statement in tree.body:
                self._add(module, statement)

    def of(self, path: str, name: str) -> tuple[Registration, ...]:
        """Return the statements that change the object of a name."""
        return tuple(self._by_target.get(Target(path, name), ()))

    def _add(self, module: ProjectModule, statement: ast.stmt) -> None:
        own = sorted(bound_names(statement))
        for target in self._effects(_Place(module), [statement], top=True):
            if isinstance(target, Target) and target not in (Target(module.path, name) for name in own):
                found = Registration(module, statement, own[0] if own and own[0] != "*" else None)
                self._by_target.setdefault(target, []).append(found)

    # What code changes

    def _effects(self, place: _Place, nodes: Iterable[ast.AST], *, top: bool) -> Iterator[_Changed]:
        """Yield what code changes. `top`: it is run by an import, so the bodies of functions are not run."""
        for node in run_by_import(nodes) if top else (inner for each in nodes for inner in nodes_in(each)):
            match node:
                case ast.Subscript(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store() | ast.Del()):
                    yield from self._stored_into(place, node)
                case ast.Call():
                    yield from self._call(place, node)
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if top:
                    for decorator in node.decorator_list:
                        yield from self._decorator(place, decorator)
                    if isinstance(node, ast.ClassDef):
                        yield from self._subclass(place.module, node)
                case ast.Global(names=names):
                    yield from (Target(place.module.path, name) for name in names)

    def _stored_into(self, place: _Place, node: ast.Subscript | ast.Attribute) -> Iterator[_Changed]:
        if isinstance(node, ast.Subscript) and (module := self._namespace(place, node.value)) is not None:
            yield Target(module, constant_text(node.slice) or ANY_NAME)
        elif isinstance(node, ast.Attribute) and (module := self._namespace(place, node.value)) is not None:
            yield Target(module, node.attr)
        else:
            yield from self._objects(place, node.value)

    def _call(self, place: _Place, call: ast.Call) -> Iterator[_Changed]:
        match call.func:
            case ast.Name(id="setattr" | "delattr") if call.args:
                module = self._namespace(place, call.args[0])
                name = constant_text(call.args[1]) if len(call.args) > 1 else None
                if module is not None:
                    yield Target(module, name or ANY_NAME)
                else:
                    yield from self._objects(place, call.args[0])
            case ast.Name(id="exec") | ast.Attribute(attr="exec_module"):
                yield Target(place.module.path, ANY_NAME)
            case ast.Attribute(value=owner, attr=method) if method in MUTATORS:
                module = self._namespace(place, owner)
                yield from self._objects(place, owner) if module is None else [Target(module, ANY_NAME)]
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in _CALLERS and call.args:
                yield from self._called(place, call.args[0], call.args[1:], [])
        yield from self._called(place, call.func, call.args, call.keywords)

    def _decorator(self, place: _Place, decorator: ast.expr) -> Iterator[_Changed]:
        """Yield what a decorator changes: it is called with the function, after its own arguments."""
        func = decorator
        while isinstance(func, ast.Call):
            func = func.args[0] if is_partial(func) else func.func
        yield from self._called(place, func, [ast.Lambda(ast.arguments([], [], None, [], [], None, []), func)], [])

    def _called(
        self, place: _Place, func: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> Iterator[_Changed]:
        found = self._meaning(place, func)
        if found is not None and (definition := found.definition()) is not None:
            yield from self._run(place, found.module, definition, args, keywords)
        elif isinstance(func, ast.Attribute):
            yield from self._method(place, func, args, keywords)
        elif found is not None and self._class_of(found) is not None:  # an object that is called
            yield from self._method(place, ast.Attribute(func, "__call__", ast.Load()), args, keywords)
        elif found is not None and self._gives_code(place, args, keywords):
            yield found.target

    def _run(
        self,
        place: _Place,
        module: ProjectModule,
        definition: Definition | ast.ClassDef,
        args: list[ast.expr],
        keywords: list[ast.keyword],
    ) -> Iterator[_Changed]:
        """Yield what a call of a function, or of a class, changes of the caller's names."""
        if isinstance(definition, ast.ClassDef):
            for name in ("__new__", "__init__", "__call__"):
                owner = self._method_of(module, definition, name)
                if owner is not None:
                    yield from self._run(place, owner[0], owner[1], [ast.Constant(None), *args], keywords)
            return
        given = [each.arg for each in (*definition.args.posonlyargs, *definition.args.args)]
        named = dict(zip(given, args, strict=False)) | {each.arg: each.value for each in keywords if each.arg}
        for changed in self._of_function(module, definition):
            if isinstance(changed, Target):
                yield changed
            elif changed.name in named:
                yield from self._objects(place, named[changed.name])

    def _method(
        self, place: _Place, func: ast.Attribute, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> Iterator[_Changed]:
        owner = self._meaning(place, func.value)
        known = None if owner is None else self._class_of(owner)
        method = None if known is None else self._method_of(*known, func.attr)
        if method is not None:
            yield from self._run(place, method[0], method[1], [func.value, *args], keywords)
        elif func.attr not in _LOGS and self._gives_code(place, args, keywords):
            yield from self._objects(place, func.value)

    def _of_function(self, module: ProjectModule, definition: Definition) -> frozenset[_Changed]:
        """Return what a function of the project changes, with the functions that it calls or defines."""
        if definition not in self._changes:
            self._changes[definition] = frozenset()  # a function that calls itself
            place = _Place.inside(module, definition)
            found = frozenset(self._effects(place, definition.body, top=False))
            own = {each.arg for each in arguments_of(definition.args)}
            self._changes[definition] = frozenset(one for one in found if isinstance(one, Target) or one.name in own)
        return self._changes[definition]

    # Classes

    def _subclass(self, module: ProjectModule, node: ast.ClassDef) -> Iterator[_Changed]:
        """Yield what the definition of a class changes: bases that learn of it or are asked for their subclasses."""
        for owner, base in self._bases(module, node):
            if self._every_class or Target(owner.path, base.name) in self._enumerated:
                yield Target(owner.path, base.name)
            for each in base.body:
                if isinstance(each, _FUNCTIONS) and each.name == "__init_subclass__":
                    yield Target(owner.path, base.name)
                    yield from (one for one in self._of_function(owner, each) if isinstance(one, Target))
        for owner, base in ((module, node), *self._bases(module, node)):
            for keyword in base.keywords:
                kind = self._meaning(_Place(owner), keyword.value) if keyword.arg == "metaclass" else None
                definition = None if kind is None else kind.definition()
                if kind is not None and isinstance(definition, ast.ClassDef):
                    yield kind.target
                    yield from self._run(_Place(owner), kind.module, definition, [], [])

    def _bases(self, module: ProjectModule, node: ast.ClassDef) -> Iterator[tuple[ProjectModule, ast.ClassDef]]:
        """Yield the project's classes that a class is derived from."""
        seen, todo = {node}, [(module, node)]
        while todo:
            owner, one = todo.pop()
            for base in one.bases:
                while isinstance(base, ast.Subscript):
                    base = base.value
                found = self._meaning(_Place(owner), base)
                definition = None if found is None else found.definition()
                if found is not None and isinstance(definition, ast.ClassDef) and definition not in seen:
                    seen.add(definition)
                    todo.append((found.module, definition))
                    yield found.module, definition

    def _class_of(self, found: Bound) -> tuple[ProjectModule, ast.ClassDef] | None:
        """Return the class of the project that a name means, or whose object it is bound to."""
        definition = found.definition()
        if isinstance(definition, ast.ClassDef):
            return found.module, definition
        for statement in found.statements:
            value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
            kind = self._meaning(_Place(found.module), value.func) if isinstance(value, ast.Call) else None
            inner = None if kind is None else kind.definition()
            if kind is not None and isinstance(inner, ast.ClassDef):
                return kind.module, inner
        return None

    def _method_of(
        self, module: ProjectModule, node: ast.ClassDef, name: str
    ) -> tuple[ProjectModule, Definition] | None:
        for owner, each in ((module, node), *self._bases(module, node)):
            for inner in each.body:
                if isinstance(inner, _FUNCTIONS) and inner.name == name:
                    return owner, inner
        return None

    def _find_enumerated(self, module: ProjectModule, tree: ast.Module) -> None:
        for node in nodes_in(tree):
            if isinstance(node, ast.Attribute) and node.attr == "__subclasses__":
                found = self._meaning(_Place(module), node.value)
                if found is not None and isinstance(found.definition(), ast.ClassDef):
                    self._enumerated.add(found.target)
                else:
                    self._every_class = True

    # What expressions mean

    def _objects(self, place: _Place, node: ast.expr, seen: frozenset[str] = frozenset()) -> Iterator[_Changed]:
        """Yield the names whose object an expression gives, or a part of it."""
        for base, chain, called in bases_of(node):
            if base in place.parameters:
                yield _Parameter(base)
            elif base in place.assigned:
                for value in place.assigned[base] if base not in seen else ():
                    yield from self._objects(place, value, seen | {base})
            elif (found := self._names.resolve(place.module, base, chain)) is not None:
                definition = found.definition()
                if isinstance(definition, _FUNCTIONS) and called:
                    for each in nodes_in(definition):
                        if isinstance(each, ast.Return) and each.value is not None:
                            yield from self._given_back(found.module, definition, each.value)
                else:
                    yield found.target
                    yield from self._aliased(found, seen)

    def _given_back(self, module: ProjectModule, definition: Definition, value: ast.expr) -> Iterator[Target]:
        found = self._objects(_Place.inside(module, definition), value)
        yield from (one for one in found if isinstance(one, Target) and one.name != definition.name)

    def _aliased(self, found: Bound, seen: frozenset[str]) -> Iterator[_Changed]:
        """Yield what `found` is another name of, as in `tools = REGISTRY["tools"]`."""
        for statement in found.statements:
            value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
            if isinstance(value, ast.Name | ast.Attribute | ast.Subscript) and found.name not in seen:
                yield from self._objects(_Place(found.module), value, seen | {found.name})

    def _meaning(self, place: _Place, node: ast.expr) -> Bound | None:
        dotted = dotted_name(node)
        if dotted is None or dotted[0] in place.parameters or dotted[0] in place.assigned:
            return None
        found = self._names.resolve(place.module, dotted[0], tuple(dotted[1:]))
        # an attribute of an object is not the object
        depth = len(dotted) - 1
        return found if found is not None and (depth == 0 or self._names.is_whole(place.module, dotted)) else None

    def _namespace(self, place: _Place, node: ast.expr) -> str | None:
        """Return the path of the module whose names an expression holds: `globals()`, `vars(module)`, a module."""
        match node:
            case ast.Call(func=ast.Name(id="globals" | "vars" | "locals"), args=[]):
                return place.module.path
            case ast.Call(func=ast.Name(id="vars"), args=[inner]) | ast.Attribute(value=inner, attr="__dict__"):
                return self._namespace(place, inner)
            case ast.Subscript(slice=ast.Name(id="__name__")):  # `sys.modules[__name__]`
                return place.module.path
        dotted = dotted_name(node)
        module = None if dotted is None else self._names.as_module(place.module, dotted)
        return None if module is None else module.path

    def _gives_code(self, place: _Place, args: list[ast.expr], keywords: list[ast.keyword]) -> bool:
        """Return whether a call is given a function or class of the project, or a parameter that may be one."""
        for each in (*args, *(keyword.value for keyword in keywords)):
            if isinstance(each, ast.Lambda) or (isinstance(each, ast.Name) and each.id in place.parameters):
                return True
            if isinstance(each, ast.Call):
                if self._gives_code(place, each.args, each.keywords):
                    return True
            elif (found := self._meaning(place, each)) is not None and found.definition() is not None:
                return True
        return False
