"""What a call in a workflow is: a step, a model call, an adoption, a helper to inline, a graph break, or irrelevant.

Helpers of the same project are read at each call, as if their body stood there. A call that may run steps which the
compiler cannot see becomes a graph break.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

from ramify.compiler.declarations import StepInfo
from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.frontend.python.cancelled_loops import is_begun_apart, with_exits
from ramify.compiler.frontend.python.name_resolution import (
    Scope,
    Unresolved,
    decorated_step,
    is_fork,
    is_llm,
    is_wrapped,
    plain_function,
    step_info,
    workflow_info,
)
from ramify.compiler.frontend.python.prompt_prefixes import prefix_of
from ramify.compiler.frontend.python.set_order import SetOrder
from ramify.compiler.frontend.python.set_types import returns_nothing
from ramify.compiler.frontend.python.sources import Definition, Function, Sources, in_same_project
from ramify.compiler.frontend.python.spec_inputs import static_attribute
from ramify.compiler.frontend.python.statements import StatementReader, operations
from ramify.compiler.frontend.python.step_checks import refuse_unawaited, refuse_unentered_fork
from ramify.compiler.spec import Adopt, Body, CallLlm, Inlined, Item, StepCall

MOST_INLINED = 2000  # calls that are inlined; further ones become graph breaks

_CALL_METHODS: dict[str, Callable[[object], object | None]] = {
    "stream": workflow_info,
    "invoke": workflow_info,
    "call": step_info,
}
"""Methods that call the workflow, or the tool, that they belong to."""

_IMPLICIT_METHODS = ("__await__", "__aenter__", "__aexit__", "__aiter__", "__anext__")


class CallReader:
    """Reads the calls of a workflow, and collects the steps and helpers that it meets.

    Args:
        workflow: The function to read.
        sources: The sources of the compilation.
        caught: The workflow's caller may catch its exceptions within the run.

    Attributes:
        steps: The steps by name, each with its function.
        codes: The Python functions of the steps, by name.
        helpers: The functions that were inlined and hold operations.
    """

    def __init__(self, workflow: Function, sources: Sources, *, caught: bool = False) -> None:
        self.caught = caught
        self.workflow, self.sources = workflow, sources
        self.steps: dict[str, tuple[StepInfo, Function]] = {}
        self.codes: dict[str, Callable[..., Any]] = {}
        self.helpers: dict[Definition, Function] = {}
        self._reading: list[Definition] = [workflow.node]
        self._recursive: dict[Item, Definition] = {}  # the graph break at a recursive call, and the function called
        self._empty: set[tuple[Definition, bool, bool]] = set()  # no operations; read inside a fork, as blocking
        self._methods: dict[tuple[str, str], bool] = {}  # by module and name: whether steps run in it
        self._inlined = 0

    def read(self) -> tuple[Body, tuple[int, ...]]:
        """Return the workflow's items, and for each of its statements the number of items up to its end."""
        node, scope = self.workflow.node, self._scope(self.workflow)
        ordered = self.sources.since_format_7
        sets = SetOrder.of_workflow(scope, self._called_function)
        return StatementReader(self.call, scope, [], self.caught, _is_plain(node), ordered, sets).statements(node)

    def _scope(self, function: Function, outer: Scope | None = None) -> Scope:
        return Scope.of(function, self.sources.rebound_globals(function.path), outer)

    def call(self, reader: StatementReader, node: ast.Call, awaited: bool) -> None:
        """Add the items of a call whose receiver and arguments have been read."""
        func, target = node.func, self._target(reader, node.func)
        if isinstance(func, ast.Attribute) and (info_of := _CALL_METHODS.get(func.attr)) is not None:
            owner = reader.scope.resolve(func.value)
            target = target if info_of(owner) is None else owner
        if isinstance(target, partial) and step_info(target.func) is not None:
            target = target.func
        info = step_info(target)
        if reader.is_discarded(node) and (info is not None or workflow_info(target) is not None):
            refuse_unawaited(reader.scope.function, node)
        inner = decorated_step(target) if self.sources.since_format_8 else None
        if inner is not None and (wrapped := step_info(inner)) is not None:
            self._step(wrapped, inner, reader)
            reader.unseen(f"a decorator wraps step {wrapped.name}, and may call it several times", node)
        elif info is not None:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(argument, ast.Call) and is_fork(reader.scope.resolve(argument.func)):
                    refuse_unentered_fork(reader.scope.function, argument)
            caught = info.retried or reader.caught or not awaited or isinstance(target, FunctionType)
            together = reader.is_argument or not awaited
            marks: dict[str, Any] = {"caught": caught, "together": together, "source": reader.source(node)}
            step = self._step(info, target, reader)
            if not returns_nothing(self.codes[step]):
                marks["unordered"] = reader.sets.follows(node)
            reader.add(StepCall(step, reader.site(node), **marks))
        elif is_fork(target):
            if node is reader.statement_call or node in reader.awaits:
                refuse_unentered_fork(reader.scope.function, node)
            reader.unseen("fork(...) is not opened by a `with` around the call itself", node)
        elif isinstance(func, ast.Attribute) and is_llm(reader.scope.resolve(func.value)):
            details = _int_keyword(node, "n"), prefix_of(node, reader.scope), reader.source(node)
            reader.add(CallLlm(func.attr, reader.site(node), *details, reader.sets.follows(node)))
        elif isinstance(func, ast.Attribute) and isinstance(target, Unresolved):
            self._method(reader, node, func, awaited)
        elif isinstance(target, Unresolved):
            self._local(reader, node, func, awaited)
        else:
            self._function(reader, node, target, awaited)

    def _target(self, reader: StatementReader, node: ast.expr) -> object:
        """Return the object that an expression denotes, or UNRESOLVED; of a static method, what it holds."""
        target = reader.scope.resolve(node)
        return target.__func__ if isinstance(target, staticmethod) and self.sources.since_format_8 else target

    def _step(self, info: StepInfo, target: object, reader: StatementReader) -> str:
        known = self.steps.get(info.name)
        if known is None:
            function = plain_function(target)
            if function is None:
                what = f"step {info.name} is not a Python function"
                raise WorkflowError(what, where=reader.scope.function.where(), mend="put @step on a `def`")
            self.steps[info.name], self.codes[info.name] = (info, self.sources.function(function)), function
        elif known[0].module != info.module or self._is_other_code(known[1], target):
            function = plain_function(target)
            other = info.module if function is None else self.sources.function(function).where()
            what = f"two steps are called {info.name}, at {known[1].where()} and at {other}"
            raise WorkflowError(what, where=other, mend="rename one of them")
        return info.name

    def _is_other_code(self, known: Function, target: object) -> bool:
        function = plain_function(target)
        return function is None or self.sources.function(function).node is not known.node

    def _method(self, reader: StatementReader, node: ast.Call, func: ast.Attribute, awaited: bool) -> None:
        info = step_info(reader.scope.resolve(node.args[0])) if node.args else None
        fork = reader.receiver(func) if func.attr == "adopt" or (info and func.attr in ("map", "run")) else None
        if reader.is_discarded(node) and fork is not None and (info or reader.fork_of(func.value)):
            refuse_unawaited(reader.scope.function, node)
        if fork is None and awaited and self._is_method_with_steps(reader, func.attr):
            reader.unseen(f"{_text(func)} is a method of an object that is only known at run time", node)
        elif fork is None:
            self._unread(reader, node)
        elif info is not None:
            step = self._step(info, reader.scope.resolve(node.args[0]), reader)
            caught = info.retried or reader.caught or any(keyword.arg == "errors" for keyword in node.keywords)
            marks: dict[str, Any] = {"caught": caught, "every": func.attr == "map", "source": reader.source(node)}
            reader.add(StepCall(step, reader.site(node), over=reader.levels_up(fork), **marks))
        else:
            given = any(keyword.arg != "strategy" or not _is_fail(keyword.value) for keyword in node.keywords)
            handled = given or reader.caught
            reader.add(Adopt(reader.site(node), reader.levels_up(fork), handled, reader.source(node)))

    def _is_method_with_steps(self, reader: StatementReader, name: str) -> bool:
        """Return whether a class known to the function's module has a method of this name in which steps run."""
        key = reader.scope.function.path, name
        if not self.sources.since_format_5:  # reading the methods would change the workflow's digest
            return False
        if key not in self._methods:
            self._methods[key] = False  # while its own methods are read
            classes = [value for value in reader.scope.function.outer.values() if isinstance(value, type)]
            for each in classes:
                self._methods[key] |= self._method_runs_steps(reader, each, name)
        return self._methods[key]

    def _method_runs_steps(self, reader: StatementReader, owner: type, name: str) -> bool:
        reading, forks = len(self._reading), len(reader.forks)
        try:
            method = self._project_function(static_attribute(owner, name, None))
            return method is not None and self._runs_steps(reader, method)
        except SourceError:  # made by exec, as the methods of a dataclass are
            return False
        except WorkflowError:  # steps run there; the error is reported where the method is certainly called
            return True
        finally:
            del self._reading[reading:], reader.forks[forks:]

    def _runs_steps(self, reader: StatementReader, function: Function, outer: Scope | None = None) -> bool:
        if function.node in self._reading:
            return False
        return any(operations(self._body(reader, function, outer, None, _blocks(reader, function.node))))

    def _local(self, reader: StatementReader, node: ast.Call, func: ast.expr, awaited: bool) -> None:
        found = reader.scope.definition(func.id) if isinstance(func, ast.Name) else None
        if found is not None:
            self._inline(reader, node, found[1], reader.scope.function, found[0])
        elif awaited:
            reader.unseen(f"{_text(func)} is only known at run time", node)
        else:
            self._unread(reader, node)

    def _function(self, reader: StatementReader, node: ast.Call, target: object, awaited: bool) -> None:
        function = self._project_function(target)
        if function is not None:
            if is_wrapped(target) and self._decorator_runs_steps(reader, target, function):
                reader.unseen(f"a decorator of {_text(node.func)} runs steps", node)
            with reader.catching() if is_wrapped(target) else nullcontext():
                own = workflow_info(target) is not None and _is_plain(function.node)
                self._inline(reader, node, function.node, function, None, own_thread=own, repeats=is_wrapped(target))
        elif isinstance(target, type) and self._runs_steps_in_use(reader, target):
            reader.unseen(f"{_text(node.func)} runs steps when it is awaited, entered or iterated", node)
        elif awaited and self._is_opaque(target):
            reader.unseen(f"{_text(node.func)} is an object, and what its call does is only known at run time", node)
        else:
            self._unread(reader, node)

    def _decorator_runs_steps(self, reader: StatementReader, target: object, inner: Function) -> bool:
        """Return whether a decorator of the project runs steps of its own around the function that it wraps."""
        if not isinstance(target, FunctionType) or not self.sources.since_format_5:
            return False
        if not in_same_project(self.workflow, target.__module__, target.__code__.co_filename):
            return False
        try:
            outer = self.sources.wrapper(target)
        except SourceError:  # made by exec, as some decorators do
            return False
        if {outer.node, inner.node} & set(self._reading):
            return False
        self._reading.append(inner.node)
        body = self._body(reader, outer, None, None, _blocks(reader, outer.node))
        self._reading.pop()
        return any(self._recursive.get(item) is not inner.node for item in operations(body))

    def _runs_steps_in_use(self, reader: StatementReader, made: type) -> bool:
        """Return whether an object of this class of the project runs steps without being called."""
        found = (self._project_function(static_attribute(made, name, None)) for name in _IMPLICIT_METHODS)
        return self.sources.since_format_5 and any(each and self._runs_steps(reader, each) for each in found)

    def _is_opaque(self, target: object) -> bool:
        """Return whether this is a callable that is no function and may run steps.

        That is an object of the project, a partial of one of its functions, or `eval`.
        """
        if isinstance(target, partial):
            return self._project_function(target.func) is not None or self._is_opaque(target.func)
        if target is eval:
            return True
        own = inspect.getattr_static(type(target), "__call__", None)
        if not isinstance(own, FunctionType) or isinstance(target, type):
            return False
        return self._project_function(own) is not None

    def _project_function(self, target: object) -> Function | None:
        """Return the function of the project that a call of the object runs."""
        plain = plain_function(target)
        if plain is None or not in_same_project(self.workflow, plain.__module__, plain.__code__.co_filename):
            return None
        return self.sources.function(plain)

    def _called_function(self, target: object) -> Function | None:
        """Return the function of the project, or of a step, that a call of the object runs."""
        try:
            return (
                self.sources.function(plain)
                if (plain := _function_of_step(target))
                else self._project_function(target)
            )
        except SourceError:  # made by exec
            return None

    def _inline(
        self,
        reader: StatementReader,
        node: ast.Call,
        definition: Definition,
        function: Function,
        outer: Scope | None,
        *,
        own_thread: bool = False,
        repeats: bool = False,
    ) -> None:
        name = getattr(definition, "name", "lambda")
        blocking = own_thread or _blocks(reader, definition)
        if definition in self._reading:
            self._recursive[reader.unseen(f"{name} calls itself", node)] = definition
        elif self._inlined >= MOST_INLINED:
            reader.unseen(f"{name} is one of more than {MOST_INLINED} calls of helpers", node)
        elif (definition, bool(reader.forks), blocking) not in self._empty:
            self._inlined += 1
            inner = Function(name, function.module, function.path, definition, function.outer)
            body = self._body(reader, inner, outer, node, blocking)
            if is_begun_apart(definition, node, reader.awaits):
                body = with_exits(body)
            if any(operations(body)):
                self.helpers[definition] = inner
                reader.add(Inlined(name, body, reader.source(node), repeats))

    def _body(
        self, reader: StatementReader, inner: Function, outer: Scope | None, node: ast.Call | None, blocking: bool
    ) -> Body:
        """Return a helper's items; none if it only calls itself."""
        scope = self._scope(inner, outer)
        if node is not None:
            _pass_forks(reader, node, inner.node, scope)
        given = () if node is None else _arguments(node, inner.node)
        sets = reader.sets.called(scope, given, nested=outer is not None)
        self._reading.append(inner.node)
        body = StatementReader(
            self.call, scope, reader.forks, reader.caught, blocking, reader.ordered, sets
        ).function(inner.node)
        self._reading.pop()
        if all(self._recursive.get(item) is inner.node for item in operations(body)):
            self._empty.add((inner.node, bool(reader.forks), blocking))
            return ()
        return body

    def _unread(self, reader: StatementReader, node: ast.Call) -> None:
        """Add a graph break for a call that the compiler does not read, if an argument may run steps."""
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            value = argument.value if isinstance(argument, ast.Starred) else argument
            if self._may_run_steps(reader, value):
                reason = f"{_text(value)} is passed to {_text(node.func)}, which the compiler does not read"
                reader.unseen(reason, node)
                return

    def _may_run_steps(self, reader: StatementReader, node: ast.expr) -> bool:
        target = self._target(reader, node)
        inner = decorated_step(target) if self.sources.since_format_8 else None
        info = step_info(target if inner is None else inner)
        if info is not None:
            self._step(info, target if inner is None else inner, reader)
        if info is not None or workflow_info(target) or is_fork(target) or is_llm(target):
            return True
        found = reader.scope.definition(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Lambda):
            found = (reader.scope, node)
        function, outer = (None, None) if found is None else (reader.scope.function, found[0])
        definition = found[1] if found is not None else None
        if definition is None:
            function = self._project_function(target)
            definition = function.node if function is not None else None
        if definition is None or function is None:
            return False
        return self._runs_steps(reader, replace(function, name="", node=definition), outer)


def _function_of_step(target: object) -> Callable[..., Any] | None:
    return None if step_info(target) is None else plain_function(target)


def _is_plain(definition: Definition) -> bool:
    """Return whether a function is not async. Such a workflow has a thread of its own."""
    return isinstance(definition, ast.FunctionDef)


def _blocks(reader: StatementReader, definition: Definition) -> bool:
    """Return whether the calls inside a function wait for their result, if `reader`'s function calls it."""
    return reader.blocking and not isinstance(definition, ast.AsyncFunctionDef)


def _arguments(node: ast.Call, definition: Definition) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of a function's parameters, each with the argument of a call."""
    names = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]
    yield from zip(names, node.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None)


def _pass_forks(reader: StatementReader, node: ast.Call, definition: Definition, scope: Scope) -> None:
    """Assign each parameter to the fork that its argument belongs to."""
    for name, value in _arguments(node, definition):
        fork = reader.fork_of(value)
        if fork is not None:
            scope.forks[name] = fork


def _int_keyword(node: ast.Call, name: str) -> int | None:
    """Return a keyword argument that is an integer literal."""
    for keyword in node.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is int:
            return keyword.value.value
    return None


def _is_fail(strategy: ast.expr) -> bool:
    return isinstance(strategy, ast.Constant) and strategy.value == "fail"


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."
