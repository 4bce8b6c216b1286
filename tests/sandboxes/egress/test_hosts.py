"""Which addresses a name may lead to.

The machine's resolver, asked outside.
"""

from __future__ import annotations

import asyncio
import threading
from ipaddress import ip_address

import pytest

from ramify.sandboxes.egress import hosts
from ramify.sandboxes.egress.errors import Unreachable
from ramify.sandboxes.egress.hosts import SystemResolver, is_own, why_not_public


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "168.63.129.16", "192.0.2.1", "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254"),
        *("fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "100::1"),
    ],
)
def test_special_addresses_are_not_public(address: str) -> None:
    assert why_not_public(ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "151.101.0.223", "172.32.0.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_public_addresses(address: str) -> None:
    assert why_not_public(ip_address(address)) == ""


def test_addresses_of_this_machine_are_known() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("1.1.1.1"))


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
