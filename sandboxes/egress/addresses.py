"""Which addresses a name may lead to: public ones, and those that the allow-list names by themselves.

The name system is not trusted. Whoever answers for an allowed name may answer 127.0.0.1, 169.254.169.254 (a cloud's
metadata) or an address of the local network. So every address is checked after the name was resolved, and the
connection goes to the address that was checked.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

from ramify.sandboxes.egress.targets import IpAddress, plain

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
