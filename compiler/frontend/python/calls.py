"""What a call in a workflow is: a step, a model call, an adoption, a helper to read in its place, a graph break, or
nothing that the compiler minds."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

from ramify.compiler.errors import SourceError, WorkflowError
from ramify.compiler.frontend.python.name_resolution import (
    Scope,
    Unresolved,
    is_fork,
    is_llm,
    is_wrapped,
    plain_function,
    step_info,
    workflow_info,
)
from ramify.compiler.frontend.python.prompt_prefixes import prefix_of
from ramify.compiler.frontend.python.sources import Definition, Function, Sources, in_same_project
from ramify.compiler.frontend.python.statements import Tracer, operations
from ramify.compiler.frontend.python.step_checks import refuse_dropped, refuse_unentered
from ramify.compiler.plan import StepInfo
from ramify.compiler.spec import Adopt, Body, CallLlm, Inlined, Item, Run

MOST_INLINED = 2000  # calls read in their place; a workflow beyond that gets graph breaks


_CALLED_BY: dict[str, Callable[[object], object | None]] = {
    "stream": workflow_info,
    "invoke": workflow_info,
    "call": step_info,
}
"""Methods of a workflow, of a tool, that are a call of it."""


_IN_USE = ("__await__", "__aenter__", "__aexit__", "__aiter__", "__anext__")


class Calls:
    """Reads calls, and gathers the steps and helpers that it meets. `caught`: whoever calls the workflow may catch
    what fails in it, within the run."""

    def __init__(self, workflow: Function, sources: Sources, *, caught: bool = False) -> None:
        self.caught = caught
        self.workflow, self.sources = workflow, sources
        self.steps: dict[str, tuple[StepInfo, Function]] = {}
        self.codes: dict[str, Callable[..., Any]] = {}  # the steps' functions
        self.helpers: dict[Definition, Function] = {}
        self._reading: list[Definition] = [workflow.node]
        self._again: dict[Item, Definition] = {}  # a break for a recursive call, and the function called again
        self._plain: set[tuple[Definition, bool, bool]] = set()  # hold nothing; read inside a fork, as blocking
        self._methods: dict[tuple[str, str], bool] = {}  # by module and name: whether steps run in it
        self._inlined = 0

    def read(self) -> tuple[Body, tuple[int, ...]]:
        """The workflow, and how many items there are up to the end of each of its statements."""
        node, scope = self.workflow.node, self._scope(self.workflow)
        return Tracer(self.call, scope, [], self.caught, _is_plain(node)).statements(node)

    def _scope(self, function: Function, outer: Scope | None = None) -> Scope:
        return Scope.of(function, self.sources.rebound(function.path), outer)

    def call(self, tracer: Tracer, node: ast.Call, awaited: bool) -> None:
        func, target = node.func, tracer.scope.resolve(node.func)
        if isinstance(func, ast.Attribute) and (marked := _CALLED_BY.get(func.attr)) is not None:
            of = tracer.scope.resolve(func.value)
            target = target if marked(of) is None else of
        if isinstance(target, partial) and step_info(target.func) is not None:
            target = target.func
        info = step_info(target)
        if tracer.drops(node) and (info is not None or workflow_info(target) is not None):
            refuse_dropped(tracer.scope.function, node)
        if info is not None:
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(argument, ast.Call) and is_fork(tracer.scope.resolve(argument.func)):
                    refuse_unentered(tracer.scope.function, argument)
            caught = info.retried or tracer.caught or not awaited or isinstance(target, FunctionType)
            together = tracer.among or not awaited
            marks: dict[str, Any] = {"caught": caught, "together": together, "source": tracer.source(node)}
            tracer.add(Run(self._step(info, target, tracer), tracer.site(node), **marks))
        elif is_fork(target):
            if node is tracer.alone or node in tracer.awaits:
                refuse_unentered(tracer.scope.function, node)
            tracer.unseen("fork(...) is not opened by a `with` around the call itself", node)
        elif isinstance(func, ast.Attribute) and is_llm(tracer.scope.resolve(func.value)):
            said = _number(node, "n"), prefix_of(node, tracer.scope), tracer.source(node)
            tracer.add(CallLlm(func.attr, tracer.site(node), *said))
        elif isinstance(func, ast.Attribute) and isinstance(target, Unresolved):
            self._method(tracer, node, func, awaited)
        elif isinstance(target, Unresolved):
            self._local(tracer, node, func, awaited)
        else:
            self._function(tracer, node, target, awaited)

    def _step(self, info: StepInfo, target: object, tracer: Tracer) -> str:
        known = self.steps.get(info.name)
        if known is None:
            function = plain_function(target)
            if function is None:
                what = f"step {info.name} is not a Python function"
                raise WorkflowError(what, where=tracer.scope.function.where(), mend="put @step on a `def`")
            self.steps[info.name], self.codes[info.name] = (info, self.sources.function(function)), function
        elif known[0].module != info.module or self._other_code(known[1], target):
            function = plain_function(target)
            other = info.module if function is None else self.sources.function(function).where()
            what = f"two steps are called {info.name}, at {known[1].where()} and at {other}"
            raise WorkflowError(what, where=other, mend="rename one of them")
        return info.name

    def _other_code(self, known: Function, target: object) -> bool:
        function = plain_function(target)
        return function is None or self.sources.function(function).node is not known.node

    def _method(self, tracer: Tracer, node: ast.Call, func: ast.Attribute, awaited: bool) -> None:
        info = step_info(tracer.scope.resolve(node.args[0])) if node.args else None
        fork = tracer.receiver(func) if func.attr == "adopt" or (info and func.attr in ("map", "run")) else None
        if tracer.drops(node) and fork is not None and (info or tracer.mentioned(func.value)):
            refuse_dropped(tracer.scope.function, node)
        if fork is None and awaited and self._is_method_with_steps(tracer, func.attr):
            tracer.unseen(f"{_text(func)} is a method of what only a run knows", node)
        elif fork is None:
            self._handed(tracer, node)
        elif info is not None:
            step = self._step(info, tracer.scope.resolve(node.args[0]), tracer)
            caught = info.retried or tracer.caught or any(keyword.arg == "errors" for keyword in node.keywords)
            marks: dict[str, Any] = {"caught": caught, "every": func.attr == "map", "source": tracer.source(node)}
            tracer.add(Run(step, tracer.site(node), over=tracer.up(fork), **marks))
        else:
            given = any(keyword.arg != "strategy" or not _is_fail(keyword.value) for keyword in node.keywords)
            settled = given or tracer.caught
            tracer.add(Adopt(tracer.site(node), tracer.up(fork), settled, tracer.source(node)))

    def _is_method_with_steps(self, tracer: Tracer, name: str) -> bool:
        """Whether a class that the function's module knows has a method of this name in which steps run."""
        key = tracer.scope.function.path, name
        if not self.sources.since_format_5:  # what is read here adds to what the workflow is digested over
            return False
        if key not in self._methods:
            self._methods[key] = False  # while its own methods are read
            classes = [value for value in tracer.scope.function.outer.values() if isinstance(value, type)]
            for each in classes:
                self._methods[key] |= self._method_holds_steps(tracer, each, name)
        return self._methods[key]

    def _method_holds_steps(self, tracer: Tracer, owner: type, name: str) -> bool:
        reading, forks = len(self._reading), len(tracer.forks)
        try:
            method = self._at_home(inspect.getattr_static(owner, name, None))
            return method is not None and self._holds_steps(tracer, method)
        except SourceError:  # made by exec, as a dataclass's are
            return False
        except WorkflowError:  # steps run there; what is wrong is said where it is known to be called
            return True
        finally:
            del self._reading[reading:], tracer.forks[forks:]

    def _holds_steps(self, tracer: Tracer, function: Function, outer: Scope | None = None) -> bool:
        if function.node in self._reading:
            return False
        return any(operations(self._body(tracer, function, outer, None, _blocks(tracer, function.node))))

    def _local(self, tracer: Tracer, node: ast.Call, func: ast.expr, awaited: bool) -> None:
        found = tracer.scope.definition(func.id) if isinstance(func, ast.Name) else None
        if found is not None:
            self._inline(tracer, node, found[1], tracer.scope.function, found[0])
        elif awaited:
            tracer.unseen(f"{_text(func)} is chosen while running", node)
        else:
            self._handed(tracer, node)

    def _function(self, tracer: Tracer, node: ast.Call, target: object, awaited: bool) -> None:
        function = self._at_home(target)
        if function is not None:
            if is_wrapped(target) and self._runs_around(tracer, target, function):
                tracer.unseen(f"steps run in what decorates {_text(node.func)}", node)
            with tracer.catching() if is_wrapped(target) else nullcontext():
                own = workflow_info(target) is not None and _is_plain(function.node)
                self._inline(tracer, node, function.node, function, None, own_thread=own, again=is_wrapped(target))
        elif isinstance(target, type) and self._runs_in_use(tracer, target):
            tracer.unseen(f"{_text(node.func)} runs steps where it is awaited, entered or gone through", node)
        elif awaited and self._is_opaque(target):
            tracer.unseen(f"{_text(node.func)} is an object, and what its call does only a run knows", node)
        else:
            self._handed(tracer, node)

    def _runs_around(self, tracer: Tracer, target: object, inner: Function) -> bool:
        """Whether a decorator of the project runs steps of its own beside the function that it wraps."""
        if not isinstance(target, FunctionType) or not self.sources.since_format_5:
            return False
        if not in_same_project(self.workflow, target.__module__, target.__code__.co_filename):
            return False
        try:
            outer = self.sources.outermost(target)
        except SourceError:  # made by exec, as some decorators do
            return False
        if {outer.node, inner.node} & set(self._reading):
            return False
        self._reading.append(inner.node)
        body = self._body(tracer, outer, None, None, _blocks(tracer, outer.node))
        self._reading.pop()
        return any(self._again.get(item) is not inner.node for item in operations(body))

    def _runs_in_use(self, tracer: Tracer, made: type) -> bool:
        """Whether an object of this class of the project runs steps without being called."""
        found = (self._at_home(inspect.getattr_static(made, name, None)) for name in _IN_USE)
        return self.sources.since_format_5 and any(each and self._holds_steps(tracer, each) for each in found)

    def _is_opaque(self, target: object) -> bool:
        """Whether it is called like a function, is none, and may run steps: an object of the project, or a partial of
        one of its functions."""
        if isinstance(target, partial):
            return self._at_home(target.func) is not None or self._is_opaque(target.func)
        if target is eval:
            return True
        kind = type(target)
        own = inspect.getattr_static(kind, "__call__", None)
        return isinstance(own, FunctionType) and not isinstance(target, type) and self._at_home(own) is not None

    def _at_home(self, target: object) -> Function | None:
        plain = plain_function(target)
        if plain is None or not in_same_project(self.workflow, plain.__module__, plain.__code__.co_filename):
            return None
        return self.sources.function(plain)

    def _inline(
        self,
        tracer: Tracer,
        node: ast.Call,
        definition: Definition,
        function: Function,
        outer: Scope | None,
        *,
        own_thread: bool = False,
        again: bool = False,
    ) -> None:
        name = getattr(definition, "name", "lambda")
        blocking = own_thread or _blocks(tracer, definition)
        if definition in self._reading:
            self._again[tracer.unseen(f"{name} calls itself", node)] = definition
        elif self._inlined >= MOST_INLINED:
            tracer.unseen(f"{name} is one of more than {MOST_INLINED} calls of helpers", node)
        elif (definition, bool(tracer.forks), blocking) not in self._plain:
            self._inlined += 1
            inner = Function(name, function.module, function.path, definition, function.outer)
            body = self._body(tracer, inner, outer, node, blocking)
            if any(operations(body)):
                self.helpers[definition] = inner
                tracer.add(Inlined(name, body, tracer.source(node), again))

    def _body(
        self, tracer: Tracer, inner: Function, outer: Scope | None, node: ast.Call | None, blocking: bool
    ) -> Body:
        """A helper's body; empty if it holds nothing but calls of itself."""
        scope = self._scope(inner, outer)
        if node is not None:
            _hand_over_forks(tracer, node, inner.node, scope)
        self._reading.append(inner.node)
        body = Tracer(self.call, scope, tracer.forks, tracer.caught, blocking).function(inner.node)
        self._reading.pop()
        if all(self._again.get(item) is inner.node for item in operations(body)):
            self._plain.add((inner.node, bool(tracer.forks), blocking))
            return ()
        return body

    def _handed(self, tracer: Tracer, node: ast.Call) -> None:
        """A call that the compiler does not see into is a graph break if it is given something that runs steps."""
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            value = argument.value if isinstance(argument, ast.Starred) else argument
            if self._runs_steps(tracer, value):
                tracer.unseen(
                    f"{_text(value)} is handed to {_text(node.func)}, which the compiler does not see into", node
                )
                return

    def _runs_steps(self, tracer: Tracer, node: ast.expr) -> bool:
        target = tracer.scope.resolve(node)
        info = step_info(target)
        if info is not None:
            self._step(info, target, tracer)
        if info is not None or workflow_info(target) or is_fork(target) or is_llm(target):
            return True
        found = tracer.scope.definition(node.id) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Lambda):
            found = (tracer.scope, node)
        function, outer = (None, None) if found is None else (tracer.scope.function, found[0])
        definition = found[1] if found is not None else None
        if definition is None:
            function = self._at_home(target)
            definition = function.node if function is not None else None
        if definition is None or function is None:
            return False
        return self._holds_steps(tracer, replace(function, name="", node=definition), outer)


def _is_plain(definition: Definition) -> bool:
    """Not async: as a workflow it has a thread of its own."""
    return isinstance(definition, ast.FunctionDef)


def _blocks(tracer: Tracer, definition: Definition) -> bool:
    """Whether its calls wait, where what is read here calls it."""
    return tracer.blocking and not isinstance(definition, ast.AsyncFunctionDef)


def _hand_over_forks(tracer: Tracer, node: ast.Call, definition: Definition, scope: Scope) -> None:
    """A parameter belongs to the fork that its argument belongs to."""

    def pairs() -> Iterator[tuple[str, ast.expr]]:
        names = [argument.arg for argument in (*definition.args.posonlyargs, *definition.args.args)]
        yield from zip(names, node.args, strict=False)
        yield from ((keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None)

    for name, value in pairs():
        fork = tracer.mentioned(value)
        if fork is not None:
            scope.forks[name] = fork


def _number(node: ast.Call, name: str) -> int | None:
    """A keyword argument that is written as a whole number."""
    for keyword in node.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is int:
            return keyword.value.value
    return None


def _is_fail(strategy: ast.expr) -> bool:
    return isinstance(strategy, ast.Constant) and strategy.value == "fail"


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."
