"""The hosts that a world wants to connect to: how they are written, their addresses, and which of these are public.

`Target` is a host, by name or by address, and a port. What a world writes is read strictly. Resolvers read `127.1`,
`0x7f000001` and `2130706433` as addresses, too; here they are neither names nor addresses.

A `Resolver` finds the addresses of a name, outside the world, and only for names that are allowed. The name system is
not trusted. Whoever answers for an allowed name may answer 127.0.0.1, 169.254.169.254 (a cloud's metadata) or an
address of the local network. So every address is checked after the name was resolved (`why_not_public`), and the
connection goes to the address that was checked. An address that the allow-list names by itself needs not be public.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Protocol

from ramify.sandboxes.egress.errors import Refused, Unreachable

IpAddress = IPv4Address | IPv6Address

LONGEST_NAME = 253  # characters (RFC 1035)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Target:
    """`host` is a name in lower case, or an address as `ipaddress` writes it; `address` is set for an address."""

    host: str
    port: int
    address: IpAddress | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_host(text: str) -> tuple[str, IpAddress | None]:
    """A host as `Target` has it; an IPv6 address may have brackets. Raises `ValueError` with the reason."""
    host = text.strip("[]") if text.startswith("[") and text.endswith("]") else text
    address = read_address(host)
    if address is not None:
        return str(address), address
    name = host.lower().removesuffix(".")
    if not name or len(name) > LONGEST_NAME:
        raise ValueError("the host is empty or too long")
    labels = name.split(".")
    if not all(map(_LABEL.fullmatch, labels)):
        raise ValueError("the host is neither a name of letters, digits, '-' and '.' nor an address")
    if _NUMBER.fullmatch(labels[-1]):
        raise ValueError("the host ends with a number and is not an address in its usual form")
    return name, None


def read_address(text: str) -> IpAddress | None:
    """An address in its usual form; None for anything else. An IPv4 address inside IPv6 is that IPv4 address."""
    if "%" in text or "/" in text:  # a zone names an interface of the host
        return None
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return plain(address)


def plain(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address stands for (::ffff:0:0/96); else the address itself."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def read_target(text: str, default_port: int | None = None) -> Target:
    """`HOST:PORT`, `[IPV6]:PORT`, or without a port if there is a default. Raises `Refused`."""
    host, port = split_port(text)
    try:
        name, address = read_host(host)
        number = read_port(port) if port is not None else default_port
    except ValueError as error:
        raise Refused(str(error)) from None
    if number is None:
        raise Refused("the request names no port")
    return Target(name, number, address)


def split_port(text: str) -> tuple[str, str | None]:
    """The host and the port of `HOST:PORT`; a bare IPv6 address has no port."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        return host + bracket, rest[1:] if rest.startswith(":") else rest or None
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and ":" not in host else (text, None)


def read_port(text: str) -> int:
    """Raises `ValueError` with the reason."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
        raise ValueError(f"{text[:20]!r} is not a port: ports are 1 to 65535")
    return int(text)


_METADATA = frozenset({IPv4Address("168.63.129.16")})  # Azure's: a public address that answers on every machine there
_NOT_PUBLIC_V6 = tuple(
    ip_network(text)
    for text in (
        "::/8",  # loopback, IPv4-compatible
        "64:ff9b:1::/48",  # local NAT64 (RFC 8215)
        "100::/64",  # discard
        "2001::/23",  # Teredo and other special uses
        "2001:db8::/32",
        "2002::/16",  # 6to4
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",  # site-local
        "ff00::/8",
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address
_NOT_PUBLIC_V4 = tuple(
    IPv4Network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
        *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
    )
)
"""The registries of special-purpose addresses (RFC 6890 and its updates), written out: what Python's `is_global` says
differs between its versions."""


def why_not_public(address: IpAddress) -> str:
    """Why a name may not lead to this address; "" if it may."""
    address = plain(address)
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return why_not_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        special: bool = any(address in network for network in _NOT_PUBLIC_V6)
    else:
        special = any(address in network for network in _NOT_PUBLIC_V4)
    if special:
        return "it is private, loopback, link-local or reserved"
    if address in _METADATA:
        return "it is a cloud's metadata service"
    if is_own(address):
        return "it is an address of this machine"
    return ""


def is_own(address: IpAddress) -> bool:
    """Whether this machine has the address: connections to it reach servers that listen for the local network. Sends
    nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((str(address), 9))
            return bool(sock.getsockname()[0] == str(address))
    except OSError:  # no route, or no such family: then no connection either
        return False


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
