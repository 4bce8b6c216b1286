"""Fork a branch into copy-on-write worlds, run steps on them, and merge a branch back (`fork`, `map`, `adopt`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from ramify.compiler.plan import OpKind, PlanOp
from ramify.fork_engine.types import MergeStrategy, Resolver
from ramify.runtime.codec import codec
from ramify.runtime.codec.digests import digest_in_journal
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.effects.fence import compensate
from ramify.runtime.errors import BranchReleased
from ramify.runtime.execution.fork_arguments import HasStep, as_list, check_map, check_step, strategy_of
from ramify.runtime.execution.merges import Merge
from ramify.runtime.execution.placed_steps import most_at_once
from ramify.runtime.execution.run import RunScope, new_row, refuse_inside_step
from ramify.runtime.execution.steps import begin_step
from ramify.runtime.journal.cancelled_calls import cancelled_as_before, record_cancelled, until_cancelled_again
from ramify.runtime.records import BranchPath, EffectStatus, OpRecord
from ramify.runtime.user_code.call_sites import CallSite, call_site
from ramify.runtime.user_code.scope import entered
from ramify.runtime.user_code.worker_threads import run_loop_of_thread, start_on_run_loop
from ramify.runtime.worlds.pinned_seal import sealed as sealed_world
from ramify.runtime.worlds.world_pool import Branch as Line
from ramify.runtime.worlds.world_pool import StateOrigin

T = TypeVar("T")
R = TypeVar("R")

Strategy = Literal["fail", "ours", "theirs", "union"] | Resolver
"""How a merge resolves conflicts. `MergeStrategy` explains the words. A function (`Resolver`) is called for each
conflict, in a thread; it is called again if the merge has to be recomputed, so it must be deterministic."""


class Fork(Generic[T]):
    """`async with fork(items) as branches`: makes one branch per item, and releases the worlds at the end of the
    block. In a workflow that is not async: `with fork(items) as branches`."""

    def __init__(self, scope: RunScope, items: Sequence[T], site: CallSite) -> None:
        refuse_inside_step("fork() was called")
        self._scope = scope
        self._items = as_list(items, site)
        self._where = site.where
        self.op = scope.run.op(OpKind.FORK, site)
        encoded = Encoded(self._items, f"fork() at {site.where}: its items")
        self._digest = digest_in_journal(scope.run.journal, self._items, encoded)
        self._key = scope.run.journal.key(scope.branch.path, self.op.id, self._digest[:16])
        self._place = ""  # "op.place": prefix of the children's names, unique among the forks of this operation here
        self.base: Line = scope.branch  # the parent's state at which the children begin
        self._branches: list[Branch[T]] | None = None

    async def __aenter__(self) -> Branches[T]:
        if self._branches is not None:
            raise BranchReleased("a fork is entered once: call fork() again")
        run, parent = self._scope.run, self._scope.branch
        what, began = f"the fork at {self._where}", run.clock()
        cancelled = cancelled_as_before(
            run.journal,
            self._key,
            what,
            lambda: new_row(self._scope, OpKind.FORK, self.op.id, self._key, started_at=began),
        )
        async with cancelled, run.busy(), parent.lock:
            if parent.released:
                raise BranchReleased(f"branch {parent.path} was released, so it cannot be forked")
            row = run.journal.served(self._key, at=parent.snapshot)
            if row is not None and row.snapshot_out is not None:
                self._place = codec.decode(row.result_json or "{}")["place"]
                if row.snapshot_out != parent.snapshot.id:
                    sealed = await run.recovery.get(row.snapshot_out, "")
                    parent.stands(
                        StateOrigin(sealed, "what the fork sealed", refused="the plan seals nothing before it")
                    )
            else:
                self._place = f"{self.op.id}.{run.journal.next_place(parent.path, self.op.id)}"
                await self._perform(parent)
            self.base = replace(parent, made=list(parent.made), world=None)
            run.worlds.forked(self.op, self.base.snapshot.id, len(self._items))
        self._branches = []
        for index, item in enumerate(self._items):
            path = BranchPath(f"{parent.path}/{self._place}.{index}")
            line = Line(path, self.base.snapshot, parent.checkpoint, made=list(parent.made))
            self._branches.append(Branch(self, self._scope, line, index, item))
        return Branches(self._branches)

    if not TYPE_CHECKING:  # type checkers report these mistakes themselves

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{self._not_entered()} The code reads its {name!r}")

        def __iter__(self) -> NoReturn:
            raise TypeError(f"{self._not_entered()} The code iterates over it")

        def __await__(self) -> NoReturn:
            raise TypeError(f"{self._not_entered()} The code awaits it")

    def _not_entered(self) -> str:
        where = self.__dict__.get("_where", "")
        return f"{where}: fork() has no branches before it is entered: write `async with fork(...) as branches`."

    def __enter__(self) -> Branches[T]:
        return _wait_for("a fork was entered", self.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _wait_for("a fork was left", lambda: self.__aexit__(kind, error, trace))

    async def _perform(self, parent: Line) -> None:
        """Record the fork. It costs only this row: the children's worlds are mounted when a step first needs them."""
        run = self._scope.run
        begun = run.clock()
        before = parent.snapshot.id
        if parent.unsealed and parent.world is not None:
            # the plan has no seal before this fork, but children can only start from a sealed state
            sealed = await sealed_world(parent.world, run.reuse.pins)
            parent.stands(StateOrigin(sealed, "what the fork sealed", refused="the plan seals nothing before it"))
            parent.unsealed = False
        count = len(self._items)
        await run.journal.record(
            new_row(
                self._scope,
                OpKind.FORK,
                self.op.id,
                self._key,
                args_digest=self._digest,
                result_json=codec.encode({"children": count, "place": self._place}),
                result_digest=codec.digest(count),
                snapshot_in=before,
                snapshot_out=parent.snapshot.id,
                started_at=begun,
                summary=f"{count} branch{'' if count == 1 else 'es'}",
            )
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        began = self._scope.run.clock()
        try:
            async with self._scope.run.busy():
                await self._leave(kind)
        except asyncio.CancelledError as cancelled:
            if not _ends_early(kind):
                await record_cancelled(self._scope.run.journal, self._release_row(started_at=began), cancelled)
            raise

    async def _leave(self, kind: type[BaseException] | None) -> None:
        run, branches = self._scope.run, self._branches or []
        for branch in branches:
            branch.line.released = True
            await run.settle(branch.line.path)
            await run.worlds.drop(branch.line)
        run.calls.release([branch.line.path for branch in branches])
        await run.worlds.end_ready(self._scope.branch.path)
        run.worlds.released(self.base.snapshot.id, [branch.line.path for branch in branches])
        if run.places is not None:
            run.places.released([branch.line.path for branch in branches])
        if _ends_early(kind) or run.journal.stopped is not None:
            return  # a resume continues from here
        key, what = self._release_key, f"the end of the fork at {self._where}"
        for branch in branches:  # also after an earlier exit by an error: the resumed run may have done more since
            if not branch.adopted:
                await self._compensate(branch.line.path)
        async with run.journal.turns.of(key):
            await until_cancelled_again(run.journal, key, what)
            if run.journal.served(key) is None:
                await self._record_release()

    @property
    def _release_key(self) -> str:
        return f"{self._key}|RELEASE"

    def _release_row(self, **changes: Any) -> OpRecord:
        release = self._scope.run.plan.release_of(self.op) or self.op
        return new_row(self._scope, OpKind.RELEASE, release.id, self._release_key, **changes)

    async def _record_release(self) -> None:
        run, branches = self._scope.run, self._branches or []
        adopted = sum(b.adopted for b in branches)
        count = len(branches)
        await run.journal.record(
            self._release_row(
                result_json=codec.encode({"children": count, "place": self._place}),
                result_digest=codec.digest(count),
                started_at=run.clock(),
                summary=f"{count - adopted} released" + (f", {adopted} merged" if adopted else ""),
            )
        )

    async def _compensate(self, branch: BranchPath) -> None:
        """Undo the effects of a discarded branch, last first, if their steps have compensate hooks."""
        run = self._scope.run
        for effect in reversed(run.journal.effects_under(branch)):
            step = run.steps.get(effect.step)
            if effect.status is EffectStatus.DONE and step is not None and step.outside.compensate is not None:
                await compensate(run.journal, effect, step, run.plan, run.clock)


class Branch(Generic[T]):
    """One branch of a fork: its item, and the operations on its world."""

    def __init__(self, fork: Fork[T], scope: RunScope, line: Line, index: int, item: T) -> None:
        self._fork = fork
        self.parent = scope
        self.line = line
        self.index = index
        self.item = item
        self.adopted = False

    @property
    def path(self) -> str:
        return self.line.path

    def run(self, step: HasStep, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run a step on this branch."""
        return self.begin(step, call_site(), args, kwargs)

    def begin(
        self, step: HasStep, site: CallSite, args: tuple[Any, ...], kwargs: Mapping[str, Any] = MappingProxyType({})
    ) -> Awaitable[Any]:
        """Like `run`, for callers that took the user's call site themselves."""
        check_step(step, site)
        what = f"step {step.definition.name!r} was started on a branch"
        refuse_inside_step(what)
        op = self.parent.run.op(OpKind.RUN, site)
        return start_on_run_loop(what, lambda: begin_step(self.scope, step.definition, op, args, dict(kwargs)))

    def enter(self) -> Entered[T]:
        """`async with branch.enter()`: steps, forks and model calls in the block apply to this branch. In a workflow
        that is not async: `with branch.enter()`."""
        return Entered(self)

    @property
    def scope(self) -> RunScope:
        return replace(self.parent, branch=self.line)

    def adopt(self, *, strategy: Strategy = "fail") -> Awaitable[None]:
        """Three-way merge of this branch's world into the one that forked. Raises `MergeConflict`."""
        return self.merge_in(call_site(), strategy)

    def merge_in(self, site: CallSite, strategy: Strategy) -> Awaitable[None]:
        """Like `adopt`, for callers that took the user's call site themselves."""
        refuse_inside_step("adopt() was called")
        asked = strategy_of(strategy)
        op = self.parent.run.op(OpKind.MERGE, site)
        return start_on_run_loop("adopt() was called", lambda: self._adopt(op, asked))

    async def _adopt(self, op: PlanOp, strategy: MergeStrategy | Resolver) -> None:
        try:
            await Merge(self.parent, self._fork.base, self.line, strategy).perform(op)
        finally:  # even if it was cancelled when the parent had the changes
            self.adopted = self.adopted or self.line.path in self.parent.branch.adopted


class Entered(Generic[T]):
    """The context manager of `branch.enter()`: inside it the branch is the current one."""

    def __init__(self, branch: Branch[T]) -> None:
        self._branch = branch
        self._inside = entered(branch.scope)

    def __enter__(self) -> Branch[T]:
        self._inside.__enter__()
        return self._branch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, error, trace)

    async def __aenter__(self) -> Branch[T]:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _ends_early(kind: type[BaseException] | None) -> bool:
    """Whether a block is left because its task is cancelled or its process ends, not by the workflow's own way."""
    return kind is not None and not issubclass(kind, Exception)


def _wait_for(what: str, begin: Callable[[], Awaitable[R]]) -> R:
    """Do async work for a plain `with`, in a function that runs in its own thread."""
    if run_loop_of_thread() is None:
        raise TypeError(f"{what} by `with` in async code: write `async with`")
    return start_on_run_loop(what, begin)  # type: ignore[return-value]  # in a thread this is the result itself


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T, R]):
    """The result of a step on one branch. If the step raised, `error` is set and `value` raises it."""

    branch: Branch[T]
    _value: R | None = None
    error: Exception | None = None

    @property
    def item(self) -> T:
        return self.branch.item

    @property
    def index(self) -> int:
        return self.branch.index

    @property
    def value(self) -> R:
        """The step's result. Raises the step's error if it failed."""
        if self.error is not None:
            raise self.error
        return self._value  # type: ignore[return-value]  # None is a legal result

    def enter(self) -> Entered[T]:
        return self.branch.enter()

    def adopt(self, *, strategy: Strategy = "fail") -> Awaitable[None]:
        """Like `Branch.adopt`."""
        return self.branch.merge_in(call_site(), strategy)


class Outcomes(list[Outcome[T, R]]):
    """The outcomes of `map`, in the order of the items."""

    def best(self, key: Callable[[R], Any]) -> Outcome[T, R]:
        """Return the outcome with the greatest `key(value)`, the first of equals. Raises `ValueError` if all branches
        failed or there are none."""
        if not self:
            raise ValueError("there is no best branch: the fork was given no items")
        good = [o for o in self if o.error is None]
        if not good:
            raise ValueError(f"no branch has a result: all {len(self)} failed")
        return max(good, key=lambda o: key(o.value))


class Branches(Generic[T]):
    """The branches of a fork."""

    def __init__(self, branches: Sequence[Branch[T]]) -> None:
        self._branches = branches

    def __iter__(self) -> Iterator[Branch[T]]:
        return iter(self._branches)

    def __len__(self) -> int:
        return len(self._branches)

    def __getitem__(self, index: int) -> Branch[T]:
        return self._branches[index]

    def map(
        self,
        step: HasStep,
        *extra: Any,
        concurrency: int | None = None,
        errors: Literal["raise", "return"] = "raise",
        need: int | None = None,
    ) -> Awaitable[Outcomes[T, Any]]:
        """Run `step(item, *extra)` on every branch, `concurrency` at a time (default: one per core, or as many as the
        nodes of the fleet take).

        Waits for all branches. `errors="raise"` then raises the error of the first failed branch, by index.

        `need`: so many results suffice; the steps of the other branches are cancelled, or not begun, and have no
        outcome. A resume takes the same branches. If too many fail, all have one. Raises `ValueError` if it is not
        from 1 to the number of branches.
        """
        check_map(len(self), concurrency=concurrency, errors=errors, need=need)
        site = call_site()
        check_step(step, site)
        what = f"step {step.definition.name!r} was started on branches"
        refuse_inside_step(what)
        return start_on_run_loop(what, lambda: _map(self._branches, step, site, extra, concurrency, errors, need))


async def _map(
    branches: Sequence[Branch[T]],
    step: HasStep,
    site: CallSite,
    extra: tuple[Any, ...],
    concurrency: int | None,
    errors: str,
    need: int | None,
) -> Outcomes[T, Any]:
    if not branches:
        return Outcomes()
    places = branches[0].parent.run.places
    gate = asyncio.Semaphore(concurrency or most_at_once(places, step.definition))
    followers = branches[0].parent.run.journal.followers
    known = followers.known

    async def one(branch: Branch[T]) -> Outcome[T, Any]:
        async with gate:
            try:
                with followers.knowing(known):
                    begun = branch.begin(step, site, (branch.item, *extra))
                return Outcome(branch, await begun)
            except Exception as error:  # noqa: BLE001  returned, or raised below
                return Outcome(branch, error=error)

    tasks = [asyncio.create_task(one(branch)) for branch in branches]
    ended = await _until_enough(tasks, len(tasks) if need is None else need)
    outcomes = Outcomes(task.result() for task in tasks if task in ended)
    if need is not None and sum(outcome.error is None for outcome in outcomes) == need:
        return Outcomes(outcome for outcome in outcomes if outcome.error is None)
    if errors == "raise":
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
    return outcomes


async def _until_enough(
    tasks: Sequence[asyncio.Task[Outcome[T, Any]]], need: int
) -> set[asyncio.Task[Outcome[T, Any]]]:
    """Wait for so many results, cancel the other branches, and return those that have ended. Results come one at a
    time (`turns.py`), the next when this has seen the one before: so a resume cancels the same steps."""
    left, ended = set(tasks), set[asyncio.Task[Outcome[T, Any]]]()
    try:
        while left and sum(task.result().error is None for task in ended) < need:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            ended |= done
    finally:
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    return ended
