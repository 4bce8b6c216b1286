"""`Egress`: what a world may reach, and with which credentials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from ramify.sandboxes.egress.credentials import Credentials, Header, Place
from ramify.sandboxes.egress.errors import BadCredential, BadEntry
from ramify.sandboxes.egress.policy import EgressPolicy

if TYPE_CHECKING:
    import ssl

    from ramify.sandboxes.egress.resolver import Resolver

PORT = 3128
"""Where the broker listens inside a world, at 127.0.0.1. Each world has its own loopback, so this never changes."""

ADDRESS = f"http://127.0.0.1:{PORT}"
FORWARD_PATH = "/-/"
"""`http://127.0.0.1:3128/-/HOST/PATH` is `https://HOST/PATH`, for programs that take a base address and no proxy."""


@dataclass(frozen=True, slots=True)
class Egress:
    """An allow-list (`policy.py` has its grammar), and credentials by host.

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
