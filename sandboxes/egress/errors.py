"""Errors of egress. The first tree reaches the user; the second ends one connection of a world, inside the broker.

EgressError              (a SandboxError)
├── BadEntry             an entry of an allow-list cannot be read
├── BadCredential        a credential cannot be used as it is written
└── PortTaken            a port inside the world, at which the broker has to listen, is taken

EndOfConnection
├── Refused              the policy does not allow it
└── Unreachable          it is allowed, and could not be made
"""

from __future__ import annotations

from ramify.sandboxes.errors import SandboxError


class EgressError(SandboxError):
    """Base class of the errors that a user of egress gets."""


class BadEntry(EgressError):
    """An entry of an allow-list cannot be read. `entry` is the entry."""

    def __init__(self, entry: object, why: str) -> None:
        super().__init__(
            f"the egress entry {str(entry)[:200]!r} cannot be read: {why}. Write HOST, HOST:PORT, *.DOMAIN, an "
            "address or a network, such as 'pypi.org', '*.github.com:443', '127.0.0.1:8000', '10.0.0.0/8:5432'"
        )
        self.entry = entry


class BadCredential(EgressError):
    """A credential cannot be used as it is written. The message never holds its value."""


class PortTaken(EgressError):
    """The broker cannot listen at a port inside the world."""


class EndOfConnection(Exception):
    """Why a connection of a world is not made. `why` is for the connection log and for the world."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Refused(EndOfConnection):
    """The policy does not allow it, or the request cannot be read."""


class Unreachable(EndOfConnection):
    """It is allowed, and could not be made."""
