"""`search`: the best state that an agent can reach from here, found by forking its state; and its methods: best of
n, beam search, and Monte Carlo tree search."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramify.tree_search.expansion import Expansion, together
from ramify.tree_search.types import E, Node, NothingProposed, Policy, Score, SearchError, SearchResult, Turn


class Method(Protocol):
    """Decides which states a search expands. `width`: actions a state; `depth`: turns a history."""

    async def run(self, expansion: Expansion[Any], width: int, depth: int) -> None: ...


@dataclass(frozen=True, slots=True)
class BestOf:
    """`width` whole histories that share nothing but the start. The best last state wins."""

    async def run(self, expansion: Expansion[E], width: int, depth: int) -> None:
        first = await expansion.expand(expansion.root, width)
        await together(*(walk(expansion, node, depth) for node in first))


@dataclass(frozen=True, slots=True)
class Beam:
    """Keep the best `keep` states of each depth, and expand each `width` ways. A state without a score ranks last."""

    keep: int = 2

    async def run(self, expansion: Expansion[E], width: int, depth: int) -> None:
        level = [expansion.root]
        while level and level[0].depth < depth and not expansion.ended:
            grown = await together(*(expansion.expand(node, width) for node in level))
            await together(*(expansion.close(node) for node in level))
            found = sorted((node for nodes in grown for node in nodes if not node.done), key=_rank, reverse=True)
            ended = [node for nodes in grown for node in nodes if node.done]
            level = found[: self.keep]
            await together(*(expansion.close(node) for node in [*found[self.keep :], *ended]))


@dataclass(slots=True)
class MCTS:
    """Monte Carlo tree search: `simulations` times, descend by UCT, add one state, walk to an end, and book the score
    on the way up (Kocsis and Szepesvári 2006). Scores should lie between 0 and 1.

    exploration: the constant of UCT. walk: follow the policy's first choice to an end; else the new state's own score
    counts, which then needs one. parallel: simulations at a time, kept apart by a virtual loss.
    """

    simulations: int = 32
    exploration: float = math.sqrt(2)
    walk: bool = True
    parallel: int = 1
    _visits: dict[Node[Any], int] = field(default_factory=dict, init=False, repr=False)
    _totals: dict[Node[Any], float] = field(default_factory=dict, init=False, repr=False)
    _untried: dict[Node[Any], list[Any]] = field(default_factory=dict, init=False, repr=False)
    _locks: dict[Node[Any], asyncio.Lock] = field(default_factory=dict, init=False, repr=False)

    async def run(self, expansion: Expansion[E], width: int, depth: int) -> None:
        for table in (self._visits, self._totals, self._untried, self._locks):
            table.clear()
        left = iter(range(self.simulations))

        async def simulate() -> None:
            for _ in left:
                if expansion.ended or not await self._simulate(expansion, width, depth):
                    return

        await together(*(simulate() for _ in range(self.parallel)))

    async def _simulate(self, expansion: Expansion[E], width: int, depth: int) -> bool:
        """One simulation. False if the tree is exhausted."""
        node, path = expansion.root, [expansion.root]
        while True:
            new = await self._add(expansion, node, width) if node.depth < depth and not node.done else None
            if new is not None:
                path.append(new)
                break
            alive = [child for child in node.children if not self._is_exhausted(child, depth)]
            if not alive:
                self._untried.setdefault(node, [])
                if node is expansion.root:
                    return False
                break
            node = max(alive, key=lambda child: self._uct(child, path[-1]))
            path.append(node)
        for passed in path:
            self._visits[passed] = self._visits.get(passed, 0) + 1
        value = await self._value_of(expansion, path[-1], depth)
        for passed in path:
            self._totals[passed] = self._totals.get(passed, 0.0) + value
        return True

    async def _add(self, expansion: Expansion[E], node: Node[E], width: int) -> Node[E] | None:
        async with self._locks.setdefault(node, asyncio.Lock()):
            if node not in self._untried:
                self._untried[node] = await expansion.propose(node, width)
            while self._untried[node] and not expansion.ended:
                made = await expansion.try_actions(node, [self._untried[node].pop(0)])
                if made:
                    return made[0]
        return None

    async def _value_of(self, expansion: Expansion[E], node: Node[E], depth: int) -> float:
        if node.done or not self.walk or node.depth >= depth:
            return node.score or 0.0
        (copy,) = await expansion.copies(node, 1)
        last = await walk(expansion, copy, depth, new_only=False)  # the tree may still reach what the walk passes
        return last.score or 0.0

    def _is_exhausted(self, node: Node[E], depth: int) -> bool:
        if node.done or node.depth >= depth:
            return True
        if self._untried.get(node) is None or self._untried[node]:
            return False
        return all(self._is_exhausted(child, depth) for child in node.children)

    def _uct(self, node: Node[E], parent: Node[E]) -> float:
        visits = self._visits.get(node, 0)
        if not visits:
            return math.inf
        mean = self._totals.get(node, 0.0) / visits
        return mean + self.exploration * math.sqrt(math.log(max(self._visits.get(parent, 1), 1)) / visits)


async def walk(expansion: Expansion[E], node: Node[E], depth: int, *, new_only: bool = True) -> Node[E]:
    """Follow the policy's first choice from a state to an end, closing each state behind it; return the last one."""
    while not node.done and node.depth < depth:
        grown = await expansion.expand(node, 1, new_only=new_only)
        if not grown:
            break
        await expansion.close(node)
        node = grown[0]
    await expansion.close(node)
    return node


def _rank(node: Node[E]) -> float:
    return -math.inf if node.score is None else node.score


@asynccontextmanager
async def search(
    environment: E,
    policy: Policy[E],
    *,
    width: int = 4,
    depth: int = 16,
    method: Method | None = None,
    score: Score[E] | None = None,
    goal: float | None = None,
    deadline_s: float | None = None,
    concurrency: int = 8,
    repeat: bool = False,
    same: Callable[[Sequence[Turn[Any]]], Hashable] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[SearchResult[E]]:
    """Search an agent's next turns, and yield what was found. Use it as `async with search(…) as found`: leaving the
    block closes `found.best.environment`. The given environment is not changed, and stays open.

    environment: the state to start from; it can be forked (`Environment`).
    policy: proposes next actions: `await policy(environment, history, n)`.
    width: actions tried at a state. depth: the longest history, in turns.
    method: `Beam()` (default), `BestOf()` or `MCTS()`.
    score: the value of a state, where a step's result has none. Higher is better.
    goal: stop when a finished state has this score; what is under way is cancelled.
    deadline_s: seconds; the best state so far is then the result, and what is under way is cancelled.
    concurrency: steps at a time.
    repeat: try an action again that was tried at the same state; for environments with chance in them. No two states
        then count as equal.
    same: what of a history counts when two states are compared, besides the environment's own `state_key`. By default
        the environment's `history_key`, or all of it; `lambda history: None` if only the environment matters.

    Raises `NothingProposed`, `NoScore`, and whatever the policy raises.
    """
    if repeat and same is not None:
        raise SearchError("with repeat=True no two states count as the same: leave out same=")
    if width < 1 or depth < 1 or concurrency < 1:
        raise SearchError(f"width, depth and concurrency must be at least 1, not {width}, {depth}, {concurrency}")
    began = clock()
    expansion = Expansion(
        environment,
        policy,
        score=score,
        concurrency=concurrency,
        repeat=repeat,
        same=same,
        goal=goal,
        ends_at=None if deadline_s is None else began + deadline_s,
        clock=clock,
    )
    async with expansion:
        await (method or Beam()).run(expansion, width, depth)
    best = expansion.best
    if best is None:
        raise _why_nothing(expansion)
    try:
        yield SearchResult(
            best=best,
            steps=expansion.steps,
            skipped=expansion.skipped,
            merged=expansion.merged,
            failed=len(expansion.errors),
            stopped=expansion.stopped,
            seconds=clock() - began,
            errors=expansion.errors,
        )
    finally:
        await best.environment.close()


def _why_nothing(expansion: Expansion[Any]) -> SearchError:
    if not expansion.steps:
        return NothingProposed(f"no action was tried ({expansion.stopped}): the policy proposed none, or had no time")
    told = f"no state has a score after {expansion.steps} steps ({expansion.stopped})"
    if expansion.errors:
        told += f"; {len(expansion.errors)} steps failed, the first with {expansion.errors[0]!r}"
    return SearchError(told)
