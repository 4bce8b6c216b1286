"""The garbage collector pauses while a value is encoded or decoded, and is then as it was before."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from ramify.runtime.codec import codec
from ramify.runtime.codec.collector_pause import collector_paused
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.errors import NotSerialisable


@dataclass
class Point:
    x: int
    seen: list[bool]


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()


@contextmanager
def collections() -> Iterator[list[int]]:
    """Yield a list that gets the generation of each collection."""
    begun = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield begun
    finally:
        gc.callbacks.remove(note)


def test_nothing_is_collected_while_containers_are_made() -> None:
    value = [Point(at, [True]) for at in range(5000)]
    text = codec.encode(value)
    for make in (lambda: Encoded(value), lambda: codec.decode(text), Encoded(value).value):
        assert gc.isenabled()
        with collections() as begun:
            made = make()
        assert len(begun) <= 1, "one that begins when the pause is over"
        del made


@pytest.mark.parametrize(
    "work",
    [
        lambda: codec.encode([1]),
        lambda: codec.decode('{"$":"tuple","v":[1]}'),
        lambda: Encoded([1]).value(),
        lambda: codec.encode([object()]),
        lambda: codec.decode('{"$":"unknown","v":1}'),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was(work: Callable[[], object], enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with suppress(NotSerialisable):
        work()
    assert gc.isenabled() is enabled


def test_a_child_that_is_forked_in_a_pause_collects() -> None:
    with collector_paused():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
