"""Find the Docker Engine of this machine, and translate its errors. All block."""

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
PING_TIMEOUT_S = 5  # for the first reply
MOST_SAID = 1000  # characters of an error, which may hold the longest of paths


def connect() -> docker.DockerClient:
    """Connect to the engine. Raises `BackendUnavailable` with what is missing and what to do about it."""
    try:
        import docker
    except ImportError:
        raise BackendUnavailable("the Docker SDK for Python is not installed: pip install 'ramify[docker]'") from None
    where = os.environ.get("DOCKER_HOST") or DEFAULT_HOST
    check_engine_answers(where)
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
    """Check that users are the same inside and outside: mounted folders need that."""
    try:
        with translated_errors("telling about itself"):
            security = client.info().get("SecurityOptions") or []
    except WorldStartFailed as error:
        raise BackendUnavailable(str(error)) from None
    for option in ("name=rootless", "name=userns"):
        if any(option in one for one in security):
            raise BackendUnavailable(
                f"the Docker Engine maps users ({option}): files that a world writes would belong to another user. "
                "Use one that does not"
            )


@contextmanager
def translated_errors(doing: str, *, may_be_missing: bool = False) -> Iterator[None]:
    """Translate the SDK's errors to ours. With `may_be_missing`, `NotFound` passes: the caller handles it."""
    import docker
    import requests
    import urllib3

    try:
        yield
    except (
        docker.errors.DockerException,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,  # of the socket
        ValueError,  # of an answer that is no JSON
    ) as error:
        if may_be_missing and isinstance(error, docker.errors.NotFound):
            raise
        said = str(error)
        said = said if len(said) <= MOST_SAID else f"{said[: MOST_SAID // 2]}…{said[-MOST_SAID // 2 :]}"
        raise WorldStartFailed(f"the Docker Engine failed at {doing}: {said}") from error


def check_engine_answers(where: str) -> None:
    """Raise `BackendUnavailable` if no engine on this machine answers."""
    scheme, _, path = where.partition("://")
    if scheme != "unix":
        raise BackendUnavailable(
            f"the Docker Engine at {where} may be on another machine, but worlds mount folders of this one: "
            f"unset DOCKER_HOST, or set it to a socket, as {DEFAULT_HOST}"
        )
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PING_TIMEOUT_S)
            sock.connect(path)
            sock.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")  # one that hangs would hold us much longer later
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
