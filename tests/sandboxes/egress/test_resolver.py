"""The machine's resolver, asked outside."""

from __future__ import annotations

import asyncio
import threading
from ipaddress import ip_address

import pytest

from ramify.sandboxes.egress import hosts
from ramify.sandboxes.egress.errors import Unreachable
from ramify.sandboxes.egress.hosts import SystemResolver


async def test_names_of_the_hosts_file() -> None:
    assert ip_address("127.0.0.1") in await SystemResolver()("localhost")


async def test_unknown_names() -> None:
    with pytest.raises(Unreachable, match="cannot be resolved"):
        await SystemResolver()("no-such-name.invalid")


async def test_look_ups_that_hang_hold_no_thread_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def hang(name: str) -> None:
        go.wait(60)

    monkeypatch.setattr(hosts, "addresses_of", hang)
    monkeypatch.setattr(hosts, "LONGEST_S", 0.2)
    asked = SystemResolver()
    before = threading.active_count()
    try:
        found = await asyncio.gather(*(asked(f"{number}.test") for number in range(100)), return_exceptions=True)
        assert all(isinstance(one, Unreachable) and "not resolved within" in one.why for one in found)
        assert threading.active_count() - before <= hosts.AT_ONCE
        assert await asyncio.to_thread(lambda: 1) == 1
    finally:
        go.set()
    while threading.active_count() > before + 1:  # noqa: ASYNC110  the one of `to_thread` stays
        await asyncio.sleep(0.01)
