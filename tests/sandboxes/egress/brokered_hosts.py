"""What the broker's tests allow, and what they read of its log."""

from __future__ import annotations

from pathlib import Path

from ramify.sandboxes.egress.hosts import FixedResolver
from ramify.sandboxes.egress.settings import Egress
from tests.sandboxes.egress.conftest import Brokered, Server

SECRET = "Bearer sk-1234567890"


def names(**known: str) -> FixedResolver:
    return FixedResolver({f"{name}.test": address for name, address in known.items()})


def local(server: Server, *more: str, **options: object) -> Egress:
    """Allows ok.test, at a server of this machine."""
    allow = [f"ok.test:{server.port}", f"127.0.0.1:{server.port}", *more]
    return Egress(allow, resolver=names(ok="127.0.0.1", evil="127.0.0.1"), **options)  # type: ignore[arg-type]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def log(made: Brokered) -> list[tuple[str, str, str]]:
    return [(one.protocol, one.host, one.outcome.value) for one in made.broker.connections()]
