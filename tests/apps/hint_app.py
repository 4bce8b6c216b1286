"""Workflows whose first model call has a text that is known ahead, behind a step that waits for a test."""

from __future__ import annotations

import asyncio

from ramify import Sandbox, llm, step, workflow

SYSTEM = "be brief, be exact, and name your sources " * 12

WAITS: list[asyncio.Event] = []


@step
async def prepare(sandbox: Sandbox) -> None:
    (sandbox.path / "prepared").write_text("yes")
    for event in WAITS:
        await event.wait()


@workflow
async def named() -> str:
    await prepare()
    return (await llm.chat("what?", system=SYSTEM)).text


@workflow
async def literal() -> str:
    await prepare()
    return (
        await llm.chat(
            "what?",
            system="be brief, be exact, and name your sources; be brief, be exact, and name your sources; be brief, "
            "be exact, and name your sources; be brief, be exact, and name your sources; be brief, be exact, "
            "and name your sources; be brief, be exact, and name your sources; be brief, be exact, and name y"
            "our sources; be brief, be exact, and name your sources; be brief, be exact, and name your source"
            "s; be brief, be exact, and name your sources; be brief, be exact, and name your sources; be brie"
            "f, be exact, and name your sources;",
        )
    ).text


@step(effect="pure")
async def asks() -> str:
    return (await llm.chat("what?", system=SYSTEM)).text


@workflow
async def in_a_step() -> str:
    await prepare()
    return await asks()


@workflow
async def fails() -> str:
    await prepare()
    said = (await llm.chat("what?", system=SYSTEM)).text
    if "again" not in said:
        raise ValueError(said)
    return said
