"""Fork n ways, for backends that have no way of their own to do it at once; and work that is not left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TypeVar

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import Backend, World, WorldSpec

T = TypeVar("T")


async def fork_all(backend: Backend, snapshot: Snapshot, spec: WorldSpec, n: int) -> list[World]:
    """`Backend.fork` by so many `materialise`: all or none, also where we are cancelled."""
    if n < 0:
        raise ValueError(f"a world cannot be forked {n} ways")
    begun = asyncio.gather(*(backend.materialise(snapshot, spec) for _ in range(n)), return_exceptions=True)
    try:
        done = await asyncio.shield(begun)
        for failure in done:
            if isinstance(failure, BaseException):
                raise failure
    except BaseException:
        # what has begun comes to its end first: what is cancelled half way may leave something behind
        await asyncio.gather(*(one.close() for one in await begun if not isinstance(one, BaseException)))
        raise
    return [one for one in done if not isinstance(one, BaseException)]


async def all_of(works: Sequence[Coroutine[object, object, None]]) -> None:
    """Await every one of them to its end, then raise the first failure. One alone needs no task of its own."""
    if len(works) == 1:
        return await works[0]
    for failure in await asyncio.gather(*works, return_exceptions=True):
        if failure is not None:
            raise failure
    return None


async def to_the_end(work: Coroutine[object, object, T]) -> T:
    """Await `work`, also where we are cancelled meanwhile: then the cancellation goes on when it has ended.

    For a thread, that is: nobody can cancel one, and it must not go on making what is being tidied up.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
