"""From a name to addresses, outside the world, and only for names that are allowed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Protocol

from ramify.sandboxes.egress.errors import Unreachable
from ramify.sandboxes.egress.targets import IpAddress, plain

LONGEST_S = 15.0
AT_ONCE = 16  # look-ups of one resolver


class Resolver(Protocol):
    """Raises `Unreachable` if the name has no address."""

    async def __call__(self, name: str) -> Sequence[IpAddress]: ...


class SystemResolver:
    """The machine's own resolver, with its hosts file."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, name: str) -> Sequence[IpAddress]:
        loop = asyncio.get_running_loop()
        async with self._free:
            asked = loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            try:
                found = await asyncio.wait_for(asked, LONGEST_S)
            except TimeoutError:
                raise Unreachable(f"the name was not resolved within {LONGEST_S:g} s") from None
            except (OSError, UnicodeError):
                raise Unreachable("the name cannot be resolved") from None
        addresses = (str(place[0]) for *_, place in found)
        return list(dict.fromkeys(plain(ip_address(text)) for text in addresses if "%" not in text))


class FixedResolver:
    """Knows these names and no others: for tests, and for hosts whose addresses are pinned."""

    def __init__(self, names: Mapping[str, str | Sequence[str]]) -> None:
        self.names = {name: [each] if isinstance(each, str) else list(each) for name, each in names.items()}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[IpAddress]:
        self.asked.append(name)
        if name not in self.names:
            raise Unreachable("the name cannot be resolved")
        return [plain(ip_address(text)) for text in self.names[name]]
