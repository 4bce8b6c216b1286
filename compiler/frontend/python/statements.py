"""Reads a function's body, statement by statement, into the items of a Spec.

`StatementReader` walks the syntax tree in the order in which Python evaluates it. It knows control flow, forks and
which names hold branches. What a call means is decided by the function that it is given (`calls`). Code without any
operation of Ramify leaves no item.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from ramify.compiler.errors import WorkflowError
from ramify.compiler.frontend.python.name_resolution import UNRESOLVED, OpenFork, Scope, is_fork
from ramify.compiler.frontend.python.set_order import SetOrder
from ramify.compiler.frontend.python.sources import Definition, call_text
from ramify.compiler.plan import Site
from ramify.compiler.spec import (
    Body,
    Conditional,
    EnterBranch,
    ExitKind,
    Fork,
    Item,
    Leave,
    Loop,
    Try,
    Unseen,
    parts,
    walk,
)

_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class StatementReader:
    """Reads the statements of one function.

    Args:
        call: Reads a call expression whose receiver and arguments have been read. The last argument says whether the
            call is awaited.
        scope: The names of the function.
        forks: The open forks, outermost first.
        caught: Exceptions here may be caught, and the workflow continues.
        blocking: The function is not async and has a thread of its own, so each call waits for what it starts.
        ordered: Calls are identified with their keyword arguments in the order of the names.
        sets: The loops over sets around the function.
    """

    def __init__(
        self,
        call: Callable[[StatementReader, ast.Call, bool], None],
        scope: Scope,
        forks: list[OpenFork],
        caught: bool,
        blocking: bool,
        ordered: bool,
        sets: SetOrder,
    ) -> None:
        self.call, self.scope, self.forks = call, scope, forks
        self.caught, self.blocking, self.ordered = caught, blocking, ordered
        self.sets = sets
        self.is_argument = False  # the expression is an argument of a call: it may run beside other steps
        self.items: list[Item] = []
        self.awaits: dict[ast.Call, ast.Await] = {}
        self.statement_call: ast.Call | None = None  # the call that is the current statement

    def function(self, definition: Definition) -> Body:
        if isinstance(definition, ast.Lambda):
            return self.collect(lambda: self.expr(definition.body))
        return self.body(definition.body)

    def statements(self, definition: Definition) -> tuple[Body, tuple[int, ...]]:
        """Return the function's items, and for each statement the number of items up to its end."""
        counts: list[int] = []

        def read() -> None:
            for statement in [] if isinstance(definition, ast.Lambda) else definition.body:
                self.stmt(statement)
                counts.append(len(self.items))

        return self.collect(read), tuple(counts)

    def body(self, statements: list[ast.stmt]) -> Body:
        def read() -> None:
            with ExitStack() as known:
                for statement in statements:
                    self.stmt(statement)
                    if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
                        known.enter_context(self.sets.under(statement.test, False))

        return self.collect(read)

    def collect(self, read: Callable[[], None]) -> Body:
        """Return the items that `read` adds."""
        outer, self.items = self.items, []
        read()
        made, self.items = tuple(self.items), outer
        return made

    def add(self, item: Item) -> None:
        if _has_effect(item):
            self.items.append(item)

    def unseen(self, reason: str, node: ast.Call) -> Unseen:
        """Add a graph break at a call.

        Its site is the whole `await` of the call: the frame stands there while what the call started is running.
        """
        site = self.site(self.awaits.get(node, node))
        item = Unseen(reason, self.scope.function.where(node), site, self.source(node), self.sets.hides())
        self.add(item)
        return item

    def is_discarded(self, node: ast.Call) -> bool:
        """Return whether nobody waits for what the call returns."""
        return node is self.statement_call and not self.blocking

    def site(self, node: ast.expr) -> Site:
        return self.scope.function.site(node)

    def source(self, node: ast.expr) -> str:
        return call_text(node, self.scope.function.node, ordered=self.ordered)

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
                self.add(Leave(ExitKind.RETURN if isinstance(node, ast.Return) else ExitKind.RAISE))
            case ast.Break():
                self.add(Leave(ExitKind.BREAK))
            case ast.Continue():
                self.add(Leave(ExitKind.CONTINUE))
            case ast.If(test, body, orelse):
                self.expr(test)
                with self.sets.under(test, True):
                    then = self.body(body)
                with self.sets.under(test, False):
                    otherwise = self.body(orelse)
                self.add(Conditional((then, otherwise)))
            case ast.While(test, body, orelse):
                endless = isinstance(test, ast.Constant) and bool(test.value)
                with self.sets.repeated(node):
                    tested = self.collect(lambda: self.expr(test))
                    repeated = self.body(body)
                self.add(Loop(tested, repeated, self.body(orelse), endless))
            case ast.For(target, source, body, orelse) | ast.AsyncFor(target, source, body, orelse):
                self.expr(source)
                self.track(target, source)
                with self.sets.loop(target, source, node):
                    repeated = self.body(body)
                self.add(Loop((), repeated, self.body(orelse)))
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
                self.statement_call = call
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
            guarded = self.collect(partial(self.exprs, guards))
            with self.sets.matched(node.subject, case.pattern, case.guard):
                arms.append((*guarded, *self.body(case.body)))
        last = node.cases[-1]
        if last.guard is not None or not (isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None):
            arms.append(())
        self.add(Conditional(tuple(arms)))

    def with_(self, node: ast.With | ast.AsyncWith, index: int) -> None:
        if index == len(node.items):
            self.items += self.body(node.body)
            return
        item = node.items[index]
        context, inside = item.context_expr, partial(self.with_, node, index + 1)
        entered = self.entered_fork(context)
        if isinstance(context, ast.Call) and is_fork(self.scope.resolve(context.func)):
            self.operands(context)
            with self.opened(context, item.optional_vars):
                body = self.collect(inside)
            self.add(Fork(self.site(context), body, self.source(context)))
        elif entered is not None and isinstance(context, ast.Call):
            self.operands(context)
            self.add(EnterBranch(self.levels_up(entered), self.collect(inside)))
        else:
            self.expr(context)
            if item.optional_vars is not None:
                self.track(item.optional_vars, context)
            with self.catching():  # contextlib.suppress, a TaskGroup, a timeout
                inside()

    @contextmanager
    def catching(self) -> Iterator[None]:
        """Inside the block, exceptions may be caught."""
        outer, self.caught = self.caught, True
        yield
        self.caught = outer

    @contextmanager
    def opened(self, node: ast.Call, target: ast.expr | None) -> Iterator[None]:
        """Inside the block, the fork of this call is open, and `target` holds its branches."""
        fork = OpenFork(len(self.forks), node.lineno)
        self.forks.append(fork)
        if isinstance(target, ast.Name):
            self.scope.forks[target.id] = fork
        yield
        self.forks.pop()

    def entered_fork(self, node: ast.expr) -> OpenFork | None:
        """Return the fork one of whose branches `node.enter()` enters."""
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
                outer, self.is_argument = self.is_argument, False
                self.expr(value, awaited=True)
                self.is_argument = outer
            case ast.Call():
                self.operands(node)
                self.call(self, node, awaited or self.blocking)
            case ast.Lambda():
                pass
            case ast.BoolOp(op, [first, *rest]):
                self.expr(first)
                with self.sets.under(first, isinstance(op, ast.And)):
                    other = self.collect(lambda: self.exprs(rest))
                self.add(Conditional((other, ())))
            case ast.IfExp(test, body, orelse):
                self.expr(test)
                with self.sets.under(test, True):
                    then = self.collect(lambda: self.expr(body))
                with self.sets.under(test, False):
                    otherwise = self.collect(lambda: self.expr(orelse))
                self.add(Conditional((then, otherwise)))
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
        """Read a call's receiver and arguments. Arguments of `gather` and the like count as awaited."""
        awaited = isinstance(node.func, ast.Attribute | ast.Name) and _last_name(node.func) in _AWAIT_ARGUMENTS
        self.expr(node.func)
        outer, self.is_argument = self.is_argument, not self.blocking
        with self.catching():  # gather(..., return_exceptions=True), wait, create_task
            self.exprs(node.args, awaited)
            self.exprs((keyword.value for keyword in node.keywords), awaited)
        self.is_argument = outer

    def comprehension(self, node: _Comprehension, results: list[ast.expr], awaited: bool) -> None:
        first, *rest = node.generators
        self.expr(first.iter)

        def inside() -> None:
            self.track(first.target, first.iter)
            self.exprs(first.ifs)
            with ExitStack() as loops:
                self.filtered(first.ifs, loops)
                for generator in rest:
                    self.expr(generator.iter)
                    self.track(generator.target, generator.iter)
                    loops.enter_context(self.sets.loop(generator.target, generator.iter, node))
                    self.exprs(generator.ifs)
                    self.filtered(generator.ifs, loops)
                self.exprs(results, awaited)

        with self.sets.loop(first.target, first.iter, node):
            repeated = self.collect(inside)
        self.add(Loop((), repeated))

    def filtered(self, tests: list[ast.expr], stack: ExitStack) -> None:
        for test in tests:
            stack.enter_context(self.sets.under(test, True))

    # Which fork a name belongs to

    def track(self, target: ast.expr, value: ast.expr) -> None:
        """Assign the names of `target` to the fork that `value` comes from: outcomes, the best branch, loop
        variables.
        """
        self.track_names((node.id for node in ast.walk(target) if isinstance(node, ast.Name)), value)

    def track_names(self, names: Iterable[str | None], value: ast.expr) -> None:
        fork = self.fork_of(value)
        if fork is not None:
            self.scope.forks.update((name, fork) for name in names if name is not None)

    def fork_of(self, node: ast.expr) -> OpenFork | None:
        """Return the innermost fork that a name in the expression belongs to; open forks come before closed ones."""
        names = (self.scope.fork_of(inner.id) for inner in ast.walk(node) if isinstance(inner, ast.Name))
        found = [fork for fork in names if fork is not None]
        return max(found, key=lambda fork: (fork in self.forks, fork.depth), default=None)

    def receiver(self, func: ast.Attribute) -> OpenFork | None:
        """Return the fork that `func.value` belongs to; if that is unknown, the innermost open fork.

        Raises:
            WorkflowError: The fork has ended.
        """
        fork = self.fork_of(func.value)
        if fork is not None and fork not in self.forks:
            what = f".{func.attr}() is called on a branch of the fork in line {fork.line}, which is released by then"
            where = self.scope.function.where(func)
            raise WorkflowError(what, where=where, mend="move it inside the `async with fork(...)`")
        return fork or (self.forks[-1] if self.forks else None)

    def levels_up(self, fork: OpenFork) -> int:
        return len(self.forks) - 1 - fork.depth


def _leaves(body: list[ast.stmt]) -> bool:
    """Return whether nothing behind a body runs after it."""
    return isinstance(body[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


_AWAIT_ARGUMENTS = frozenset({"gather", "create_task", "ensure_future", "wait_for", "shield", "as_completed"})


def _last_name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def operations(body: Body) -> Iterator[Item]:
    """Yield the items of a body that are operations themselves."""
    return (item for item in walk(body) if isinstance(item, Fork) or not (isinstance(item, Leave) or parts(item)))


def _has_effect(item: Item, caught: frozenset[ExitKind] = frozenset()) -> bool:
    """Return whether an item holds an operation, or leaves a statement outside itself."""
    match item:
        case Leave(exit):
            return exit not in caught
        case Fork():
            return True
        case Loop(test, body, orelse):
            inside = caught | {ExitKind.BREAK, ExitKind.CONTINUE}
            return any(_has_effect(i, inside) for i in body) or any(_has_effect(i, caught) for i in (*test, *orelse))
        case _:
            bodies = [body for _, body in parts(item)]
            return not bodies or any(_has_effect(inner, caught) for body in bodies for inner in body)
