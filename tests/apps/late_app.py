"""A timeout that passes while the result of a call is being recorded, and a payment because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ramify import Sandbox, fork, interrupt, llm, step, workflow

PAID: list[str] = []
LIMITS: list[asyncio.Timeout] = []
PASSED = asyncio.Event()
CLOCK: Iterator[str] = iter(())
STOPS = False
PATIENCE_S = 60.0


@step
async def write(sandbox: Sandbox) -> str:
    (sandbox.path / "written").touch()
    return "in time"


@step
async def stop() -> None:
    if STOPS:
        raise OSError("not yet")


@step(effect="irreversible")
async def pay(why: str) -> str:
    PAID.append(why)
    return why


@workflow
async def of_a_step() -> str:
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            why = await write()
    except TimeoutError:
        why = "late"
    why = await pay(why)
    await stop()
    return why


@workflow
async def of_a_model_call() -> str:
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            why = (await llm.chat("?")).text
    except TimeoutError:
        why = "late"
    why = await pay(why)
    await stop()
    return why


@workflow
async def of_a_reader() -> str:
    said = list[str]()
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            async for piece in llm.stream("?", pace="200ms"):
                said.append(piece)
    except TimeoutError:
        said.append("late")
    why = await pay("".join(said))
    await stop()
    return why


@step
async def attempt(sandbox: Sandbox, name: str) -> str:
    (sandbox.path / name).touch()
    return name


@step
async def names(sandbox: Sandbox) -> str:
    return " ".join(sorted(path.name for path in sandbox.path.iterdir()))


@workflow
async def of_a_fork() -> str:
    why = "in time"
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            async with fork(["a", "b"]) as branches:
                await branches.map(attempt)
    except TimeoutError:
        why = "late"
    why = await pay(f"{await names()} {why}")
    await stop()
    return why


@workflow
async def of_a_merge() -> str:
    why = "in time"
    async with fork(["a", "b"]) as branches:
        outcomes = await branches.map(attempt)
        try:
            async with asyncio.timeout(PATIENCE_S) as limit:
                LIMITS.append(limit)
                await outcomes[0].adopt()
        except TimeoutError:
            why = "late"
    why = await pay(f"{await names()} {why}")
    await stop()
    return why


@workflow
async def of_a_release() -> str:
    why = "in time"
    try:
        async with asyncio.timeout(PATIENCE_S) as limit, fork(["a", "b"]) as branches:
            await branches.map(attempt)
            LIMITS.append(limit)
    except TimeoutError:
        why = "late"
    why = await pay(f"{await names()} {why}")
    await stop()
    return why


@workflow
async def of_a_stage() -> str:
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            why = " ".join(await llm.propose("?", n=2))
    except TimeoutError:
        why = "late"
    why = await pay(why)
    await stop()
    return why


@step(effect="pure")
async def after() -> str:
    await PASSED.wait()
    return "after"


@workflow
async def of_two_tasks() -> str:
    """The step ends because the fork's timeout has passed."""
    order = list[str]()

    async def forks() -> None:
        try:
            async with asyncio.timeout(PATIENCE_S) as limit:
                LIMITS.append(limit)
                async with fork(["a", "b"]) as branches:
                    await branches.map(attempt)
        except TimeoutError:
            order.append("late")
            PASSED.set()

    async def steps() -> None:
        order.append(await after())

    await asyncio.gather(forks(), steps())
    why = await pay(", ".join(order))
    await stop()
    return why


@workflow
async def of_a_question() -> str:
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            why = str(await interrupt("go on?"))
    except TimeoutError:
        why = "late"
    why = await pay(why)
    await stop()
    return why


@workflow
async def of_a_question_beside_a_step() -> str:
    """The question is cancelled while a step works. Nobody has answered it."""
    task = asyncio.create_task(after())
    try:
        async with asyncio.timeout(PATIENCE_S) as limit:
            LIMITS.append(limit)
            why = str(await interrupt("go on?"))
    except TimeoutError:
        why = "late"
    why = await pay(why)
    PASSED.set()
    await task
    await stop()
    return why


@workflow
async def of_a_shielded_step() -> str:
    """The step is not cancelled, and ends after the payment."""
    task = asyncio.create_task(after())
    try:
        why = await asyncio.wait_for(asyncio.shield(task), PATIENCE_S)
    except TimeoutError:
        why = "late"
    why = await pay(why)
    PASSED.set()
    await task
    await stop()
    return why


@workflow
async def of_a_clock() -> str:
    why = await pay(next(CLOCK))
    await stop()
    return why


@step(effect="irreversible")
async def refund() -> str:
    PAID.append("refund")
    return "refund"


@workflow
async def of_a_clock_before_another() -> None:
    await pay(next(CLOCK))
    await refund()
    await stop()


@workflow
async def of_another_way() -> str:
    why = await (pay("ship") if next(CLOCK) == "two" else refund())
    await stop()
    return why


@step(effect="irreversible")
async def charge(whom: str, number: str) -> str:
    PAID.append(number)
    return number


@workflow
async def of_a_clock_in_a_loop() -> None:
    for _ in range(2):
        await pay(next(CLOCK))
    await stop()


@workflow
async def of_a_clock_in_a_gather() -> None:
    async def one(whom: str) -> None:
        await after()
        await charge(whom, next(CLOCK))

    await asyncio.gather(one("ann"), one("bob"))
    await stop()


@workflow
async def of_some_at_once() -> None:
    """How many are under way at once is read when the workflow runs, as `os.cpu_count()` is."""
    slots = asyncio.Semaphore(int(next(CLOCK)))

    async def one(number: str) -> None:
        async with slots:
            if number == "one":
                await after()
            await pay(number)
        await stop()

    await asyncio.gather(one("one"), one("two"))
