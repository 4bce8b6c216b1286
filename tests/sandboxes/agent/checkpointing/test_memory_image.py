"""The arithmetic of memory images: areas cut at grounds and holes, merged runs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.sandboxes.agent.checkpointing.byte_ranges import union
from ramify.sandboxes.agent.checkpointing.memory_image import (
    HOLE,
    BasePages,
    Place,
    StoredArea,
    _own_runs,
    _split_at_base,
    _Stopped,
    _without_holes,
    places,
)
from ramify.sandboxes.linux.process_memory import PAGE, Area, areas

AT = 1 << 20
runs = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 40))).map(
    lambda found: sorted((offset * PAGE, length * PAGE) for offset, length in found)
)


def area(size: int, name: str = "") -> Area:
    return Area(AT, AT + size, "rw-p", 0, "00:00", 0, name)


def pages(found: list[tuple[int, int]]) -> set[int]:
    return {at for offset, length in found for at in range(offset, offset + length, PAGE)}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=8), st.integers(1, 60))
def test_an_area_is_cut_where_its_ground_begins_and_ends(wanted: list[tuple[int, int]], size: int) -> None:
    base, end = [], 0
    for number, (gap, length) in enumerate(wanted):
        start = end + gap * PAGE
        end = start + length * PAGE
        base.append(Place(AT - 10 * PAGE + start, AT - 10 * PAGE + end, number * 100 * PAGE))
    whole = area(size * PAGE)
    parts = list(_split_at_base(whole, base))
    assert [part.start for part, _ in parts] == [whole.start, *(part.end for part, _ in parts[:-1])]
    assert parts[-1][0].end == whole.end
    for part, below in parts:
        for at in range(part.start, part.end, PAGE):
            expected = [place.at + at - place.start for place in base if place.start <= at < place.end]
            assert expected == ([] if below < 0 else [below + at - part.start])


@given(runs, st.integers(0, 3000))
def test_areas_cut_at_holes_are_the_same_memory(found: list[tuple[int, int]], more: int) -> None:
    own = list(union(found))
    size = (own[-1][0] + own[-1][1] if own else PAGE) + more * PAGE
    parts = list(_without_holes(area(size), own))
    assert [kept.area.start for kept in parts] == [AT, *(kept.area.end for kept in parts[:-1])]
    assert parts[-1].area.end == AT + size
    assert pages([(k.area.start - AT + offset, length) for k in parts for offset, length in k.runs]) == pages(own)
    for kept in parts:
        marks = [0, *(mark for offset, length in kept.runs for mark in (offset, offset + length)), kept.area.size]
        widest = max(after - before for before, after in zip(marks[::2], marks[1::2], strict=True))
        assert not kept.runs or widest < HOLE


def test_a_stack_is_never_cut() -> None:
    own = ((0, PAGE), (4 * HOLE, PAGE))
    assert [kept.runs for kept in _without_holes(area(5 * HOLE, "[stack]"), own)] == [own]


def test_positions_in_an_image() -> None:
    mapped, few = (
        StoredArea(area(1 << 20), 0, ((0, 1 << 18),)),
        StoredArea(area(1 << 20), 1 << 20, ((5 * PAGE, PAGE), (0, PAGE))),
    )
    assert list(mapped.placed()) == [(0, 0, 1 << 18)]
    assert list(few.placed()) == [(1 << 20, 5 * PAGE, PAGE), ((1 << 20) + PAGE, 0, PAGE)]
    assert (mapped.room, few.room) == (1 << 20, 2 * PAGE)
    assert places([mapped, few], whole=True) == (Place(AT, AT + (1 << 20), 0),)


def test_a_ground_lists_its_data(tmp_path: Path) -> None:
    with (tmp_path / "pages").open("w+b") as file:
        os.pwrite(file.fileno(), b"x" * PAGE, 64 * PAGE)
        os.ftruncate(file.fileno(), 256 * PAGE)
        base = BasePages(file.fileno(), 0, ("", 0), ())
        held = pages(list(base.holding(16 * PAGE, 128 * PAGE)))
        assert 48 * PAGE in held
        assert pages(list(base.holding(200 * PAGE, 256 * PAGE))) <= {at * PAGE for at in range(56)}


def test_own_pages_of_all_areas_are_those_of_each() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([sys.executable, "-c", program]) as stopped:
        os.waitpid(stopped.pid, os.WUNTRACED)
        try:
            found = areas(stopped.pid)
            with Path(f"/proc/{stopped.pid}/pagemap").open("rb") as pagemap:
                runs = _own_runs(pagemap.fileno(), found)
                if runs is None:
                    pytest.skip("PAGEMAP_SCAN needs Linux 6.7")
                at_once, each = (_Stopped(pagemap.fileno(), -1, (), known) for known in (runs, None))
                for one in found:
                    for part in (one, replace(one, start=one.end - PAGE), replace(one, end=one.start + PAGE)):
                        assert list(at_once.own(part)) == list(each.own(part)), part
        finally:
            stopped.kill()
