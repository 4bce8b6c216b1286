"""A stopped process's memory to a file: whole, or as it differs from what was kept before. Stdlib only; x86_64.

Kept again, it is compared with its `Ground`, what was kept of it before, and only the pages that differ are written:
a fork maps the ground, and has the difference written over it. To compare is to read all of it, but nothing is
written, hashed or flushed again. Soft-dirty bits would spare the reading; many kernels are built without them.
"""

from __future__ import annotations

import array
import bisect
import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ramify.sandboxes.linux.memory_map import (
    BLOCK,
    KERNELS,
    OWN,
    PAGE,
    WRITE,
    Area,
    CannotDump,
    FileId,
    Kept,
    Run,
    areas,
)

MOST_AREAS = 8192
MOST_BYTES = 1 << 36  # of addresses: each page of them is asked after
LOOK = 1 << 27  # bytes of addresses, at once
HOLE = 1 << 22  # bytes that an area does not use, from which on they are left out
SMALL = 1 << 22  # bytes: a difference so small never makes another ground worth while
SHARE = 8  # nor one that is smaller than this part of it: each fork has to write it


@dataclass(frozen=True, slots=True)
class Place:
    """Which addresses a file of pages holds, from where on."""

    start: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class Ground:
    """A file of pages that was kept before, whole: another image may stand on it."""

    file: int  # a descriptor
    inode: int
    mapped_as: FileId  # by the process itself, where it was brought back; ("", 0) where it was not
    places: tuple[Place, ...]  # ascending, none over another

    def close(self) -> None:
        os.close(self.file)

    def again(self) -> Ground:
        """The same, to be closed by someone else."""
        return replace(self, file=fcntl.fcntl(self.file, fcntl.F_DUPFD_CLOEXEC, 3))

    def holding(self, at: int, end: int) -> Iterator[Run]:
        """The runs of this part of the file that are no holes, from its beginning."""
        begin = at
        while at < end:
            try:
                first = os.lseek(self.file, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole up to its end
                    return
                raise
            if first >= end:
                return
            at = min(os.lseek(self.file, first, os.SEEK_HOLE), end)
            yield first - begin, at - first


def places(kept: Iterable[Kept], *, whole: bool) -> tuple[Place, ...]:
    """What an image's own file holds (`whole`), or its ground, that others can stand on."""
    found = (
        Place(k.area.start, k.area.end, k.at if whole else k.below)
        for k in kept
        if (k.mapped if whole else k.below >= 0)
    )
    return tuple(sorted(found, key=lambda place: place.start))


def keep(pid: int, memory: int, image: int, came: Collection[FileId], ground: Ground | None) -> list[Kept]:
    """Write what is the process's own into the file `image`; all its areas, but the kernel's.

    `came`: the files that its pages were mapped from when it was brought back, which are its own. With `ground` what
    lies there already is left out, unless too much differs. Raises `CannotDump`.
    """
    found = areas(pid)
    if len(found) > MOST_AREAS:
        raise CannotDump(f"it has {len(found)} mappings, more than the {MOST_AREAS} that are kept")
    if sum(area.size for area in found) > MOST_BYTES:
        raise CannotDump(f"it has mapped more than {MOST_BYTES >> 30} GiB of addresses")
    found = [area for area in found if area.name not in KERNELS]
    for area in found:
        _check(area, once=area.of in came)
    with _opened(f"/proc/{pid}/pagemap") as pagemap:
        stopped = _Stopped(pagemap, memory, came)
        kept = [] if ground is None else [one for area in found for one in stopped.over(area, ground)]
        if ground is None or _too_much(kept, ground):
            kept = [one for area in found for one in _without_holes(area, tuple(stopped.own(area)))]
    return _written_to(image, memory, [replace(one, area=_plainly(one.area, came)) for one in kept])


def _too_much(kept: Sequence[Kept], ground: Ground) -> bool:
    """Whether so much differs, or so little of the ground is used, that a file of its own serves forks better."""
    differs = sum(length for one in kept if one.area.plain for _, length in one.runs)
    used = sum(one.area.size for one in kept if one.below >= 0)
    held = sum(place.end - place.start for place in ground.places)
    return differs > max(SMALL, used // SHARE) or held - used > max(SMALL, held // 2)


def _without_holes(area: Area, runs: Sequence[Run]) -> Iterator[Kept]:
    """Cut out what is mapped and hardly used, which the file would hold as zeros, for all who read it."""
    if not area.plain:
        yield Kept(area, 0, tuple(runs))
        return
    begin = last = 0
    within: list[Run] = []
    for offset, length in (*runs, (area.size, 0)):
        if offset - last >= HOLE:
            if last > begin:
                yield Kept(_part(area, area.start + begin, area.start + last), 0, tuple(within))
            yield Kept(_part(area, area.start + last, area.start + offset))
            begin, within = offset, []
        if length:
            within.append((offset - begin, length))
        last = offset + length
    if last > begin:
        yield Kept(_part(area, area.start + begin, area.end), 0, tuple(within))


def _written_to(image: int, memory: int, kept: Sequence[Kept]) -> list[Kept]:
    placed, at = [], 0
    for one in kept:
        one = replace(one, at=at if one.runs else 0)
        for place, offset, length in one.placed():
            _copy(memory, one.area.start + offset, image, place, length)
        placed.append(one)
        at += one.room
    os.ftruncate(image, at)
    return placed


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _plainly(area: Area, came: Collection[FileId]) -> Area:
    """As it would be, had it never been brought back."""
    return Area(area.start, area.end, area.modes, 0, "", 0, "") if area.of in came else area


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A process that stands still, to be looked through."""

    pagemap: int
    memory: int
    came: Collection[FileId]

    def own(self, area: Area) -> Iterator[Run]:
        if area.of in self.came:
            yield 0, area.size
        else:
            yield from _written(self.pagemap, area)

    def over(self, area: Area, ground: Ground) -> Iterator[Kept]:
        """The area, part by part: what lies over the ground, with what differs, and what does not."""
        if not _plainly(area, self.came).plain:
            yield Kept(area, 0, tuple(self.own(area)))
            return
        for part, below in _parts(area, ground.places):
            runs = self.own(part) if below < 0 else self._differing(part, ground, below)
            yield Kept(part, 0, tuple(runs), below)

    def _differing(self, part: Area, ground: Ground, below: int) -> Iterator[Run]:
        if part.of == ground.mapped_as and part.offset == below and part.inode:
            candidates = _written(self.pagemap, part)  # the rest is the ground itself
        else:
            candidates = _joined([*self.own(part), *ground.holding(below, below + part.size)])
        return _joined(
            run for offset, length in candidates for run in self._unlike(part, offset, length, ground, below)
        )

    def _unlike(self, part: Area, offset: int, length: int, ground: Ground, below: int) -> Iterator[Run]:
        for first in range(offset, offset + length, BLOCK):
            size = min(BLOCK, offset + length - first)
            here = os.pread(self.memory, size, part.start + first)
            there = os.pread(ground.file, size, below + first).ljust(size, b"\0")
            if here != there:
                for at in range(0, size, PAGE):
                    if here[at : at + PAGE] != there[at : at + PAGE]:
                        yield first + at, PAGE


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    """The same bytes, ascending, none twice."""
    begin = end = 0
    for offset, length in sorted(runs):
        if offset > end:
            if end > begin:
                yield begin, end - begin
            begin, end = offset, offset
        end = max(end, offset + length)
    if end > begin:
        yield begin, end - begin


def _parts(area: Area, ground: Sequence[Place]) -> Iterator[tuple[Area, int]]:
    """Cut where the ground begins and ends: each part, and its place in the ground or -1."""
    at = area.start
    for place in ground[bisect.bisect_right(ground, at, key=lambda place: place.end) :]:
        start, end = max(place.start, area.start), min(place.end, area.end)
        if start >= area.end:
            break
        if start > at:
            yield _part(area, at, start), -1
        yield _part(area, start, end), place.at + start - place.start
        at = end
    if at < area.end:
        yield _part(area, at, area.end), -1


def _part(area: Area, start: int, end: int) -> Area:
    return replace(area, start=start, end=end, offset=area.offset + start - area.start if area.inode else 0)


def _check(area: Area, *, once: bool) -> None:
    if "s" in area.modes and (not area.inode or area.protection & WRITE):
        raise CannotDump(f"it shares memory ({area.name or 'of no file'})")
    if not once and area.inode and not area.name.startswith("/"):
        raise CannotDump(f"it has mapped {area.name}")
    if not once and area.name.endswith(" (deleted)"):
        raise CannotDump(f"it has mapped a file that is gone: {area.name}")
    if not area.inode and area.name not in ("", *OWN) and not area.name.startswith("[anon"):
        raise CannotDump(f"it has a mapping of a kind that is not known: {area.name}")


def _written(pagemap: int, area: Area) -> Iterator[Run]:
    """The runs of pages that are this process's own: there or swapped out, and not a file's (bits 63, 62, 61)."""
    if "s" in area.modes:
        return
    begun = -1
    for first in range(0, area.size, LOOK):
        length = min(LOOK, area.size - first)
        pages = array.array("Q", os.pread(pagemap, length // PAGE * 8, (area.start + first) // PAGE * 8))
        for at, page in zip(range(first, first + length, PAGE), pages, strict=True):
            if page >> 61 in (0b100, 0b010):
                begun = at if begun < 0 else begun
            elif begun >= 0:
                yield begun, at - begun
                begun = -1
    if begun >= 0:
        yield begun, area.size - begun


def _copy(memory: int, address: int, image: int, at: int, length: int) -> None:
    buffer = memoryview(bytearray(min(length, BLOCK)))
    done = 0
    while done < length:
        got = os.preadv(memory, [buffer[: length - done]], address + done)
        os.pwrite(image, buffer[:got], at + done)
        done += got
