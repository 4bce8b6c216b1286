"""LangGraph's own conformance suite: every test of every capability, counted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate

from ramify import Saver

COUNTS = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}


class ThroughItsSyncFace(Saver):
    """The suite calls only async methods: these run the sync ones under the async names."""

    async def aput(self, *args, **kwargs):
        return self.put(*args, **kwargs)

    async def aput_writes(self, *args, **kwargs):
        return self.put_writes(*args, **kwargs)

    async def aget_tuple(self, *args, **kwargs):
        return self.get_tuple(*args, **kwargs)

    async def alist(self, *args, **kwargs):
        for one in self.list(*args, **kwargs):
            yield one

    async def adelete_thread(self, *args, **kwargs):
        return self.delete_thread(*args, **kwargs)

    async def adelete_for_runs(self, *args, **kwargs):
        return self.delete_for_runs(*args, **kwargs)

    async def acopy_thread(self, *args, **kwargs):
        return self.copy_thread(*args, **kwargs)

    async def aprune(self, *args, **kwargs):
        return self.prune(*args, **kwargs)


@pytest.mark.parametrize("kind", [Saver, ThroughItsSyncFace], ids=["async", "sync"])
async def test_all_81_pass(address: str, kind: type[Saver]) -> None:
    @checkpointer_test(name="ramify")
    async def ours() -> AsyncIterator[BaseCheckpointSaver]:
        async with kind.open(address) as saver:
            yield saver

    report = await validate(ours)
    failures = [failure for result in report.results.values() for failure in result.failures]
    assert failures == []
    assert {name: result.tests_passed for name, result in report.results.items()} == COUNTS
    assert sum(COUNTS.values()) == 81
