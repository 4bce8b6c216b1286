"""Search over an environment whose best answer is known, with every method."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify import MCTS, Beam, BestOf, search
from ramify.tree_search.types import NoScore, NothingProposed, SearchError, StepResult, Stopped, Turn
from tests.samples import sample
from tests.virtual_loop import run

OPEN: set[Digits] = set()


class Digits:
    """A number that grows by a digit a turn; it ends after three. Its score is how near it comes to `target`."""

    def __init__(self, target: int = 777, said: str = "") -> None:
        self.target, self.said = target, said
        self.given = not said
        OPEN.add(self)

    async def step(self, action: str) -> StepResult:
        await asyncio.sleep(0)
        if action == "bang":
            raise RuntimeError("the step failed")
        self.said += action
        far = abs(self.target - int(self.said.ljust(3, "0")))
        return StepResult(self.said, done=len(self.said) == 3, score=1 - far / 1000)

    async def fork(self, n: int) -> list[Digits]:
        return [Digits(self.target, self.said) for _ in range(n)]

    async def close(self) -> None:
        OPEN.discard(self)


async def all_digits(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
    return list("7531902468")[:n]


@pytest.fixture(autouse=True)
def nothing_is_left_open() -> Any:
    OPEN.clear()
    yield
    assert all(one.given for one in OPEN), "only the environments that were given stay open"


@pytest.mark.parametrize("method", [Beam(1), Beam(4), MCTS(2000), MCTS(2000, walk=False)])
async def test_the_best_state_is_found(method: Any) -> None:
    start = Digits(531)
    async with search(start, all_digits, width=10, depth=3, method=method) as found:
        assert found.best.environment.said == "531" and found.best.score == 1 and found.best.done
        assert [turn.action for turn in found.best.history] == ["5", "3", "1"]
        assert {start, found.best.environment} == OPEN
    assert start.said == "" and {start} == OPEN


async def test_a_score_that_is_no_number_is_a_dead_end() -> None:
    """NaN is neither better nor worse: the first state that had it stayed the best."""

    async def score(environment: Any, history: Sequence[Turn[str]]) -> float:
        return math.nan if history[0].action == "7" else 1.0

    class Unscored(Digits):
        async def step(self, action: str) -> StepResult:
            return StepResult(done=(await super().step(action)).done)

        async def fork(self, n: int) -> list[Digits]:
            return [Unscored(self.target, self.said) for _ in range(n)]

    async with search(Unscored(), all_digits, width=2, depth=1, score=score) as found:
        assert [turn.action for turn in found.best.history] == ["5"] and found.failed == 1
        assert "NaN" in str(found.errors[0])


async def test_best_of_follows_whole_histories() -> None:
    async with search(Digits(377), all_digits, width=4, depth=3, method=BestOf()) as found:
        assert (found.best.environment.said, found.steps) == ("377", 4 + 4 * 2)


async def test_equal_proposals_are_tried_once_unless_chance_decides() -> None:
    async def same(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return ["7"] * n

    async with search(Digits(), same, width=5, depth=3) as found:
        assert (found.steps, found.skipped) == (3, 12)
    async with search(Digits(), same, width=5, depth=1, repeat=True) as found:
        assert (found.steps, found.skipped) == (5, 0)


async def test_states_that_are_equal_are_explored_once() -> None:
    class Sum(Digits):
        async def step(self, action: str) -> StepResult:
            total = int(self.said or 0) + int(action)
            self.said = str(total)
            return StepResult(done=False, score=float(total))

        async def fork(self, n: int) -> list[Digits]:
            return [Sum(self.target, self.said) for _ in range(n)]

        async def state_key(self) -> Hashable:
            return self.said

    async def one_or_two(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return ["1", "2"]

    async with search(Sum(), one_or_two, width=2, depth=3, method=Beam(9), same=len) as found:
        assert (found.steps, found.merged, found.best.score) == (2 + 4 + 6, 1 + 2, 6.0)
    async with search(Sum(), one_or_two, width=2, depth=3, method=Beam(9)) as found:
        assert (found.steps, found.merged) == (2 + 4 + 8, 0), "histories that differ are different states"

    class Counted(Sum):
        async def fork(self, n: int) -> list[Digits]:
            return [Counted(self.target, self.said) for _ in range(n)]

        def history_key(self, history: Sequence[Turn[Any]]) -> Hashable:
            return len(history)

    async with search(Counted(), one_or_two, width=2, depth=3, method=Beam(9)) as found:
        assert (found.steps, found.merged) == (2 + 4 + 6, 1 + 2), "the environment says what of a history counts"


async def test_a_step_that_raises_is_a_dead_end() -> None:
    async def risky(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return ["bang", "7"]

    async with search(Digits(), risky, width=2, depth=3) as found:
        assert found.best.environment.said == "777" and found.failed == len(found.errors) == 3


def test_the_deadline_cancels_steps_and_keeps_the_best() -> None:
    class Slow(Digits):
        async def step(self, action: str) -> StepResult:
            if len(self.said) == 1:
                await asyncio.sleep(3600)
            return await super().step(action)

        async def fork(self, n: int) -> list[Digits]:
            return [Slow(self.target, self.said) for _ in range(n)]

    async def searching() -> None:
        clock = asyncio.get_running_loop().time
        async with search(Slow(), all_digits, width=2, depth=3, deadline_s=0.2, clock=clock) as found:
            assert (found.stopped, found.best.environment.said, found.best.done) == (Stopped.DEADLINE, "7", False)

    run(searching)


async def test_the_goal_ends_the_search() -> None:
    method = MCTS(simulations=10_000)
    async with search(Digits(), all_digits, width=10, depth=3, method=method, goal=0.99) as found:
        assert found.stopped is Stopped.GOAL and found.best.done and (found.best.score or 0) >= 0.99


async def test_reaching_the_goal_cancels_what_is_under_way() -> None:
    class Waiting(Digits):
        async def step(self, action: str) -> StepResult:
            if action == "5":
                await asyncio.sleep(3600)
            return StepResult(done=True, score=1.0)

        async def fork(self, n: int) -> list[Digits]:
            return [Waiting(self.target, self.said) for _ in range(n)]

    async with search(Waiting(), all_digits, width=2, goal=1.0) as found:
        assert (found.stopped, found.best.history[-1].action) == (Stopped.GOAL, "7")


def test_the_deadline_holds_for_the_policy() -> None:
    async def thinks(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        if history:
            await asyncio.sleep(3600)
        return ["7"]

    async def searching() -> None:
        async with search(Digits(), thinks, deadline_s=0.2, clock=asyncio.get_running_loop().time) as found:
            assert (found.stopped, found.best.environment.said) == (Stopped.DEADLINE, "7")

    run(searching)


@pytest.mark.parametrize("method", [Beam(3), BestOf(), MCTS(9, parallel=3)])
async def test_nothing_goes_on_after_a_policy_failed(method: Any) -> None:
    """Else the other branches would ask the model, and open environments that nobody closes."""
    waiting = asyncio.Event()

    async def fails(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        if history and history[0].action == "3":
            await waiting.wait()
            raise RuntimeError("the policy failed")
        if history:
            waiting.set()
            await asyncio.sleep(3600)
        return ["7", "5", "3"]

    before = asyncio.all_tasks()
    start = Digits()
    with pytest.raises(RuntimeError, match="the policy failed"):
        async with search(start, fails, width=3, depth=3, method=method):
            pass
    assert asyncio.all_tasks() == before and {start} == OPEN


async def test_a_state_whose_key_cannot_be_told_is_a_dead_end() -> None:
    class Broken(Digits):
        async def state_key(self) -> Hashable:
            if self.said.startswith("7"):
                raise RuntimeError("the step broke its world")
            return self.said

        async def fork(self, n: int) -> list[Digits]:
            return [Broken(self.target, self.said) for _ in range(n)]

    async with search(Broken(), all_digits, width=2, depth=1) as found:
        assert (found.best.environment.said, found.failed) == ("5", 1)


async def test_parallel_simulations_find_the_same_best() -> None:
    async with search(Digits(), all_digits, width=10, depth=3, method=MCTS(300, parallel=4), concurrency=3) as found:
        assert found.best.score == 1


@settings(max_examples=sample(10, 30), deadline=None)
@given(st.integers(0, 999), st.integers(1, 10), st.sampled_from([Beam(2), BestOf(), MCTS(20), MCTS(20, walk=False)]))
def test_every_method_closes_what_it_opened(target: int, width: int, method: Any) -> None:
    async def run() -> None:
        OPEN.clear()
        start = Digits(target)
        async with search(start, all_digits, width=width, depth=3, method=method) as found:
            assert found.best.environment in OPEN and found.best.score is not None
        assert {start} == OPEN

    asyncio.run(run())


async def test_errors_say_what_to_do() -> None:
    async def nothing(environment: Any, history: Sequence[Turn[str]], n: int) -> list[str]:
        return []

    with pytest.raises(NothingProposed, match="the policy proposed none"):
        async with search(Digits(), nothing):
            pass
    with pytest.raises(SearchError, match="at least 1"):
        async with search(Digits(), nothing, width=0):
            pass

    class Silent(Digits):
        async def step(self, action: str) -> StepResult:
            return StepResult(done=True)

        async def fork(self, n: int) -> list[Digits]:
            return [Silent() for _ in range(n)]

    OPEN.clear()
    with pytest.raises(NoScore, match="score="):
        async with search(Silent(), all_digits):
            pass
    OPEN.clear()


async def test_what_counts_as_the_same_is_refused_where_nothing_does() -> None:
    with pytest.raises(SearchError, match="leave out same="):
        async with search(Digits(1), all_digits, repeat=True, same=len):
            pass
