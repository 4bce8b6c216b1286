"""The work that every method of search shares: fork a state, step each copy, score it, and drop what is known."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from ramify.tree_search.types import E, HistoryKeyed, Keyed, Node, NoScore, Policy, Score, StepResult, Stopped, Turn

T = TypeVar("T")


class Expansion(Generic[E]):
    """Expands nodes, counts what was done, and owns every environment but the root's. An async context manager:
    leaving it closes what is open, but the best state's environment, which the caller closes."""

    def __init__(
        self,
        root: E,
        policy: Policy[E],
        *,
        score: Score[E] | None,
        concurrency: int,
        repeat: bool,
        same: Callable[[Sequence[Turn[Any]]], Hashable] | None,
        goal: float | None,
        ends_at: float | None,
        clock: Callable[[], float],
    ) -> None:
        """The arguments are those of `search`; `ends_at` is the deadline on `clock`."""
        self.root: Node[E] = Node(root)
        self.steps = self.skipped = self.merged = 0
        self.errors: list[Exception] = []
        self.stopped = Stopped.COMPLETE
        self.best: Node[E] | None = None
        self._goal_reached = asyncio.Event()
        self._policy, self._score = policy, score
        self._slots = asyncio.Semaphore(concurrency)
        self._repeat, self._same, self._goal = repeat, same, goal
        self._ends_at, self._clock = ends_at, clock
        self._open: set[Node[E]] = set()
        self._unwanted: set[Node[E]] = set()  # closed by the method while they were the best
        self._seen: set[Hashable] = set()

    async def __aenter__(self) -> Expansion[E]:
        return self

    async def __aexit__(self, *error: object) -> None:
        best, self.best = self.best, None
        await asyncio.gather(*(self.close(node) for node in list(self._open) if node is not best))
        self.best = best
        if error[0] is not None and best is not None:
            await best.environment.close()

    @property
    def ended(self) -> bool:
        """Whether the search must stop: the deadline passed, or a state reached the goal."""
        if self.stopped is Stopped.COMPLETE and self._ends_at is not None and self._clock() >= self._ends_at:
            self.stopped = Stopped.DEADLINE
        return self.stopped is not Stopped.COMPLETE

    async def expand(self, node: Node[E], n: int, *, new_only: bool = True) -> list[Node[E]]:
        """Try up to `n` next actions at a node, all at once, and return the new states.

        An action that the policy proposes twice is tried once, unless actions repeat. A step that raises is counted,
        and its state dropped. new_only: a state that was seen is dropped, too.
        """
        if node.done or self.ended:
            return []
        return await self.try_actions(node, await self.propose(node, n), new_only=new_only)

    async def propose(self, node: Node[E], n: int) -> list[Any]:
        """Up to `n` next actions at a node, equal ones once; none if the search ends before the policy answers."""
        asking = asyncio.ensure_future(self._policy(node.environment, node.history, n))
        try:
            given = [action for answer in await self._until_end([asking]) for action in answer][:n]
        finally:
            await _cancel([asking])
        if self._repeat:
            return given
        actions: list[Any] = []
        for action in given:
            if action not in actions:
                actions.append(action)
        self.skipped += len(given) - len(actions)
        return actions

    async def try_actions(self, node: Node[E], actions: Sequence[Any], *, new_only: bool = True) -> list[Node[E]]:
        """Step one fork of the node's state by each action."""
        if not actions or self.ended:
            return []
        forks = await node.environment.fork(len(actions))
        children: list[Node[E]] = [Node(fork, node.history, parent=node) for fork in forks]
        self._open.update(children)
        tasks = [
            asyncio.create_task(self._step(child, action, new_only))
            for child, action in zip(children, actions, strict=True)
        ]
        try:
            kept = [child for child in await self._until_end(tasks) if child is not None]
        finally:
            await _cancel(tasks)
            lost = [child for child, task in zip(children, tasks, strict=True) if task.cancelled()]
            await asyncio.gather(*(self.close(child) for child in lost))
        node.children += kept
        return kept

    async def copies(self, node: Node[E], n: int) -> list[Node[E]]:
        """Fork a node's state without a step."""
        forks = await node.environment.fork(n)
        made = [Node(fork, node.history, node.score, parent=node.parent) for fork in forks]
        self._open.update(made)
        return made

    async def close(self, node: Node[E]) -> None:
        """Close a node's environment, unless it is the root's; the best one's once another is better."""
        if node is self.best:
            self._unwanted.add(node)
        elif node in self._open:
            self._open.discard(node)
            await node.environment.close()

    async def _until_end(self, tasks: Sequence[asyncio.Future[T]]) -> list[T]:
        """The results of the tasks that end before the deadline, and before a state reaches the goal."""
        left = None if self._ends_at is None else max(self._ends_at - self._clock(), 0)
        all_of_them = asyncio.ensure_future(asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))
        goal = asyncio.ensure_future(self._goal_reached.wait())
        try:
            over, _ = await asyncio.wait([all_of_them, goal], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([all_of_them, goal])
        if not over and self.stopped is Stopped.COMPLETE:
            self.stopped = Stopped.DEADLINE
        return [task.result() for task in tasks if task.done()]

    async def _step(self, node: Node[E], action: Any, new_only: bool) -> Node[E] | None:
        async with self._slots:
            if self.ended:
                await self.close(node)
                return None
            self.steps += 1
            try:
                result = await node.environment.step(action)
                node.history = (*node.history, Turn(action, result))
                node.done = result.done
                node.score = _number(await self._value(node, result))
                known = new_only and await self._is_known(node)
            except NoScore:
                raise
            except Exception as error:  # noqa: BLE001  one bad turn is a dead end, not the end of the search
                self.errors.append(error)
                await self.close(node)
                return None
        if known:
            self.merged += 1
            await self.close(node)
            return None
        await self._remember(node)
        return node

    async def _value(self, node: Node[E], result: StepResult) -> float | None:
        if result.score is not None:
            return result.score
        if self._score is not None:
            return await self._score(node.environment, node.history)
        if result.done:
            raise NoScore("the environment ended a turn without a score: pass `score=` to `ramify.search`")
        return None

    async def _is_known(self, node: Node[E]) -> bool:
        environment: object = node.environment
        if self._repeat or not isinstance(environment, Keyed):
            return False
        key = await environment.state_key()
        if key is None:
            return False
        said = self._same(node.history) if self._same is not None else _said(environment, node.history)
        known = (said, key) in self._seen
        self._seen.add((said, key))
        return known

    async def _remember(self, node: Node[E]) -> None:
        if node.score is None:
            return
        before, rank = self.best, (node.done, node.score)
        if before is None or before.score is None or rank > (before.done, before.score):
            self.best = node
            if before is not None and before in self._unwanted:
                await self.close(before)
        if self._goal is not None and node.done and node.score >= self._goal and not self.ended:
            self.stopped = Stopped.GOAL
            self._goal_reached.set()


def _number(score: float | None) -> float | None:
    """The score, which can be compared. Raises `ValueError` for NaN: nothing would be better, or worse."""
    if score is not None and math.isnan(score):
        raise ValueError("the score of a state is NaN, which cannot be compared with others")
    return score


def _said(environment: object, history: Sequence[Turn[Any]]) -> Hashable:
    """What of a history counts when two states are compared, by the environment."""
    return environment.history_key(history) if isinstance(environment, HistoryKeyed) else repr(history)


async def together(*works: Awaitable[T]) -> list[T]:
    """Await all. If one raises, the others are cancelled and awaited first: nothing of a search outlives it."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
