"""Fleets of one process share its connection to Ray, whose module is a double here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from ramify.fleet import ray_connection
from ramify.fleet.errors import ClusterUnreachable
from ramify.fleet.ray_connection import RayConnection


class Ray:
    """at: where it is connected; "" if it is not."""

    def __init__(self) -> None:
        self.at, self.made, self.ended = "", list[str](), 0
        self.began = threading.Event()
        client = SimpleNamespace(is_connected=self._is_client, get_context=self._context)
        self.util = SimpleNamespace(client=SimpleNamespace(ray=client))

    def is_initialized(self) -> bool:
        return bool(self.at)

    def init(self, address: str, **more: Any) -> None:
        if self.at:
            raise RuntimeError("called twice")
        time.sleep(0.05)  # while others try, too
        self.at = "10.0.0.1:6379" if address == "auto" else address
        self.made.append(address)

    def shutdown(self) -> None:
        self.ended += bool(self.at)
        self.at = ""

    def get_runtime_context(self) -> Any:
        assert self.at, "Ray would connect somewhere"
        return SimpleNamespace(gcs_address=self.at)

    def _is_client(self) -> bool:
        return self.at.startswith("ray://")

    def _context(self) -> Any:
        return SimpleNamespace(client_worker=SimpleNamespace(_conn_str=self.at.removeprefix("ray://")))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    found = Ray()
    monkeypatch.setattr(ray_connection, "_ray", lambda: found)
    monkeypatch.setattr(ray_connection, "_reach", lambda *given: None)
    monkeypatch.setattr(ray_connection, "_PROCESS", ray_connection._Process())
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return found


@pytest.fixture
def opened(ray: Ray) -> Callable[[str], RayConnection]:
    def make(address: str) -> RayConnection:
        connection = RayConnection(address)
        connection.open()
        return connection

    return make


def test_the_last_fleet_ends_the_connection(ray: Ray, opened: Callable[[str], RayConnection]) -> None:
    one, two = opened("ray://h:1"), opened("ray://h:1")
    assert one.is_outside and two.is_outside
    one.close()
    one.close()
    assert ray.at
    two.close()
    assert (ray.at, ray.made, ray.ended) == ("", ["ray://h:1"], 1)


def test_fleets_that_open_at_the_same_time_connect_once(ray: Ray) -> None:
    connections = [RayConnection("h:1") for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(RayConnection.open, connections))
        assert ray.made == ["h:1"]
        list(threads.map(RayConnection.close, connections))
    assert (ray.at, ray.ended) == ("", 1)


def test_a_connection_that_the_program_made_stays(ray: Ray, opened: Callable[[str], RayConnection]) -> None:
    ray.init("ray://h:1")
    opened("auto").close()
    opened("ray://h:1").close()
    assert (ray.at, ray.ended) == ("ray://h:1", 0)


@pytest.mark.parametrize(
    ("at", "named"),
    [
        ("ray://10.0.0.1:10001", "ray://10.0.0.2:10001"),
        ("ray://10.0.0.1:10001", "ray://10.0.0.1:10002"),
        ("ray://10.0.0.1:10001", "10.0.0.1:10001"),
        ("10.0.0.1:6379", "ray://10.0.0.1"),
        ("10.0.0.1:6379", "10.0.0.2:6379"),
    ],
)
def test_no_other_cluster_is_used_than_the_one_that_was_named(ray: Ray, at: str, named: str) -> None:
    ray.init(at)
    with pytest.raises(ClusterUnreachable, match=r"is connected to the Ray cluster .* call `ray.shutdown\(\)` first"):
        RayConnection(named).open()
    assert ray.at == at


@pytest.mark.parametrize(
    ("at", "named"),
    [
        ("ray://10.0.0.1:10001", "ray://10.0.0.1"),
        ("10.0.0.1:6379", "127.0.0.1:6379"),
        ("10.0.0.1:6379", "localhost:6379"),
        ("[::1]:6379", "[::1]:6379"),
        ("ray://no.such.host.invalid:10001", "ray://no.such.host.invalid:10001"),
    ],
)
def test_one_place_may_have_several_names(
    ray: Ray, at: str, named: str, opened: Callable[[str], RayConnection]
) -> None:
    ray.init(at)
    opened(named).close()
    assert ray.at == at


def test_after_a_lost_connection_there_is_another(ray: Ray, opened: Callable[[str], RayConnection]) -> None:
    """The fleet that lost it closes later, and must not end the new one."""
    lost = opened("ray://h:1")
    ray.at = ""
    new = opened("ray://g:1")
    lost.close()
    assert ray.at == "ray://g:1"
    new.close()
    assert ray.at == ""


def test_a_connection_that_the_program_made_meanwhile_is_not_ended(
    ray: Ray, opened: Callable[[str], RayConnection]
) -> None:
    ours = opened("ray://h:1")
    ray.shutdown()
    ray.init("ray://g:1")
    ours.close()
    opened("auto").close()
    assert ray.at == "ray://g:1"


def test_a_connection_that_cannot_be_made_leaves_nothing(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **more: object) -> None:
        raise ConnectionError("away")

    with monkeypatch.context() as changed:
        changed.setattr(ray, "init", refuse)
        failed = RayConnection("h:1")
        with pytest.raises(ClusterUnreachable, match="away"):
            failed.open()
        failed.close()
    again = RayConnection("h:1")
    again.open()
    again.close()
    assert (ray.made, ray.ended) == (["h:1"], 1)
