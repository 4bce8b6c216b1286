"""A stage that needs only some of its answers has its turn with the last one that it needs."""

from __future__ import annotations

import asyncio
import time

import pytest

from ramify.runtime.journal.turns import Recorded, Turns


async def handed_out(turns: Turns, stage: tuple[str, ...], spare: int, other: str) -> list[str]:
    """The order in which a stage and another operation get their recorded results."""
    order: list[str] = []

    async def get(name: str, *keys: str, spare: int = 0) -> None:
        async with turns.of(*keys, spare=spare):
            pass
        order.append(name)

    await asyncio.gather(get("stage", *stage, spare=spare), get("other", other))
    return order


@pytest.mark.parametrize(
    ("rows", "spare", "order"),
    [
        ("abxc", 1, ["stage", "other"]),  # c came too late to be cancelled
        ("abxc", 0, ["other", "stage"]),
        ("axb", 1, ["other", "stage"]),
        ("bxa", 2, ["stage", "other"]),
    ],
)
async def test_a_stage_is_handed_out_with_the_last_answer_that_it_needs(
    rows: str, spare: int, order: list[str]
) -> None:
    turns = Turns(Recorded(key, seq, float(seq), float(seq)) for seq, key in enumerate(rows, start=1))
    assert await handed_out(turns, ("a", "b", "c"), spare, "x") == order


async def test_what_a_first_run_hands_out_is_what_its_replay_does() -> None:
    """The answers a and b suffice; x is recorded after them, and c, too late, after x."""
    turns, order = Turns(()), list[str]()
    numbered = asyncio.Event()

    async def get(name: str, *keys: str, spare: int = 0) -> None:
        async with turns.of(*keys, spare=spare):
            await numbered.wait()
        order.append(name)

    both = asyncio.gather(get("other", "x"), get("stage", "a", "b", "c", spare=1))
    await asyncio.sleep(0)
    for seq, key in enumerate("abxc", start=1):
        turns.numbered(key, seq)
    numbered.set()
    await both
    assert order == ["stage", "other"]


async def test_a_result_waits_for_a_call_that_a_timer_made_before_it() -> None:
    recorded = Recorded("slow", 1, 0.0, 1.0), Recorded("pay", 2, 0.5, 1.5, age_s=60.0, called_after=0)
    turns, order = Turns(recorded), list[str]()

    async def slow() -> None:
        async with turns.of("slow"):
            pass
        order.append("slow")

    async def pay() -> None:
        await asyncio.sleep(0.2)  # longer than the least patience
        order.append("called")
        async with turns.of("pay"):
            pass
        order.append("pay")

    await asyncio.gather(slow(), pay())
    assert order == ["called", "slow", "pay"]


async def test_what_an_effect_could_be_done_in_place_of_is_reached_before_it() -> None:
    turns, order = Turns([Recorded("main|refund", 1, 0.0, 1.0, is_effect=True)]), list[str]()

    async def ship() -> None:
        await turns.past_effects(lambda key: True)
        order.append("ship")

    async def refund() -> None:
        async with turns.of("main|refund"):
            pass
        order.append("refund")

    await asyncio.gather(ship(), refund())
    assert order == ["refund", "ship"]
    await turns.past_effects(lambda key: True)  # there is none left


async def test_an_effect_in_a_loop_is_waited_for_as_a_result_is_but_not_the_effects_between() -> None:
    names = "main|pay|one", "main|refund|one", "main|pay|two"
    turns = Turns(
        Recorded(key, seq, 1.0, 1.0, age_s=3600.0, is_effect=True) for seq, key in enumerate(names, start=1)
    )
    waiting = asyncio.create_task(turns.past_effects(lambda key: key.startswith("main|pay|"), hasty=True))
    while not turns.left_out:
        await asyncio.to_thread(time.sleep, 0.01)  # not a timer of the loop, which could lead to the effect
    assert turns.left_out == ["main|pay|one"]
    async with turns.of("main|refund|one"):
        pass
    await waiting
    assert turns.left_out == ["main|pay|one", "main|pay|two"]
