"""The gallery's functions under `@entrypoint`, and their tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.types import interrupt

from tests.runtime.langgraph.differential.pieces import RETRY, line, say
from tests.runtime.langgraph.differential.shapes import touch


def flow() -> Any:
    @task
    def double(n: int) -> int:
        touch(f"double{n}")
        return 2 * n

    tries: list[int] = []

    @task(retry_policy=RETRY)
    def flaky(n: int) -> int:
        tries.append(n)
        if len(tries) == 1:
            raise OSError("again")
        return n

    @entrypoint()
    def whole(given: int, *, previous: int | None = None) -> Any:
        both = [double(given), double(given + 1)]
        total = sum(one.result() for one in both) + flaky(1).result()
        answer = interrupt({"total": total})
        get_stream_writer()({"answer": answer})
        return entrypoint.final(value=(total, answer, previous), save=total)

    return whole


def async_flow() -> Any:
    @task
    async def double(n: int) -> int:
        touch(f"double{n}")
        if n == 3:
            interrupt("three?")
        return 2 * n

    @entrypoint()
    async def whole(given: int, *, previous: Any = None) -> Any:
        inner = line(("x", say("x"))).compile()
        return [*await asyncio.gather(*(double(given + i) for i in range(3))), (await inner.ainvoke({"log": []}))]

    return whole


def failing_flow() -> Any:
    @task
    def fails(n: int) -> int:
        raise ValueError("no")

    @entrypoint()
    def whole(given: int) -> Any:
        try:
            fails(given).result()
        except ValueError:
            touch("caught")
        return fails(given).result()

    return whole
