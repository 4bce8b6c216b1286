"""A journal for reruns: it serves what is recorded, and records model calls only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from ramify.runtime.execution.new_runs import Services
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import BranchPath, LLMRecord, OpRecord, RunRecord
from ramify.runtime.store import RunStore


class DiscardingJournal(Journal):
    """A journal that serves recorded rows and records nothing but model calls, which cost money and stay valid.
    `real` is the journal that gets them."""

    def __init__(
        self,
        real: Journal,
        ops: Sequence[OpRecord],
        llm: Sequence[LLMRecord],
        services: Services,
        record: RunRecord,
    ) -> None:
        super().__init__(
            cast("RunStore", _DiscardingStore()),
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
        """Do nothing: no commit is expected."""
        yield

    async def record_llm(self, row: LLMRecord) -> None:
        await self._real.record_llm(row)
        self._llm[row.key] = row


class _DiscardingStore:
    """The part of `RunStore` that a journal writes to; it drops everything."""

    async def commit(self, run: str, **changes: Any) -> None:
        return None

    def commit_soon(self, run: str, **changes: Any) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done
