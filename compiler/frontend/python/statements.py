"""Reading a workflow's body: its syntax tree, statement by statement, into the items of a Spec.

Helpers of the same project are read at each call. What holds nothing of Ramify leaves no item.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.python.name_resolution import UNRESOLVED, OpenFork, Scope, is_fork
from ramify.compiler.frontend.python.sources import Definition, source_of
from ramify.compiler.plan import Site
from ramify.compiler.spec import (
    Body,
    Choice,
    Enter,
    Fork,
    Item,
    Leave,
    Loop,
    Try,
    Unseen,
    Way,
    parts,
    walk,
)

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Tracer:
    """One function's statements. `call` reads a call expression, whose receiver and arguments have been read."""

    def __init__(
        self,
        call: Callable[[Tracer, ast.Call, bool], None],
        scope: Scope,
        forks: list[OpenFork],
        caught: bool = False,
        blocking: bool = False,
    ) -> None:
        self.call, self.scope, self.forks = call, scope, forks
        self.caught = caught  # what fails here may be caught, and the workflow goes on
        self.blocking = blocking  # not async, and in a thread of its own: a call waits until what it began is done
        self.among = False  # an argument of another call: what runs here may run beside other steps
        self.items: list[Item] = []
        self.awaits: dict[ast.Call, ast.Await] = {}
        self.alone: ast.Call | None = None  # a statement of its own

    def function(self, definition: Definition) -> Body:
        if isinstance(definition, ast.Lambda):
            return self.collect(lambda: self.expr(definition.body))
        return self.body(definition.body)

    def statements(self, definition: Definition) -> tuple[Body, tuple[int, ...]]:
        """As `function`, and how many items there are up to the end of each statement."""
        counts: list[int] = []

        def read() -> None:
            for statement in [] if isinstance(definition, ast.Lambda) else definition.body:
                self.stmt(statement)
                counts.append(len(self.items))

        return self.collect(read), tuple(counts)

    def body(self, statements: list[ast.stmt]) -> Body:
        def read() -> None:
            for statement in statements:
                self.stmt(statement)

        return self.collect(read)

    def collect(self, read: Callable[[], None]) -> Body:
        outer, self.items = self.items, []
        read()
        made, self.items = tuple(self.items), outer
        return made

    def add(self, item: Item) -> None:
        if _matters(item):
            self.items.append(item)

    def unseen(self, reason: str, node: ast.Call) -> Unseen:
        """A graph break at a call; at the whole `await` of it, which is where the frame stands while what the call
        started is running."""
        site = self.site(self.awaits.get(node, node))
        seen = Unseen(reason, self.scope.function.where(node), site, self.source(node))
        self.add(seen)
        return seen

    def drops(self, node: ast.Call) -> bool:
        """Whether nobody waits for what the call gives."""
        return node is self.alone and not self.blocking

    def site(self, node: ast.expr) -> Site:
        return self.scope.function.site(node)

    def source(self, node: ast.expr) -> str:
        return source_of(node, self.scope.function.node)

    # Statements

    def stmt(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if not node.decorator_list:
                    self.scope.functions[node.name] = node
            case ast.ClassDef():
                pass
            case ast.Return() | ast.Raise():
                self.children(node)
                self.add(Leave(Way.RETURN if isinstance(node, ast.Return) else Way.RAISE))
            case ast.Break():
                self.add(Leave(Way.BREAK))
            case ast.Continue():
                self.add(Leave(Way.CONTINUE))
            case ast.If(test, body, orelse):
                self.expr(test)
                self.add(Choice((self.body(body), self.body(orelse))))
            case ast.While(test, body, orelse):
                endless = isinstance(test, ast.Constant) and bool(test.value)
                tested = self.collect(lambda: self.expr(test))
                self.add(Loop(tested, self.body(body), self.body(orelse), endless))
            case ast.For(target, source, body, orelse) | ast.AsyncFor(target, source, body, orelse):
                self.expr(source)
                self.track(target, source)
                self.add(Loop((), self.body(body), self.body(orelse)))
            case ast.Try() | ast.TryStar():
                with self.catching():
                    tried = self.body(node.body)
                handlers = tuple(self.body(handler.body) for handler in node.handlers)
                self.add(Try(tried, handlers, self.body(node.orelse), self.body(node.finalbody)))
            case ast.With() | ast.AsyncWith():
                self.with_(node, 0)
            case ast.Match():
                self.match(node)
            case ast.Assign(targets, value):
                if isinstance(value, ast.Lambda) and isinstance(targets[0], ast.Name):
                    self.scope.functions[targets[0].id] = value
                self.children(node)
                for target in targets:
                    self.track(target, value)
            case ast.Expr(ast.Call() as call):
                self.alone = call
                self.expr(call)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.expr(value)
                self.track(target, value)
            case _:
                self.children(node)

    def match(self, node: ast.Match) -> None:
        self.expr(node.subject)
        arms = []
        for case in node.cases:
            self.track_names((n.name for n in ast.walk(case.pattern) if isinstance(n, ast.MatchAs)), node.subject)
            guards = [] if case.guard is None else [case.guard]
            arms.append((*self.collect(partial(self.exprs, guards)), *self.body(case.body)))
        last = node.cases[-1]
        if last.guard is not None or not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None):
            arms.append(())
        self.add(Choice(tuple(arms)))

    def with_(self, node: ast.With | ast.AsyncWith, index: int) -> None:
        if index == len(node.items):
            self.items += self.body(node.body)
            return
        item = node.items[index]
        context, inside = item.context_expr, partial(self.with_, node, index + 1)
        entered = self.entered(context)
        if isinstance(context, ast.Call) and is_fork(self.scope.resolve(context.func)):
            self.operands(context)
            with self.opened(context, item.optional_vars):
                body = self.collect(inside)
            self.add(Fork(self.site(context), body, self.source(context)))
        elif entered is not None and isinstance(context, ast.Call):
            self.operands(context)
            self.add(Enter(self.up(entered), self.collect(inside)))
        else:
            self.expr(context)
            if item.optional_vars is not None:
                self.track(item.optional_vars, context)
            with self.catching():  # contextlib.suppress, a TaskGroup, a timeout
                inside()

    @contextmanager
    def catching(self) -> Iterator[None]:
        outer, self.caught = self.caught, True
        yield
        self.caught = outer

    @contextmanager
    def opened(self, node: ast.Call, target: ast.expr | None) -> Iterator[None]:
        fork = OpenFork(len(self.forks), node.lineno)
        self.forks.append(fork)
        if isinstance(target, ast.Name):
            self.scope.forks[target.id] = fork
        yield
        self.forks.pop()

    def entered(self, node: ast.expr) -> OpenFork | None:
        """The fork whose branch `node.enter()` enters."""
        match node:
            case ast.Call(func=ast.Attribute(attr="enter") as func) if self.scope.resolve(func.value) is UNRESOLVED:
                return self.receiver(func)
            case _:
                return None

    # Expressions, in the order in which Python evaluates them

    def expr(self, node: ast.expr, awaited: bool = False) -> None:
        match node:
            case ast.Await(value):
                if isinstance(value, ast.Call):
                    self.awaits[value] = node
                outer, self.among = self.among, False
                self.expr(value, awaited=True)
                self.among = outer
            case ast.Call():
                self.operands(node)
                self.call(self, node, awaited or self.blocking)
            case ast.Lambda():
                pass
            case ast.BoolOp(values=[first, *rest]):
                self.expr(first)
                self.add(Choice((self.collect(lambda: self.exprs(rest)), ())))
            case ast.IfExp(test, body, orelse):
                self.expr(test)
                self.add(Choice((self.collect(lambda: self.expr(body)), self.collect(lambda: self.expr(orelse)))))
            case ast.DictComp():
                self.comprehension(node, [node.key, node.value], awaited)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self.comprehension(node, [node.elt], awaited)
            case ast.NamedExpr(target, value):
                self.expr(value)
                self.track(target, value)
            case ast.Starred(value):
                self.expr(value, awaited)
            case _:
                self.children(node)

    def exprs(self, nodes: Iterable[ast.expr], awaited: bool = False) -> None:
        for node in nodes:
            self.expr(node, awaited)

    def children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child)
            elif not isinstance(child, ast.stmt):
                self.children(child)

    def operands(self, node: ast.Call) -> None:
        """A call's receiver and arguments. What is handed to a gatherer of awaitables is awaited by it."""
        awaited = isinstance(node.func, ast.Attribute | ast.Name) and _last_name(node.func) in _GATHERERS
        self.expr(node.func)
        outer, self.among = self.among, not self.blocking
        with self.catching():  # gather(..., return_exceptions=True), wait, create_task
            self.exprs(node.args, awaited)
            self.exprs((keyword.value for keyword in node.keywords), awaited)
        self.among = outer

    def comprehension(self, node: _Comprehension, results: list[ast.expr], awaited: bool) -> None:
        first, *rest = node.generators
        self.expr(first.iter)

        def inside() -> None:
            self.track(first.target, first.iter)
            self.exprs(first.ifs)
            for generator in rest:
                self.expr(generator.iter)
                self.track(generator.target, generator.iter)
                self.exprs(generator.ifs)
            self.exprs(results, awaited)

        self.add(Loop((), self.collect(inside)))

    # Which fork a name belongs to

    def track(self, target: ast.expr, value: ast.expr) -> None:
        """Whatever is made from a fork's branches belongs to it: outcomes, the best of them, loop variables."""
        self.track_names((node.id for node in ast.walk(target) if isinstance(node, ast.Name)), value)

    def track_names(self, names: Iterable[str | None], value: ast.expr) -> None:
        fork = self.mentioned(value)
        if fork is not None:
            self.scope.forks.update((name, fork) for name in names if name is not None)

    def mentioned(self, node: ast.expr) -> OpenFork | None:
        names = (self.scope.fork_of(inner.id) for inner in ast.walk(node) if isinstance(inner, ast.Name))
        found = [fork for fork in names if fork is not None]
        return max(found, key=lambda fork: (fork in self.forks, fork.depth), default=None)

    def receiver(self, func: ast.Attribute) -> OpenFork | None:
        """The fork that `func.value` belongs to; where that cannot be told, the innermost open one."""
        fork = self.mentioned(func.value)
        if fork is not None and fork not in self.forks:
            what = f".{func.attr}() on a branch of the fork of line {fork.line}, which is released by then"
            where = self.scope.function.where(func)
            raise WorkflowError(what, where=where, mend="move it inside the `async with fork(...)`")
        return fork or (self.forks[-1] if self.forks else None)

    def up(self, fork: OpenFork) -> int:
        return len(self.forks) - 1 - fork.depth


_GATHERERS = frozenset({"gather", "create_task", "ensure_future", "wait_for", "shield", "as_completed"})


def _last_name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def operations(body: Body) -> Iterator[Item]:
    """The items of a body that are operations themselves."""
    return (item for item in walk(body) if isinstance(item, Fork) or not (isinstance(item, Leave) or parts(item)))


def _matters(item: Item, caught: frozenset[Way] = frozenset()) -> bool:
    """Whether an item holds an operation, or leaves something outside itself."""
    match item:
        case Leave(way):
            return way not in caught
        case Fork():
            return True
        case Loop(test, body, orelse):
            inside = caught | {Way.BREAK, Way.CONTINUE}
            return any(_matters(i, inside) for i in body) or any(_matters(i, caught) for i in (*test, *orelse))
        case _:
            bodies = [body for _, body in parts(item)]
            return not bodies or any(_matters(inner, caught) for body in bodies for inner in body)
