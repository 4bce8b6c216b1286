"""Logins of registries, from the files that docker and podman keep. Values are never logged and never in an error."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramify.images.references import DEFAULT_REGISTRY

_DOCKER_HUB = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True, slots=True)
class Login:
    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def login_for(registry: str, environment: Mapping[str, str] = os.environ) -> Login | None:
    """The login that `docker login` or `podman login` stored for a registry, in `auths`. None if there is none;
    credential helpers are not asked."""
    names = _DOCKER_HUB if registry == DEFAULT_REGISTRY else (registry, f"https://{registry}", f"http://{registry}")
    for path in _files(environment):
        try:
            auths = json.loads(path.read_text()).get("auths")
        except (OSError, ValueError, AttributeError):
            continue  # a file that the engine itself could not read either
        for name in names:
            entry = auths.get(name) if isinstance(auths, dict) else None
            if isinstance(entry, dict) and (login := _decoded(entry.get("auth"))) is not None:
                return login
    return None


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment.get("HOME") or Path("~").expanduser())
    yield Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers/auth.json"
    yield Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json"


def _decoded(auth: object) -> Login | None:
    if not isinstance(auth, str) or not auth:
        return None
    try:
        user, colon, password = base64.b64decode(auth, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return Login(user, password.rstrip("\0")) if colon else None
