"""The hosts that a world may connect to: an allow-list of names, patterns, addresses and networks, each with its
ports.

An entry is one of:

    pypi.org             this name, ports 443 and 80
    *.github.com:443     every name below github.com, not github.com itself
    *:443                every name
    127.0.0.1:8000       this address of the host; also [::1]:8000, and localhost:8000 for 127.0.0.1
    10.0.0.0/8:5432      every address of this network
    pypi.org:*           every port

A name allows what it resolves to only if that is a public address. A private address needs an entry of its own: see
`addresses.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Self

from ramify.sandboxes.egress.errors import BadEntry
from ramify.sandboxes.egress.targets import IpAddress, Target, read_address, read_host, read_port, split_port

DEFAULT_PORTS = frozenset({443, 80})
LOCALHOST = "127.0.0.1"
MOST_ENTRIES = 10_000

_INSIDE_NAMES = {"localhost": LOCALHOST}


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry. Either `network` is set, or `name`: with `below`, the rule is about all names below it, and all
    names at all if it is empty."""

    entry: str  # as it was written
    ports: frozenset[int] | None  # None: every port
    name: str = ""
    below: bool = False
    network: IPv4Network | IPv6Network | None = None

    def covers_port(self, port: int) -> bool:
        return self.ports is None or port in self.ports

    def covers_name(self, name: str) -> bool:
        if self.network is not None:
            return False
        return (not self.name or name.endswith(f".{self.name}")) if self.below else name == self.name

    def covers_address(self, address: IpAddress) -> bool:
        return self.network is not None and address in self.network  # False for the other version


@dataclass(frozen=True, slots=True)
class EgressPolicy:
    """An allow-list. Without entries nothing is allowed."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> Self:
        """Raises `BadEntry` for the first entry that cannot be read."""
        if isinstance(entries, str):
            raise BadEntry(entries, "an allow-list is a list of entries, not one text")
        rules = tuple(dict.fromkeys(map(parse_rule, entries)))
        if len(rules) > MOST_ENTRIES:
            raise BadEntry(rules[MOST_ENTRIES].entry, f"an allow-list has at most {MOST_ENTRIES} entries")
        return cls(rules)

    @property
    def entries(self) -> list[str]:
        return [rule.entry for rule in self.rules]

    def allows(self, target: Target) -> bool:
        """Whether the host is named, as the world wrote it. What a name resolves to is checked on its own."""
        if target.address is not None:
            return self.names_address(target.address, target.port)
        return any(rule.covers_name(target.host) and rule.covers_port(target.port) for rule in self.rules)

    def names_address(self, address: IpAddress, port: int) -> bool:
        """Whether an entry names this very address, or a network that holds it."""
        return any(rule.covers_address(address) and rule.covers_port(port) for rule in self.rules)

    @property
    def local_ports(self) -> frozenset[int]:
        """The ports of 127.0.0.1 that entries name one by one: a world reaches them at the same address."""
        local = read_address(LOCALHOST)
        assert local is not None
        single = [rule for rule in self.rules if rule.network is not None and rule.network.num_addresses == 1]
        found = [rule.ports for rule in single if rule.covers_address(local) and rule.ports is not None]
        return frozenset(port for ports in found if ports != DEFAULT_PORTS for port in ports)


def parse_rule(entry: str) -> Rule:
    """Raises `BadEntry`."""
    if not isinstance(entry, str):
        raise BadEntry(entry, "it is not a text")
    text = entry.strip()
    if "://" in text:
        raise BadEntry(entry, "it has a scheme, and an entry is a host alone")
    host, port = split_port(text)
    try:
        ports = DEFAULT_PORTS if port is None else None if port == "*" else frozenset({read_port(port)})
        return _rule(text, host, ports)
    except ValueError as error:
        raise BadEntry(entry, str(error)) from None


def _rule(entry: str, host: str, ports: frozenset[int] | None) -> Rule:
    """Raises `ValueError` with the reason."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bare = _INSIDE_NAMES.get(bare.lower(), bare)
    if bare == "*":
        return Rule(entry, ports, below=True)
    if "/" in bare:
        return Rule(entry, ports, network=_network(bare))
    below = bare.startswith("*.")
    if "*" in bare.removeprefix("*."):
        raise ValueError("'*' may only stand for the whole host, or before the first '.'")
    name, address = read_host(_ascii(bare.removeprefix("*.")))
    if address is None:
        return Rule(entry, ports, name=name, below=below)
    if below:
        raise ValueError("'*.' stands before an address")
    return Rule(entry, ports, network=ip_network(address))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"it has a '/', and is no network ({error})") from None


def _ascii(name: str) -> str:
    """A name as the name system has it: `bücher.example` is `xn--bcher-kva.example`."""
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        raise ValueError("it has characters that no host's name has") from None
