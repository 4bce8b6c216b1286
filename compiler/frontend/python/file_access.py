"""What a step does to the files of its world, as far as its own syntax shows.

Read are paths under `sandbox.path` that the step reads and writes by pathlib or `open`, the commands that it runs,
and the environment variables that it sets for them.

A path is known if the code spells it out. A path with a computed part, an absolute path, or a path with `..` may be
any. A command may read and write any file. If the world is passed to other code, or code that is called may use
`current_sandbox`, nothing is known. A path counts as the file of that name: symbolic links are not followed.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ramify.compiler.frontend.python.modules import bound_names
from ramify.compiler.frontend.python.names import nodes_in
from ramify.compiler.frontend.python.sources import Function, Sources
from ramify.compiler.frontend.python.world_access import may_use_current_sandbox, world_parameters
from ramify.compiler.spec import FileAccess

_READS = frozenset({"read_text", "read_bytes", "exists", "is_file", "is_dir", "is_symlink", "stat", "lstat"})
_LISTS = frozenset({"iterdir", "glob", "rglob"})
_WRITES = frozenset({"write_text", "write_bytes"})
_CHANGES = frozenset({"touch", "mkdir", "unlink", "rmdir", "chmod"})
_PATH_PARTS = frozenset({"name", "stem", "suffix", "suffixes", "parts"})  # of a path: these touch no file
_HARMLESS = frozenset({"len", "print", "open", "str", "int", "sorted", "list", "dict", "set", "range", "sum"})
_SHOWN = 80  # characters of a command that are kept

_Path = str | None  # inside the world; None: any path


def files_of(function: Function, nodes: Collection[ast.AST], sources: Sources) -> FileAccess | None:
    """Return what a step or node does to its world's files; None if nothing is known.

    Args:
        function: The function of the step or node.
        nodes: The function with the code of its module that it uses.
        sources: The sources of the compilation.
    """
    definition = function.node
    worlds = world_parameters(definition)
    if len(worlds) != 1 or isinstance(definition, ast.Lambda) or may_use_current_sandbox(function, nodes, sources):
        return None
    if any("open" in bound_names(node) for node in nodes):  # not the builtin `open`
        return None
    reader = _FileReader(next(iter(worlds)), definition)
    return reader.files() if reader.read() else None


@dataclass(slots=True)
class _FileReader:
    world: str
    definition: ast.FunctionDef | ast.AsyncFunctionDef
    reads: set[_Path] = field(default_factory=set)
    writes: set[_Path] = field(default_factory=set)
    commands: list[str] = field(default_factory=list)
    env: set[str] = field(default_factory=set)
    names: dict[str, _Path] = field(default_factory=dict)  # local names that hold paths
    # by call: path, digest of a literal
    written: dict[ast.expr, tuple[str, str | None]] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)  # how many places of the code write to a path
    known: set[ast.AST] = field(default_factory=set)  # uses of the world and its paths that were understood

    def read(self) -> bool:
        """Read the function. Return whether every use of the world, and of a path in it, was understood."""
        nodes = [node for part in self.definition.body for node in nodes_in(part)]
        if any(isinstance(node, ast.Name) and node.id == self.world and _is_bound(node) for node in nodes):
            return False
        self._bind(nodes)
        inner = {node.arg for node in nodes if isinstance(node, ast.arg)}  # parameters of inner functions
        if self.world in inner or inner & self.names.keys():
            return False
        for node in nodes:
            self._use(node)
        return all(
            node in self.known
            for node in nodes
            if isinstance(node, ast.Name) and (node.id == self.world or node.id in self.names)
        )

    def files(self) -> FileAccess:
        return FileAccess(
            reads=None if None in self.reads else tuple(sorted(path for path in self.reads if path is not None)),
            writes=None if None in self.writes else tuple(sorted(path for path in self.writes if path is not None)),
            always=tuple(sorted(self._always().items())),
            commands=tuple(self.commands),
            env=tuple(sorted(self.env)),
        )

    def _bind(self, nodes: Iterable[ast.AST]) -> None:
        """Collect the names that are bound to paths only, in the order of the text: one path may be made from
        another.
        """
        bound: dict[str, list[ast.expr | None]] = {}
        for node in nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.NamedExpr(ast.Name(id=name), value):
                    bound.setdefault(name, []).append(value)
                case (
                    ast.For(target=ast.Name(id=name), iter=source)
                    | ast.comprehension(target=ast.Name(id=name), iter=source)
                ):
                    bound.setdefault(name, []).append(source)
                case ast.Name(id=name, ctx=ast.Store()):
                    bound.setdefault(name, [])
        stored = [node.id for node in nodes if isinstance(node, ast.Name) and _is_bound(node)]
        for name, values in bound.items():
            paths = [self._path(value) or self._listed(value) for value in values if value is not None]
            if paths and all(path is not None for path in paths) and stored.count(name) == len(paths):
                found = {path[0] for path in paths if path is not None}
                self.names[name] = found.pop() if len(found) == 1 else None
        self.known.update(node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))

    def _path(self, node: ast.expr) -> tuple[_Path] | None:
        """Return the path that an expression denotes, in a tuple; None if it is no path of this world."""
        match node:
            case ast.Attribute(value=ast.Name(id=self.world), attr="path"):
                return ("",)
            case ast.Name(id=name) if name in self.names:
                return (self.names[name],)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._under(left, [right])
            case ast.Call(func=ast.Attribute(value=left, attr="joinpath"), args=parts, keywords=[]):
                return self._under(left, parts)
            case ast.Attribute(value=inner, attr="parent") if self._path(inner) is not None:
                return (None,)
            case _:
                return None

    def _under(self, left: ast.expr, parts: list[ast.expr]) -> tuple[_Path] | None:
        base = self._path(left)
        if base is None:
            return None
        path = base[0]
        for part in parts:
            given = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else None
            inside = given is not None and not given.startswith("/") and ".." not in given.split("/")
            path = "/".join(PurePosixPath(path, given).parts) if inside and path is not None and given else None
        return (path,)

    def _listed(self, node: ast.expr) -> tuple[_Path] | None:
        """Return any path, in a tuple, for the listing of a folder; None for another expression."""
        match node:
            case ast.Call(func=ast.Name(id="sorted" | "list"), args=[inner], keywords=[]):
                return self._listed(inner)
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _LISTS and self._path(inner):
                return (None,)
            case _:
                return None

    def _use(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.NamedExpr(ast.Name(id=name), value) if (
                name in self.names and self._path(value)
            ):
                self._know(value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=self.world) as used, attr="run")):
                self.known.add(used)
                self._command(node)
            case ast.Attribute(value=ast.Name(id=self.world) as used, attr="last"):
                self.known.add(used)
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if (path := self._path(inner)) is not None:
                self._method(node, inner, attr, path[0])
            case ast.Call(func=ast.Name(id="open"), args=[inner, *more]) if (path := self._path(inner)) is not None:
                self._open(node, inner, more[:1], path[0])
            case ast.Attribute(value=inner, attr=attr) if attr in _PATH_PARTS and self._path(inner):
                self._know(inner)

    def _method(self, call: ast.Call, inner: ast.expr, attr: str, path: _Path) -> None:
        if attr in _READS | _LISTS:
            self.reads.add(None if attr in _LISTS else path)
        elif attr in _WRITES | _CHANGES:
            self._writes(path)
            if attr in _WRITES and path is not None:
                self.written[call] = path, _content(call)
        elif attr == "open":
            self._open(call, inner, call.args[:1], path)
        elif attr != "joinpath":
            return
        self._know(inner)

    def _open(self, call: ast.Call, inner: ast.expr, mode: list[ast.expr], path: _Path) -> None:
        given = [*mode, *(keyword.value for keyword in call.keywords if keyword.arg in ("mode", None))]
        text = given[0].value if given and isinstance(given[0], ast.Constant) else None
        reads = not given or (isinstance(text, str) and set(text) <= set("rbt"))
        self.reads.add(path)
        if not reads:
            self._writes(path)
        self._know(inner)

    def _writes(self, path: _Path) -> None:
        self.writes.add(path)
        self.times[path or ""] += 1

    def _command(self, call: ast.Call) -> None:
        self.reads.add(None)
        self.writes.add(None)
        asked = call.args[0] if call.args else None
        text = asked.value if isinstance(asked, ast.Constant) and isinstance(asked.value, str) else None
        self.commands.append((text or ("?" if asked is None else ast.unparse(asked)))[:_SHOWN])
        for keyword in call.keywords:
            if keyword.arg == "env" and isinstance(keyword.value, ast.Dict):
                keys = (key.value for key in keyword.value.keys if isinstance(key, ast.Constant))
                self.env.update(key for key in keys if isinstance(key, str))

    def _know(self, path: ast.expr) -> None:
        """Mark the names of a path expression as understood; not those of parts that are joined to it."""
        match path:
            case ast.Name():
                self.known.add(path)
            case ast.Attribute(value=inner) | ast.BinOp(left=inner) | ast.Call(func=ast.Attribute(value=inner)):
                self._know(inner)

    def _always(self) -> dict[str, str]:
        """Return the paths whose contents are certain when the function has returned, with digests of the contents.

        These are literals, written by a top-level statement of the body before the first statement that may return,
        to a path that nothing else writes to.
        """
        found: dict[str, str] = {}
        if None in self.writes or not self._is_all_seen():
            return found
        for statement in self.definition.body:
            if any(isinstance(node, ast.Return) for node in ast.walk(statement)):
                break
            path, content = (
                self.written.get(statement.value, ("", None)) if isinstance(statement, ast.Expr) else ("", None)
            )
            if content is not None and self.times[path] == 1:
                found[path] = content
        return found

    def _is_all_seen(self) -> bool:
        """Return whether only its own lines run: no foreign decorator, and no call of an unknown function."""
        for node in nodes_in(self.definition):
            match node:
                case ast.Call(func=ast.Attribute(value=inner)) if self._path(inner) is not None:
                    continue
                case ast.Call(func=ast.Name(id=name)) if name in _HARMLESS:
                    continue
                case ast.Call() if node not in self.definition.decorator_list:
                    return False
        return len(self.definition.decorator_list) <= 1


def _is_bound(name: ast.Name) -> bool:
    return not isinstance(name.ctx, ast.Load)


def _content(call: ast.Call) -> str | None:
    match call.args:
        case [ast.Constant(value=str(text))] if not call.keywords:
            return hashlib.sha256(text.encode()).hexdigest()[:12]
        case [ast.Constant(value=bytes(data))]:
            return hashlib.sha256(data).hexdigest()[:12]
        case _:
            return None
