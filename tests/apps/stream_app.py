"""Workflows that read a model's answer while it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from ramify import interrupt, llm, step, workflow

STOPS = False  # whether `stop` raises: a process that ends here
MORE = False  # whether `first_words` reads on


@step(effect="pure")
async def stop() -> None:
    if STOPS:
        raise RuntimeError("ends here")


@step(effect="pure")
async def heard(piece: str) -> str:
    return piece.upper()


@workflow
async def spoken(question: str) -> AsyncIterator[str]:
    async for piece in llm.stream(question):
        yield piece


@workflow
def spoken_in_a_thread(question: str) -> Iterator[str]:
    yield from llm.stream(question)


@workflow
async def steps_between(question: str) -> list[str]:
    """Each piece starts an operation before the answer is complete."""
    answer = llm.stream(question, pace="1ms")
    said = [await heard(piece) async for piece in answer]
    await interrupt("go on?")
    return [*said, answer.result.text]


@workflow
async def first_words(question: str, words: int) -> list[str]:
    said = list[str]()
    async with llm.stream(question) as pieces:
        async for piece in pieces:
            said.append(piece)
            if len(said) == words and not MORE:
                break
    await stop()
    await interrupt("go on?")
    return said


@workflow
async def until_time_is_up(question: str) -> list[str]:
    said = list[str]()
    try:
        async with asyncio.timeout(0.3):
            async for piece in llm.stream(question):
                said.append(piece)
    except TimeoutError:
        said.append("…")
    await interrupt("go on?")
    return said


@workflow
async def or_else(question: str) -> list[str]:
    said = list[str]()
    try:
        async for piece in llm.stream(question):
            said.append(piece)
    except Exception as error:  # noqa: BLE001
        said.append(type(error).__name__)
    await interrupt("go on?")
    return said


SENT: list[str] = []


@step(effect="irreversible")
async def send(piece: str) -> None:
    SENT.append(piece)


@step
async def number() -> int:
    SENT.append("number")
    return len(SENT)


@workflow
async def sent_word_by_word(question: str) -> list[str]:
    said = list[str]()
    async with llm.stream(question) as pieces:
        async for piece in pieces:
            said.append(piece)
            await send(piece)
            if len(said) == 2:
                await stop()
    return said


@workflow
async def asked_then_failed(question: str) -> list[str]:
    said = list[str]()
    async with llm.stream(question) as pieces:
        async for piece in pieces:
            said.append(await heard(piece))
            if len(said) == 2:
                await stop()
    return said


@workflow
async def two_at_once(question: str) -> list[int]:
    async def one(name: str) -> int:
        async for _ in llm.stream(question + name):
            pass
        return await number()

    found = await asyncio.gather(one("a"), one("b"))
    await interrupt("go on?")
    return found


@step(effect="pure")
async def ask(question: str) -> str:
    return "|".join([piece async for piece in llm.stream(question)])


@workflow
async def in_a_step(question: str) -> str:
    return await ask(question)
