"""Workflows that reach outside: a receiver that remembers what it was sent."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from ramify import DidNotHappen, Happened, Sandbox, fork, idempotency_key, interrupt, llm, step, workflow

OUTBOX = Path(os.environ.get("EFFECTS_OUTBOX", "/nonexistent"))
"""The receiver: a line an effect, `key text`. Another process sees it too."""

STOP: list[str] = []
"""Where to hang ("before", "after") or raise ("raise") while the effect is done."""
UNDONE: list[tuple[str, Any]] = []


def sent() -> list[tuple[str, str]]:
    lines = OUTBOX.read_text().splitlines() if OUTBOX.exists() else []
    return [(key, text) for key, _, text in (line.partition(" ") for line in lines)]


def _receive(line: str) -> None:
    with OUTBOX.open("a") as outbox:
        outbox.write(line)


async def _post(text: str, *, honours_keys: bool = False) -> str:
    key = idempotency_key()
    await _maybe("before")
    if not (honours_keys and key in {k for k, _ in sent()}):
        _receive(f"{key} {text}\n")
    await _maybe("after")
    await _maybe(f"after {text}")
    return f"receipt for {text}"


async def _maybe(place: str) -> None:
    if place in STOP:
        STOP.append("hangs")
        if "EFFECTS_KILL" in os.environ:
            os.kill(os.getpid(), 9)
        await asyncio.sleep(3600)
    if place == "before" and "raise" in STOP:
        raise ConnectionError("refused")


@step(effect="irreversible")
async def post(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", idempotent=True)
async def post_with_key(text: str) -> str:
    return await _post(text, honours_keys=True)


@step(effect="irreversible")
async def post_and_build(sandbox: Sandbox, text: str) -> str:
    receipt = await _post(text)
    await sandbox.run("date +%s.%N > built", reuse=True, check=True)
    return receipt


@step(effect="irreversible")
async def post_and_write(sandbox: Sandbox, text: str) -> str:
    receipt = await _post(text)
    await sandbox.run("echo posted > done", check=True)
    return receipt


async def _look(key: str, text: str) -> Happened | DidNotHappen:
    if "away" in STOP:
        raise ConnectionError("the receiver is away")
    return Happened(f"receipt for {text}") if (key, text) in sent() else DidNotHappen()


@step(effect="irreversible", reconcile=_look)
async def post_and_ask(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", reconcile=_look, retry=1)
async def post_and_ask_twice(text: str) -> str:
    return await _post(text)


def _recall(key: str, result: str, text: str) -> None:
    if f"keep {text}" in STOP:
        raise ConnectionError("the receiver is away")
    UNDONE.append((text, result))


@step(effect="irreversible", compensate=_recall)
async def post_and_recall(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", idempotent=True, compensate=_recall)
async def post_with_key_and_recall(text: str) -> str:
    return await _post(text, honours_keys=True)


@step(effect="irreversible", in_fork="leave", compensate=_recall)
async def post_anywhere(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", in_fork="leave")
async def post_for_good(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", in_fork="recorded")
async def post_once(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", timeout=0.2, retry=2)
async def post_in_time(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", timeout=0.2)
async def post_within(text: str) -> str:
    return await _post(text)


@step(effect="irreversible", retry=1)
async def post_stubbornly(text: str) -> str:
    return await _post(text)


@step
async def write(sandbox: Sandbox, name: str) -> list[str]:
    await sandbox.run(["touch", name], check=True)
    return (await sandbox.run("ls")).stdout.split()


@workflow
async def plain(text: str) -> str:
    await write("first")
    receipt = await post(text)
    await write("second")
    return receipt


@workflow
async def with_key(text: str) -> str:
    return await post_with_key(text)


@workflow
async def asking(text: str) -> str:
    return await post_and_ask(text)


@step(effect="irreversible")
async def post_otherwise(text: str) -> str:
    _receive(f"{idempotency_key()} {text} by another way\n")
    return "by another way"


@workflow
async def otherwise(text: str) -> str:
    try:
        return await post_with_key(text)
    except Exception:  # noqa: BLE001
        return await post_otherwise(text)


@workflow
async def otherwise_than_asking(text: str) -> str:
    try:
        return await post_and_ask_twice(text)
    except Exception:  # noqa: BLE001
        return await post_otherwise(text)


@workflow
async def asking_twice(text: str) -> str:
    return await post_and_ask_twice(text)


@workflow
async def in_time(text: str) -> str:
    return await post_in_time(text)


@workflow
async def going_on_without_it(text: str) -> str:
    try:
        return await post_within(text)
    except TimeoutError:
        return "gone on"


@workflow
async def stubborn(text: str) -> str:
    return await post_stubbornly(text)


@workflow
async def taking_a_doubt_for_a_value(how: str) -> object:
    receipt: object = None
    if how == "gather":
        (receipt,) = await asyncio.gather(post(how), return_exceptions=True)
    else:
        try:
            receipt = await post(how)
        except Exception as error:  # noqa: BLE001
            receipt = error
    if isinstance(receipt, Exception):
        if how == "asking":
            return await interrupt("what now?")
        if how == "asking the model":
            return (await llm.chat("what now?")).text
        if how == "not sending":
            return "never mind"
        return await post_with_key("in its stead")
    return receipt


@workflow
async def a_doubt_on_one_of_two_branches(text: str) -> list[str]:
    async with fork(["a", text]) as branches:
        receipts = [await branches[0].run(post_anywhere, "a")]
        receipts.append(await branches[1].run(post_for_good, text))
        await branches[0].adopt()
    return receipts


@workflow
async def two_that_can_be_recalled() -> list[str]:
    await write("first")
    await post_and_recall("a")
    await write("second")
    await post_and_recall("b")
    return await write("third")


@workflow
async def one_under_a_key_that_can_be_recalled() -> str:
    await write("first")
    return await post_with_key_and_recall("a")


@workflow
async def on_branches() -> list[str]:
    async with fork(["a", "b"]) as branches:
        outcomes = await branches.map(post_anywhere)
        await branches[0].adopt()
    return [outcome.value for outcome in outcomes]


@step
async def need_luck(sandbox: Sandbox) -> None:
    if "bad luck" in STOP:
        raise ConnectionError("no luck")


@workflow
async def left_by_an_error(where: str) -> list[str]:
    receipts = []
    async with fork(["a"]) as branches:
        async with branches[0].enter(), fork(["b"]) as below:
            if where == "below":
                receipts.append(await below[0].run(post_anywhere, where))
            await below[0].run(write, "below")
            await below[0].adopt()
        if where == "on it":
            receipts.append(await branches[0].run(post_anywhere, where))
        await branches[0].run(need_luck)
        await branches[0].adopt()
    return receipts


@step(effect="pure")
async def pick() -> str:
    return "b" if "picky" in STOP else "a"


@workflow
async def another_way() -> str:
    await write("first")
    async with fork([1]) as branches:
        receipt: str = await branches[0].run(post_anywhere, await pick())
        await branches[0].adopt()
    return receipt


@workflow
async def the_recorded_one() -> list[str]:
    first = await post_once("a")
    async with fork([1]) as branches:
        again = await branches[0].run(post_once, "a")
    return [first, again]


def dynamic() -> Any:
    """A step that the compiler cannot see."""
    return globals()["post"]


@workflow
async def unseen_in_a_branch() -> str:
    async with fork([1]) as branches:
        receipt: str = await branches[0].run(dynamic(), "a")
    return receipt


@step
async def careless(text: str) -> str:
    return await post(text)


@workflow
async def hidden_in_a_step() -> str:
    return await careless("a")


@workflow
async def writing(text: str) -> str:
    return await post_and_write(text)


@workflow
async def building(text: str) -> str:
    return await post_and_build(text)
