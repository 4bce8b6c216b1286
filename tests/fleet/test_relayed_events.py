"""Events on their way from a node."""

from __future__ import annotations

import asyncio
from types import MappingProxyType

import pytest

from ramify.compiler.plan import OpId, OpKind
from ramify.fleet import relayed_events
from ramify.fleet.relayed_events import EventRelay, decoded
from ramify.runtime.events import Event, Noticed, OpDone
from ramify.runtime.records import ROOT, OpRecord, OpStatus, RunId

RUN, OTHER = RunId("r1"), RunId("r2")
ROW = OpRecord(RUN, 1, "k", OpId("o"), OpKind.RUN, ROOT, OpStatus.DONE, attrs=MappingProxyType({"a": "b"}))


async def taken(relay: EventRelay) -> list[Event] | None:
    data = await asyncio.wait_for(relay.take(RUN), 60)
    return None if data is None else decoded(data)


async def test_events_are_told_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed_events, "MOST_AT_ONCE", 2)
    relay = EventRelay()
    relay(Noticed(RUN, "before anyone watched"))
    relay.watch(RUN)
    sent: list[Event] = [OpDone(ROW, False), Noticed(RUN, "2"), Noticed(RUN, "3")]
    waiting = asyncio.create_task(taken(relay))
    await asyncio.sleep(0)
    for event in sent:
        relay(event)
        relay(Noticed(OTHER, "of another run"))
    relay.end(RUN)
    got: list[Event] = await waiting or []
    while (more := await taken(relay)) is not None:
        got += more
    assert got == sent
    assert await taken(relay) is None


async def test_a_question_without_an_event_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed_events, "WAIT_S", 0.01)
    relay = EventRelay()
    relay.watch(RUN)
    assert await taken(relay) == []
    assert await EventRelay().take(RUN) is None
