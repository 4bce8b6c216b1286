"""Finding the Docker Engine of this machine, and saying in our words what it and its SDK raise."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ramify.sandboxes.errors import BackendUnavailable, WorldStartFailed

if TYPE_CHECKING:
    import docker

DEFAULT_HOST = "unix:///var/run/docker.sock"
PATIENCE_S = 60  # for one call
KNOCK_S = 5  # for the first sign of life


def connect() -> docker.DockerClient:
    """Raises `BackendUnavailable` with what is missing and what to do about it."""
    try:
        import docker
    except ImportError:
        raise BackendUnavailable("the Docker SDK for Python is not installed: pip install 'ramify[docker]'") from None
    where = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    knock(where)
    try:
        client = docker.DockerClient(base_url=where, version="auto", timeout=PATIENCE_S)
    except docker.errors.DockerException as error:
        raise BackendUnavailable(f"the Docker Engine at {where} cannot be used: {error}") from None
    try:
        _check_users(client)
    except BaseException:
        client.close()
        raise
    return client


def _check_users(client: docker.DockerClient) -> None:
    """Users must be the same inside and outside, for the folders that are mounted."""
    with told("telling about itself"):
        security = client.info().get("SecurityOptions") or []
    for option in ("name=rootless", "name=userns"):
        if any(option in one for one in security):
            raise BackendUnavailable(
                f"the Docker Engine maps users ({option}): what a world writes would be somebody else's. "
                "Use one that does not"
            )


@contextmanager
def told(doing: str) -> Iterator[None]:
    """What the SDK raises, as ours. `NotFound` passes: the callers know what it means."""
    import docker
    import requests

    try:
        yield
    except docker.errors.NotFound:
        raise
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise WorldStartFailed(f"the Docker Engine failed at {doing}: {error}") from error


def knock(where: str) -> None:
    """Raises `BackendUnavailable` where no engine of this machine answers."""
    scheme, _, path = where.partition("://")
    if scheme != "unix":
        raise BackendUnavailable(
            f"the Docker Engine at {where} may be on another machine, but worlds are folders of this one, mounted: "
            f"unset DOCKER_HOST, or set it to a socket, as {DEFAULT_HOST}"
        )
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(KNOCK_S)
            sock.connect(path)
            sock.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")  # one that hangs would hold us for much longer later
            sock.recv(1)
    except FileNotFoundError:
        raise BackendUnavailable(
            f"no Docker Engine listens on {path}: install one (apt-get install docker.io) and start dockerd"
        ) from None
    except ConnectionRefusedError:
        raise BackendUnavailable(f"no Docker Engine answers on {path}: start dockerd") from None
    except PermissionError:
        raise BackendUnavailable(
            f"you may not use {path}: have an administrator add you to the group docker"
        ) from None
    except OSError as error:
        raise BackendUnavailable(f"no Docker Engine can be reached on {path}: {error}") from None
