"""`search`: the best state that an agent can reach from here, found by forking its state."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ramify.tree_search.errors import NothingProposed, SearchError
from ramify.tree_search.expansion import Expansion
from ramify.tree_search.methods import Beam, Method
from ramify.tree_search.types import E, Policy, Score, SearchResult, Turn


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
    goal: stop when a finished state has this score.
    deadline_s: seconds; the best state so far is then the result, and steps under way are cancelled.
    concurrency: steps at a time.
    repeat: try an action again that was tried at the same state; for environments with chance in them.
    same: what of a history counts when two states are compared, besides the environment's own `state_key`. By default
        the environment's `history_key`, or all of it; `lambda history: None` if only the environment matters.

    Raises `NothingProposed`, `NoScore`, and whatever the policy raises.
    """
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
