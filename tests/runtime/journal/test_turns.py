"""A stage that needs only some of its answers has its turn with the last one that it needs."""

from __future__ import annotations

import asyncio

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
