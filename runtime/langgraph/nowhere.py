"""A journal that serves what is recorded, and records nothing but model calls: those cost, and are true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from ramify.runtime.driver import Services
from ramify.runtime.journal import Journal
from ramify.runtime.records import BranchPath, LLMRecord, OpRecord, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore


class Unkept(Journal):
    """`real` gets the model calls."""

    def __init__(
        self,
        real: Journal,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        services: Services,
        record: RunRecord,
    ) -> None:
        super().__init__(
            cast("RunStore", _Nowhere()),
            record,
            ops=ops,
            llm=llm,
            flush=lambda: None,
            clock=services.clock,
            emit=lambda event: None,
        )
        self._real = real

    @contextmanager
    def ending(self, branch: BranchPath) -> Iterator[None]:
        """Nothing waits for what is not committed."""
        yield

    async def record_llm(self, row: LLMRecord) -> None:
        await self._real.record_llm(row)
        self._llm[row.key] = row


class _Nowhere:
    """As much of a `RunStore` as a journal writes to."""

    async def commit(self, run: str, **changes: Any) -> None:
        return None

    def commit_soon(self, run: str, **changes: Any) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done
