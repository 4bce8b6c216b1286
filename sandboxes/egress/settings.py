"""What a world may reach, and with which credentials: `Egress` holds an allow-list and credentials by host.

The allow-list (`EgressPolicy`) consists of names, patterns, addresses and networks, each with its ports. An entry is
one of:

    pypi.org             this name, ports 443 and 80
    *.github.com:443     every name below github.com, not github.com itself
    *:443                every name
    127.0.0.1:8000       this address of the host; also [::1]:8000, and localhost:8000 for 127.0.0.1
    10.0.0.0/8:5432      every address of this network
    pypi.org:*           every port

A name allows what it resolves to only if that is a public address. A private address needs an entry of its own: see
`hosts.py`.

The broker adds credentials to requests, and the world never sees them. A request gets a credential only where the
broker itself speaks TLS to the host: the world sends it to the broker in plain HTTP, and the broker sends it on by
HTTPS. A value is in no log, no error, no `repr` and no snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Self

from ramify.sandboxes.egress.errors import BadCredential, BadEntry, Refused
from ramify.sandboxes.egress.hosts import (
    IpAddress,
    Target,
    read_address,
    read_host,
    read_port,
    read_target,
    split_port,
)

if TYPE_CHECKING:
    import ssl

    from ramify.sandboxes.egress.hosts import Resolver


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
        raise ValueError(f"it has a '/', and is not a network ({error})") from None


def _ascii(name: str) -> str:
    """A name as the name system has it: `bücher.example` is `xn--bcher-kva.example`."""
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:
        raise ValueError("it has characters that no host's name has") from None


HTTPS_PORT, HTTP_PORT = 443, 80
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]+")
_FRAMING = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive"}
)


@dataclass(frozen=True, slots=True)
class Header:
    """A header and its value, such as `Header("authorization", "Bearer …")`. Raises `BadCredential`."""

    name: str
    value: str = field(repr=False)

    def __post_init__(self) -> None:
        if not TOKEN.fullmatch(self.name) or self.name.lower() in _FRAMING:
            raise BadCredential(f"{self.name[:80]!r} cannot be the name of a credential's header")
        if not _VALUE.fullmatch(self.value) or self.value != self.value.strip():
            raise BadCredential(
                f"the value for the header {self.name!r} is empty, or has a line end, a control character, a space "
                "at its end, or a character beyond Latin-1"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a credential belongs: one host and port, over TLS unless the user wrote http://."""

    target: Target
    tls: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """`api.example.org`, `api.example.org:8443`, `http://127.0.0.1:8000`. Raises `BadCredential`."""
        scheme, sign, rest = text.partition("://")
        if not sign:
            scheme, rest = "https", text
        if scheme not in ("https", "http"):
            raise BadCredential(f"a credential for {text[:200]!r}: write HOST, HOST:PORT or http://HOST:PORT")
        try:
            target = read_target(rest.rstrip("/"), HTTPS_PORT if scheme == "https" else HTTP_PORT)
        except Refused as error:
            raise BadCredential(f"a credential for {text[:200]!r}: {error.why}") from None
        return cls(target, scheme == "https")

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.target}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Headers by place. `missing`: places whose credential an earlier process had and this one was not given."""

    headers: Mapping[Place, Header] = field(default_factory=dict)
    missing: frozenset[Place] = frozenset()

    @classmethod
    def parse(cls, given: Mapping[str, Header]) -> Self:
        """Raises `BadCredential`."""
        if not isinstance(given, Mapping) or not all(isinstance(header, Header) for header in given.values()):
            raise BadCredential("credentials are a mapping from a host to a Header(name, value)")
        return cls({Place.parse(text): header for text, header in given.items()})

    @property
    def places(self) -> list[Place]:
        return [*self.headers, *sorted(self.missing, key=str)]

    def place_for(self, target: Target) -> Place | None:
        """The place that a plain-HTTP request to this target is meant for. Port 80 means the host's HTTPS: the
        broker speaks TLS in the world's stead."""
        for place in self.places:
            asked = HTTPS_PORT if place.tls and target.port == HTTP_PORT else target.port
            if place.target.host == target.host and place.target.port == asked:
                return place
        return None

    def header_for(self, place: Place) -> Header:
        """Raises `Refused` if it is missing."""
        if place not in self.headers:
            raise Refused(
                f"the credential for {place} was not given when this world was opened: credentials are not stored"
            )
        return self.headers[place]


PORT = 3128
"""Where the broker listens inside a world, at 127.0.0.1. Each world has its own loopback, so this never changes."""

ADDRESS = f"http://127.0.0.1:{PORT}"
FORWARD_PATH = "/-/"
"""`http://127.0.0.1:3128/-/HOST/PATH` is `https://HOST/PATH`, for programs that take a base address and no proxy."""


@dataclass(frozen=True, slots=True)
class Egress:
    """An allow-list (its grammar is above), and credentials by host.

        Egress(["pypi.org"], credentials={"api.example.org": Header("authorization", "Bearer …")})

    resolver: names to addresses, default the machine's own. tls: how the broker speaks TLS to hosts with a
    credential, default with the machine's certificate authorities. Raises `BadEntry`, `BadCredential`.
    """

    allow: Sequence[str] = ()
    credentials: Mapping[str, Header] = field(default_factory=dict, repr=False)
    resolver: Resolver | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    policy: EgressPolicy = field(init=False, repr=False)
    keys: Credentials = field(init=False, repr=False)

    def __post_init__(self) -> None:
        policy, keys = EgressPolicy.parse(self.allow), Credentials.parse(self.credentials)
        for place in keys.headers:
            if not policy.allows(place.target):
                raise BadCredential(f"a credential is given for {place}, which no entry allows: add {place.target}")
        if PORT in policy.local_ports:
            raise BadEntry(f"127.0.0.1:{PORT}", f"inside a world, the broker itself listens at port {PORT}")
        object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "policy", policy)
        object.__setattr__(self, "keys", keys)

    @classmethod
    def of(cls, given: Self | Sequence[str]) -> Self:
        """An `Egress` as it is, or one of an allow-list alone. Raises `BadEntry`."""
        return given if isinstance(given, Egress) else cls(given)

    def without(self, places: Sequence[str]) -> Self:
        """The same, where requests for these places are refused unless their credential is given here."""
        missing = frozenset(map(Place.parse, places)) - set(self.keys.headers)
        changed = replace(self)
        object.__setattr__(changed, "keys", replace(self.keys, missing=missing))
        return changed

    @property
    def places(self) -> list[str]:
        """The places of the credentials, without their values: this is stored."""
        return [str(place) for place in self.keys.places]


def environment() -> dict[str, str]:
    """The variables by which programs in a world find the broker. Every program that reads one of them uses HTTP
    CONNECT; SOCKS5 (names resolved outside) is spoken at the same port to those that ask for it."""
    around = "localhost,127.0.0.1,::1"
    names = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), ADDRESS) | {"NO_PROXY": around}
    return names | {name.lower(): value for name, value in names.items()} | {"NODE_USE_ENV_PROXY": "1"}
