"""Where a world wants to connect to: a host, by name or by address, and a port. Nothing is resolved here.

What a world writes is read strictly. Resolvers read `127.1`, `0x7f000001` and `2130706433` as addresses, too; here
they are neither names nor addresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from ramify.sandboxes.egress.errors import Refused

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
        raise ValueError("the host ends with a number and is no address in its usual form")
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
        raise ValueError(f"{text[:20]!r} is no port: ports are 1 to 65535")
    return int(text)
