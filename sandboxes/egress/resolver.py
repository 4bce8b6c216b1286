"""From a name to addresses, outside the world, and only for names that are allowed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Protocol

from ramify.sandboxes.egress.errors import Unreachable
from ramify.sandboxes.egress.targets import IpAddress, plain

LONGEST_S = 15.0
AT_ONCE = 16  # look-ups of one world


class Resolver(Protocol):
    """Raises `Unreachable` if the name has no address."""

    async def __call__(self, name: str) -> Sequence[IpAddress]: ...


class SystemResolver:
    """The machine's own resolver, with its hosts file.

    A look-up may block for half a minute, and nothing ends it. So each has a thread of its own, which no end of this
    process waits for, and not one of the event loop's few, which all of Ramify needs.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, name: str) -> Sequence[IpAddress]:
        try:
            return await asyncio.wait_for(self._looked_up(name), LONGEST_S)
        except TimeoutError:
            raise Unreachable(f"the name was not resolved within {LONGEST_S:g} s") from None

    async def _looked_up(self, name: str) -> Sequence[IpAddress]:
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[IpAddress] | None] = loop.create_future()

        def told(found: Sequence[IpAddress] | None) -> None:
            self._free.release()  # only now: a look-up that nobody waits for goes on
            if not answer.done():
                answer.set_result(found)

        def look_up() -> None:
            found = addresses_of(name)
            with suppress(RuntimeError):  # the event loop was closed
                loop.call_soon_threadsafe(told, found)

        try:
            threading.Thread(target=look_up, daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise Unreachable("this process can start no more threads") from None
        found = await answer
        if found is None:
            raise Unreachable("the name cannot be resolved")
        return found


def addresses_of(name: str) -> list[IpAddress] | None:
    """What the machine's resolver says; None if it knows no such name. Blocks."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    texts = (str(place[0]) for *_, place in found)
    return list(dict.fromkeys(plain(ip_address(text)) for text in texts if "%" not in text))


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
