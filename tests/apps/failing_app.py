"""Workflows that go on after a failure: whatever they pay, they pay once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx

from ramify import idempotency_key, llm, step, workflow
from ramify.serving.client import LLMClient
from ramify.serving.errors import LLMError
from ramify.serving.testing import Fault, ScriptedModel

LOG = Path(__file__)  # tests set it: lines of what was done outside
RESUMED = False  # tests set it: in the process that resumes a run, whatever failed before would work


def log(text: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{text}\n")


def done(text: str) -> int:
    return sum(line.startswith(text) for line in LOG.read_text().splitlines())


def client() -> LLMClient:
    """A model that fails until the run is resumed."""

    async def at_once(_: float) -> None: ...

    faults = () if RESUMED else [Fault.ERROR_500] * 99
    return LLMClient("http://model.test/v1", transport=ScriptedModel(lambda _: "good", faults=faults), sleep=at_once)


class Declined(Exception):
    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"declined: {code}")


@step(effect="irreversible", idempotent=True)
async def pay(through: str) -> str:
    if through == "broken" and not RESUMED:
        raise Declined(402)
    if through == "http" and not RESUMED:
        answer = httpx.Response(402, request=httpx.Request("POST", "http://u:p@bank/pay?secret=1"), text="poor")
        answer.raise_for_status()
    if through == "third" and not RESUMED:
        log("tried")
        if done("tried") < 3:
            raise Declined(done("tried"))
    log(f"paid {idempotency_key()} {through}")
    return through


@step
async def note(text: str) -> str:
    log(f"note {text}")
    return text


@step(effect="pure")
async def check(seconds: float) -> str:
    await asyncio.sleep(0 if RESUMED else seconds)
    return "checked"


@step(effect="pure", timeout=0.05)
async def check_in_time() -> str:
    await asyncio.sleep(0 if RESUMED else 5)
    return "checked"


async def in_except() -> str:
    try:
        return await pay("broken")
    except Declined as error:
        assert error.code == 402
        return await pay("other")


async def of_a_client() -> str:
    try:
        return await pay("http")
    except httpx.HTTPStatusError as error:
        assert (error.response.status_code, error.response.text) == (402, "poor")
        return await pay("other")


async def in_a_loop() -> str:
    for _ in range(3):
        try:
            return await pay("third")
        except Declined:
            await note("again")
    raise RuntimeError("all declined")


async def suppressed() -> str:
    paid = ""
    with suppress(Declined):
        paid = await pay("broken")
    return paid or await pay("other")


async def gathered() -> str:
    paid, *_ = await asyncio.gather(pay("broken"), note("a"), note("b"), return_exceptions=True)
    return await pay("other") if isinstance(paid, BaseException) else str(paid)


async def waited_for() -> str:
    task = asyncio.ensure_future(pay("broken"))
    await asyncio.wait([task, asyncio.ensure_future(note("a"))])
    return await pay("other") if task.exception() else task.result()


async def grouped() -> str:
    task: asyncio.Task[str] | None = None
    with suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(pay("broken"))
            group.create_task(note("a"))
        return task.result()
    return await pay("other")


async def late_step() -> str:
    try:
        return await pay(await check_in_time())
    except TimeoutError:
        return await pay("other")


async def of_a_model() -> str:
    try:
        said = (await llm.chat("through whom?")).text
    except LLMError:
        return await pay("other")
    return await pay(said)


SHAPES: dict[str, Callable[[], Awaitable[str]]] = {
    shape.__name__: shape
    for shape in (in_except, of_a_client, in_a_loop, suppressed, gathered, waited_for, grouped, late_step, of_a_model)
}


@workflow
async def flow(shape: str) -> str:
    return await SHAPES[shape]()


@workflow
async def gives_up(shape: str) -> str:
    """Ends with a failure, in one of several ways."""
    await note("before")
    if shape == "raised":
        return await pay("broken")
    if shape == "wrapped":
        try:
            return await pay("broken")
        except Declined as error:
            await note("after")
            raise RuntimeError("no money") from error
    if shape == "grouped":
        async with asyncio.TaskGroup() as group:
            paid = group.create_task(pay("broken"))
            group.create_task(note("beside"))
        return paid.result()
    if shape == "collected":
        outcomes = await asyncio.gather(*map(_two, ("broken", "good", "fine")), return_exceptions=True)
        await note("after")
        if errors := [one for one in outcomes if isinstance(one, Exception)]:
            raise ExceptionGroup("some were not paid", errors)
        return str(outcomes[0])
    if shape == "fallback":
        try:
            return await pay("broken")
        except Declined:
            await pay("other")
            raise
    for _ in range(2):
        with suppress(Declined):
            return await pay("broken")
    raise RuntimeError("all declined")


async def _two(through: str) -> str:
    """Pays, and confirms it: a customer's two steps."""
    await pay(through)
    return await pay(f"confirmed {through}")
