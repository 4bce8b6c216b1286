"""Credentials that the broker adds to requests, and the world never sees.

A request gets a credential only where the broker itself speaks TLS to the host: the world sends it to the broker in
plain HTTP, and the broker sends it on by HTTPS. A value is in no log, no error, no `repr` and no snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from ramify.sandboxes.egress.errors import BadCredential, Refused
from ramify.sandboxes.egress.targets import Target, read_target

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
