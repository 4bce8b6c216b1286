"""Workflows that go on after a failure: whatever they pay, they pay once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx

from ramify import Sandbox, fork, idempotency_key, llm, step, workflow
from ramify.serving.client import LLMClient
from ramify.serving.errors import LLMError
from ramify.serving.testing import ScriptedModel

LOG = Path(__file__)  # tests set it: lines of what was done outside
RESUMED = False  # tests set it: in the process that resumes a run, whatever failed before would work


def log(text: str) -> None:
    with LOG.open("a") as file:
        file.write(f"{text}\n")


def done(text: str) -> int:
    return sum(line.startswith(text) for line in LOG.read_text().splitlines())


class Model(ScriptedModel):
    """It refuses one prompt and is slow with another, until the run is resumed."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        if b"whom" in body and not RESUMED:
            raise httpx.ConnectError("refused")
        if b"slow" in body and not RESUMED:
            await asyncio.sleep(5)
        return await super().handle_async_request(request)


def client() -> LLMClient:
    async def at_once(_: float) -> None: ...

    return LLMClient("http://model.test/v1", transport=Model(lambda _: "good"), sleep=at_once)


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


@step
async def build(name: str, sandbox: Sandbox) -> list[str]:
    (sandbox.path / name).touch()
    if name == "fragile" and not RESUMED:
        raise OSError("it broke")
    return sorted(path.name for path in sandbox.path.iterdir())


@step(effect="irreversible", idempotent=True)
async def ship(name: str, sandbox: Sandbox) -> str:
    assert (sandbox.path / "fragile").exists() == (name == "fragile"), "a failed step leaves no files"
    (sandbox.path / "shipped").touch()
    log(f"paid {idempotency_key()} {name} {sorted(path.name for path in sandbox.path.iterdir())}")
    return name


async def in_a_world() -> str:
    """The failed step's files are gone, in each process."""
    await build("base")
    try:
        await build("fragile")
    except OSError:
        await build("other")
        return await ship("other")
    return await ship("fragile")


async def in_branches() -> str:
    async with fork(["fragile", "sound"]) as branches:
        outcomes = await branches.map(build, errors="return")
        good = [outcome for outcome in outcomes if outcome.error is None]
        await good[0].adopt()
    return await ship(good[0].item)


async def in_time() -> str:
    """Whether the check is in time decides through whom it pays."""
    try:
        async with asyncio.timeout(0.2):
            await check(5)
    except TimeoutError:
        return await pay("other")
    return await pay("good")


async def waited_for_in_time() -> str:
    try:
        await asyncio.wait_for(asyncio.gather(note("a"), check(5)), 0.2)
    except TimeoutError:
        return await pay("other")
    return await pay("good")


async def the_first_of_two() -> str:
    first, other = asyncio.ensure_future(check(0)), asyncio.ensure_future(check(5.0))
    _, left = await asyncio.wait([first, other], return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.wait([first, other])
    return await pay("other" if other.cancelled() else "good")


async def cancelled_with_another() -> str:
    """A task of a group is cancelled, because another one failed."""
    checks, paid = asyncio.ensure_future(check(5)), asyncio.ensure_future(pay("broken"))
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_result_of(checks))
            group.create_task(_result_of(paid))
    except BaseExceptionGroup:
        return await pay("other" if checks.cancelled() else "good")
    return paid.result()


async def _result_of(task: asyncio.Task[str]) -> str:
    return await task


async def a_model_in_time() -> str:
    try:
        async with asyncio.timeout(0.2):
            await llm.chat("slow?")
    except TimeoutError:
        return await pay("other")
    return await pay("good")


SHAPES: dict[str, Callable[[], Awaitable[str]]] = {
    shape.__name__: shape
    for shape in (  # those that `make test` takes come first
        in_except,
        of_a_client,
        in_a_loop,
        gathered,
        of_a_model,
        in_time,
        the_first_of_two,
        in_a_world,
        suppressed,
        waited_for,
        grouped,
        late_step,
        waited_for_in_time,
        cancelled_with_another,
        a_model_in_time,
        in_branches,
    )
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
