"""Cutting a stream into events, however its bytes arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from ramify.serving.gateway import sse
from ramify.serving.protocol.wire import Malformed

TEXT = b"data: null\n\ndata: {}\r\n\r\nevent: a\r\ndata: 1\r\ndata: 2\r\n\r\n: stays\n\ndata: [DONE]\n\ndata: cut"


async def stream(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_events_are_the_same_however_they_come(size: int) -> None:
    parts = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    found = [event async for batch in sse.events(stream(parts)) for event in batch]
    assert [event.data for event in found] == [b"{}", b"1\n2", b"", b"[DONE]"]
    assert not any(b"\r" in event.raw for event in found)


@pytest.mark.parametrize("part", [b"data: " + b"a" * 1000, b"a\r", b"a\r\n", b"\r"])
async def test_unterminated_event_is_not_yielded(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "_MAX_EVENT", 10_000)
    with pytest.raises(Malformed, match="longer than"):
        async for _ in sse.events(stream(part for _ in range(100_000))):
            pass
