"""This process's connection to a Ray cluster. Ray allows one for each process, so the fleets of a process share it:
the last of them ends it, unless the program made it.

Many calls of Ray make a connection if there is none: to any cluster of this machine, or to a new one. So nothing here
or in `ray_cluster` calls Ray without a look at whether it is still connected.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ramify.fleet.errors import ClusterUnreachable, RayMissing
from ramify.fleet.ray_host import REACH_S

CLIENT = "ray://"
CLIENT_PORT = 10001

_STARTS_CLUSTER = "`ray start --head` starts a cluster and prints its address"
_STARTS_SERVER = (
    "A head listens for clients there if it has `ramify[ray]` and was started with `ray start --head "
    f"--ray-client-server-port=PORT` (by default {CLIENT_PORT})"
)
_TRIES = 3
_TURN_S = 60.0
"""Seconds for which another thread may connect or disconnect."""


@dataclass(slots=True)
class _Connection:
    """at: the address that Ray is connected to. ours: whether a fleet made it. fleets: how many use it."""

    at: str
    ours: bool
    fleets: int = 0


class _Process:
    """What fleets of this process share. current: None if none uses a connection."""

    def __init__(self) -> None:
        self.current: _Connection | None = None
        self._turn = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=_TURN_S):
            raise ClusterUnreachable(
                "another thread of this program has been connecting to a Ray cluster, or leaving one, for "
                f"{_TURN_S:g} s: wait for it"
            )
        try:
            yield
        finally:
            self._turn.release()


_PROCESS = _Process()


class RayConnection:
    """A fleet's share in the connection. Its methods may wait for the network: call them in a thread.

    ray: the module. is_outside: whether this process is a client of the cluster, and on no node of it.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._used: _Connection | None = None
        self.ray: Any = None
        self.is_outside = False

    def open(self) -> None:
        """Connect. Raises `RayMissing` and `ClusterUnreachable`."""
        self.ray = ray = _ray()
        named = self._address
        if named == "auto":
            named = os.environ.get("RAY_ADDRESS", named)
        if not named.startswith(CLIENT) and "://" in named:
            raise ClusterUnreachable(
                f'{named!r} is not the address of a cluster: name "auto", HOST:PORT of its head, or '
                f"{CLIENT}HOST:{CLIENT_PORT}"
            )
        reach = _server_for_clients(named) if named.startswith(CLIENT) else named
        with _PROCESS.turn():
            there = ray.is_initialized()
            if there:
                _same(named, reach, connected_to(ray), self._address)
            else:
                ray.shutdown()  # what is left of a connection that was lost
                _connect(ray, named, reach)
            at = connected_to(ray)
            if _PROCESS.current is None or not there or _PROCESS.current.at != at:
                _PROCESS.current = _Connection(at, ours=not there)
            _PROCESS.current.fleets += 1
            self._used, self.is_outside = _PROCESS.current, at.startswith(CLIENT)

    def close(self) -> None:
        """Leave it. It ends with the last fleet, unless the program made it."""
        used, self._used = self._used, None
        if used is None:
            return
        with _PROCESS.turn():
            used.fleets -= 1
            if used.fleets or used is not _PROCESS.current:
                return
            _PROCESS.current = None
            if used.ours and (not self.ray.is_initialized() or connected_to(self.ray) == used.at):
                self.ray.shutdown()  # also of a connection that was lost: Ray makes no other one before
                let_print(self.ray, True)


def connected_to(ray: Any) -> str:
    """Where Ray is connected: HOST:PORT of the head, ray://HOST:PORT as a client. "" if it does not say. Ray has no
    public way to name a client's server."""
    client = ray.util.client.ray
    if client.is_connected():
        return CLIENT + str(getattr(client.get_context().client_worker, "_conn_str", ""))
    return str(ray.get_runtime_context().gcs_address)


def let_print(ray: Any, allowed: bool) -> None:
    """Whether Ray prints the errors of nodes, with the ends of their logs, on the program's stdout: there the result
    of `ramify run` goes. The fleet's observer is told that a node is lost. Ray has no public way to say this."""
    if (internal := getattr(ray, "_private", None)) is not None:
        internal.worker._worker_logs_enabled = allowed


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise RayMissing(
            "Ray is not installed: `pip install 'ramify[ray]'`, on this and every node, with the same version of "
            "Ramify, Ray and Python"
        ) from None
    return ray


def _connect(ray: Any, named: str, reach: str) -> None:
    outside = named.startswith(CLIENT)
    if outside:
        _reach(reach, f"{named!r} cannot be used: ", _STARTS_SERVER)
    else:
        _reach(reach, "", _STARTS_CLUSTER)
    log = logging.getLogger("ray._private.worker")
    log.addFilter(_not_of_signals)
    try:
        _tried(lambda: ray.init(named, log_to_driver=False, configure_logging=False))
    except Exception as error:  # ConnectionError, RuntimeError, ValueError, by what is wrong
        who = "this program needs" if outside else "this machine must be one of its nodes, with"
        raise ClusterUnreachable(
            f"the Ray cluster {named!r} cannot be used: {str(error).strip()}. `ray start --head` starts one; "
            f"{who} the same versions of Ray and Python"
        ) from error
    finally:
        log.removeFilter(_not_of_signals)
    let_print(ray, False)


def _tried(connect: Callable[[], object]) -> None:
    for left in reversed(range(_TRIES)):
        try:
            connect()
            return
        except ConnectionAbortedError:  # the head forks a process for each client, and that may fail
            if not left:
                raise


def _server_for_clients(address: str) -> str:
    """HOST:PORT of ray://HOST[:PORT]. Raises `ClusterUnreachable`."""
    try:
        named = urlsplit(address)
        host, port = named.hostname, named.port or CLIENT_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise ClusterUnreachable(f"{address!r} is not an address: {CLIENT}HOST:{CLIENT_PORT}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reach(address: str, why: str, remedy: str) -> None:
    """Raises `ClusterUnreachable` if nothing listens there. Ray itself would try for minutes. why, remedy: what the
    message begins and ends with."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", or something that Ray refuses
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"{why}nothing that can be reached listens at {address}: {error}. {remedy}"
        ) from None


def _same(named: str, reach: str, at: str, given: str) -> None:
    """Raises `ClusterUnreachable` if this process is connected to another place than the named one. given: as the
    program named it; "auto" takes any."""
    if given == "auto" or not at:
        return
    outside = at.startswith(CLIENT)
    if outside == named.startswith(CLIENT) and _one_place(reach, at.removeprefix(CLIENT)):
        return
    raise ClusterUnreachable(
        f"this program is connected to the Ray cluster {at!r}, and not to {named!r}, and Ray allows one connection: "
        'name "auto" to use that one, or call `ray.shutdown()` first'
    )


def _one_place(one: str, other: str) -> bool:
    """Whether two HOST:PORT may be the same. A loopback address may be any name of this machine."""
    (host, _, port), (there, _, its_port) = one.rpartition(":"), other.rpartition(":")
    if port != its_port:
        return False
    mine, its = _addresses(host), _addresses(there)
    local = any(one == "::1" or one.startswith("127.") for one in mine | its)
    return local or host == there or not mine or not its or bool(mine & its)


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()


def _not_of_signals(record: logging.LogRecord) -> bool:
    """Leaves out that Ray does not handle SIGTERM: it connects on another thread, so that the program's own handler
    stays."""
    return "SIGTERM" not in record.getMessage()
