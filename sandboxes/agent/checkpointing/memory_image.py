"""Images of a stopped process's memory: whole, or as the difference from an earlier image. Stdlib only; x86_64.

Pages that the process never wrote are not kept: they come from their files again. Pages that it wrote are stored in a
sparse file, area by area. Another process maps that file privately, at the cost of the mapping alone, and shares its
pages until it writes.

When a process is dumped again, its memory is compared with its base (`BasePages`), the file of an earlier dump, and
only the pages that differ are written. A fork maps the base and has the difference written over it. Pages that the
kernel saw no write to since the base was made are not compared (linux/checkpoint_support.py); without
that the comparison reads all memory.
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

from ramify.sandboxes.agent.checkpointing.byte_ranges import (
    BLOCK,
    ByteRange,
    FileReader,
    PageCopier,
    union,
    without,
    write_memory,
)
from ramify.sandboxes.linux.checkpoint_support import WriteTracker
from ramify.sandboxes.linux.process_memory import (
    KERNELS,
    OWN,
    OWN_PAGES,
    PAGE,
    WRITE,
    Addresses,
    Area,
    FileId,
    areas,
)
from ramify.sandboxes.linux.ptrace import Tracee

FEW = 1 << 16  # bytes: smaller contents of an area are copied into the new process instead of mapped
MOST_AREAS = 8192
MOST_BYTES = 1 << 36  # of mapped addresses: the page table entry of each page is read
LOOK = 1 << 27  # bytes of addresses to read entries of at once
HOLE = 1 << 22  # bytes: unused parts of an area of at least this size are left out
SMALL = 1 << 22  # bytes: a difference this small is never worth a new base
SHARE = 8  # nor is one below an eighth of the base: every fork writes the difference


class CannotDump(Exception):
    """Some state of the process that no image can hold. The text says what."""


@dataclass(frozen=True, slots=True)
class StoredArea:
    """An area, or a part of one, and which of its bytes the image holds."""

    area: Area
    at: int = 0  # its position in the image
    runs: tuple[ByteRange, ...] = ()
    below: int = -1  # its position in the base, which the runs are written over; -1 without a base

    @property
    def mapped(self) -> bool:
        """Whether it is mapped from the image as a whole; else its runs are copied."""
        return self.below < 0 and self.area.plain and self._bytes > FEW

    @property
    def _bytes(self) -> int:
        return sum(length for _, length in self.runs)

    @property
    def room(self) -> int:
        """The bytes it takes in the image: all of its size if it is mapped from there, else its runs only."""
        return self.area.size if self.mapped else self._bytes

    def placed(self) -> Iterator[tuple[int, int, int]]:
        """For each run: its position in the image, its offset in the area, and its length."""
        at = self.at
        for offset, length in self.runs:
            yield self.at + offset if self.mapped else at, offset, length
            at += length


@dataclass(frozen=True, slots=True)
class Place:
    """A range of addresses whose pages a file holds, and where they begin in it."""

    start: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class BasePages:
    """A complete file of pages from an earlier dump, which another image may build on."""

    file: int  # a descriptor
    inode: int
    mapped_as: FileId  # how the process itself maps it, if it was restored from it; else ("", 0)
    places: tuple[Place, ...]  # ascending, without overlaps
    writes: WriteTracker | None = None  # of the process that the base was made of, since it was made

    def close(self) -> None:
        self.stop_tracking()
        os.close(self.file)

    def stop_tracking(self) -> None:
        """Compare all pages from now on."""
        if self.writes is not None:
            self.writes.close()

    def duplicate(self) -> BasePages:
        """A copy with a descriptor of its own, which its owner closes. It tracks no writes: it may be for another
        process."""
        return replace(self, file=fcntl.fcntl(self.file, fcntl.F_DUPFD_CLOEXEC, 3), writes=None)

    def holding(self, at: int, end: int) -> Iterator[ByteRange]:
        """The runs of data, not holes, in this part of the file, relative to its beginning."""
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


def places(kept: Iterable[StoredArea], *, whole: bool) -> tuple[Place, ...]:
    """The ranges that other images can build on: of the image's own file (`whole`), or of its base."""
    found = (
        Place(k.area.start, k.area.end, k.at if whole else k.below)
        for k in kept
        if (k.mapped if whole else k.below >= 0)
    )
    return tuple(sorted(found, key=lambda place: place.start))


def kept_areas(found: Sequence[Area], restored_from: Collection[FileId], *, shares_files: bool = False) -> list[Area]:
    """Of all areas of a process those that its image keeps: all but the kernel's. Raises `CannotDump`.

    `restored_from`: files that its pages were mapped from when it was restored; those pages are its own.
    `shares_files`: memory by which it writes to files is mapped again from them.
    """
    if len(found) > MOST_AREAS:
        raise CannotDump(f"it has {len(found)} mappings, more than the maximum of {MOST_AREAS}")
    if sum(area.size for area in found) > MOST_BYTES:
        raise CannotDump(f"it has mapped more than {MOST_BYTES >> 30} GiB of addresses")
    kept = [area for area in found if area.name not in KERNELS]
    for area in kept:
        _check(area, once=area.of in restored_from, shares_files=shares_files)
    return kept


def write_image(
    pid: int,
    found: Sequence[Area],
    memory: int,
    image: int,
    restored_from: Collection[FileId],
    base: BasePages | None,
) -> list[StoredArea]:
    """Write the process's own pages in the areas `found` (`kept_areas`, with their flags) into the file `image`.

    `restored_from`: as there. With `base`, pages that lie there already are left out, unless too much differs.
    """
    with _opened(f"/proc/{pid}/pagemap") as pagemap:
        stopped = _Stopped(pagemap, memory, restored_from, _own_runs(pagemap, found))
        kept = [] if base is None else [one for area in found for one in stopped.over(area, base)]
        if base is None or _needs_new_base(kept, base):
            kept = [one for area in found for one in _without_holes(area, tuple(stopped.own(area)))]
    return _write_areas(image, memory, [_as_kept(one, restored_from) for one in kept])


def _needs_new_base(kept: Sequence[StoredArea], base: BasePages) -> bool:
    """Whether so much differs, or so little of the base is still used, that a new file serves forks better."""
    differs = sum(length for one in kept if one.area.plain for _, length in one.runs)
    used = sum(one.area.size for one in kept if one.below >= 0)
    held = sum(place.end - place.start for place in base.places)
    return differs > max(SMALL, used // SHARE) or held - used > max(SMALL, held // 2)


def _without_holes(area: Area, runs: Sequence[ByteRange]) -> Iterator[StoredArea]:
    """Cut out mapped but unused parts, which readers of the file would otherwise read as zeros."""
    if not area.plain:
        yield StoredArea(area, 0, tuple(runs))
        return
    begin = last = 0
    within: list[ByteRange] = []
    for offset, length in (*runs, (area.size, 0)):
        if offset - last >= HOLE:
            if last > begin:
                yield StoredArea(_slice(area, area.start + begin, area.start + last), 0, tuple(within))
            yield StoredArea(_slice(area, area.start + last, area.start + offset))
            begin, within = offset, []
        if length:
            within.append((offset - begin, length))
        last = offset + length
    if last > begin:
        yield StoredArea(_slice(area, area.start + begin, area.end), 0, tuple(within))


def _write_areas(image: int, memory: int, kept: Sequence[StoredArea]) -> list[StoredArea]:
    placed, at = [], 0
    pages = PageCopier(memory, image)
    for one in kept:
        if one.runs:
            one = replace(one, at=at)
        for place, offset, length in one.placed():
            pages.copy(one.area.start + offset, place, length)
        placed.append(one)
        at += one.room
    pages.write()
    os.ftruncate(image, at)
    return placed


def tracked(tracee: Tracee, base: BasePages) -> BasePages:
    """The base of a stopped process with a record of what the process writes from now on, where the kernel keeps
    one. A base without pages is compared with nothing."""
    if not base.places:
        return base
    held = [area for area in areas(tracee.pid) if area.plain and not area.inode and _overlaps(area, base.places)]
    with _opened(f"/proc/{tracee.pid}/pagemap") as pagemap:
        return replace(base, writes=WriteTracker.begin(tracee, pagemap, [(area.start, area.end) for area in held]))


def _overlaps(area: Area, held: Sequence[Place]) -> bool:
    at = bisect.bisect_right(held, area.start, key=lambda place: place.end)
    return at < len(held) and held[at].start < area.end


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _as_private(area: Area, restored_from: Collection[FileId]) -> Area:
    """The area as it would be had the process never been restored."""
    of_no_file = {"offset": 0, "device": "", "inode": 0, "name": ""}
    return replace(area, **of_no_file) if area.of in restored_from else area  # type: ignore[arg-type]


def _as_kept(one: StoredArea, restored_from: Collection[FileId]) -> StoredArea:
    return replace(one, area=_as_private(one.area, restored_from)) if one.area.of in restored_from else one


@dataclass(frozen=True, slots=True)
class _Stopped:
    """A stopped process, to be read."""

    pagemap: int
    memory: int
    restored_from: Collection[FileId]
    own_runs: Sequence[Addresses] | None  # of all its areas; None if each area has to be asked for

    def own(self, area: Area) -> Iterator[ByteRange]:
        if area.forgets:
            return
        if area.of in self.restored_from:
            yield 0, area.size
        else:
            yield from self._own_pages(area)

    def _own_pages(self, area: Area) -> Iterator[ByteRange]:
        """Runs of the process's own pages: present or swapped out, and not a file's."""
        if "s" in area.modes:
            return
        if self.own_runs is None:
            yield from _own_pages_by_entries(self.pagemap, area)
            return
        first = bisect.bisect_right(self.own_runs, area.start, key=lambda run: run[1])
        for at in range(first, len(self.own_runs)):  # islice would count up to the first, for each area
            start, end = self.own_runs[at]
            if start >= area.end:
                return
            yield max(start, area.start) - area.start, min(end, area.end) - max(start, area.start)

    def over(self, area: Area, base: BasePages) -> Iterator[StoredArea]:
        """Split the area at the base's borders: for each part, the runs that differ from the base, or its own."""
        if not _as_private(area, self.restored_from).plain or area.forgets:
            yield StoredArea(area, 0, tuple(self.own(area)))
            return
        for part, below in _split_at_base(area, base.places):
            runs = self.own(part) if below < 0 else self._differing(part, base, below)
            yield StoredArea(part, 0, tuple(runs), below)

    def _differing(self, part: Area, base: BasePages, below: int) -> Iterator[ByteRange]:
        if part.of == base.mapped_as and part.offset == below and part.inode:
            candidates = self._own_pages(part)  # all other pages are the base itself
        else:
            candidates = union([*self.own(part), *base.holding(below, below + part.size)])
            if base.writes is not None:
                same = base.writes.not_written(self.pagemap, part.start, part.end)
                candidates = without(candidates, ((start - part.start, end - start) for start, end in same))
        return union(
            run for offset, length in candidates for run in self._differing_pages(part, offset, length, base, below)
        )

    def _differing_pages(
        self, part: Area, offset: int, length: int, base: BasePages, below: int
    ) -> Iterator[ByteRange]:
        for first in range(offset, offset + length, BLOCK):
            size = min(BLOCK, offset + length - first)
            here = os.pread(self.memory, size, part.start + first)
            there = os.pread(base.file, size, below + first).ljust(size, b"\0")
            if here != there:
                for at in range(0, size, PAGE):
                    if here[at : at + PAGE] != there[at : at + PAGE]:
                        yield first + at, PAGE


def _split_at_base(area: Area, base: Sequence[Place]) -> Iterator[tuple[Area, int]]:
    """Split an area where the base begins and ends; with each part its position in the base, or -1."""
    at = area.start
    for place in base[bisect.bisect_right(base, at, key=lambda place: place.end) :]:
        start, end = max(place.start, area.start), min(place.end, area.end)
        if start >= area.end:
            break
        if start > at:
            yield _slice(area, at, start), -1
        yield _slice(area, start, end), place.at + start - place.start
        at = end
    if at < area.end:
        yield _slice(area, at, area.end), -1


def _slice(area: Area, start: int, end: int) -> Area:
    return replace(area, start=start, end=end, offset=area.offset + start - area.start if area.inode else 0)


def _check(area: Area, *, once: bool, shares_files: bool) -> None:
    writes = area.protection & WRITE and not shares_files
    if "s" in area.modes and (not area.inode or writes):
        raise CannotDump(f"it shares memory ({area.name or 'of no file'})")
    if not once and area.inode and not area.name.startswith("/"):
        raise CannotDump(f"it has mapped {area.name}")
    if not once and area.name.endswith(" (deleted)"):
        raise CannotDump(f"it has mapped a file that was removed: {area.name}")
    if not area.inode and area.name not in ("", *OWN) and not area.name.startswith("[anon"):
        raise CannotDump(f"it has a mapping of an unknown kind: {area.name}")


def _own_runs(pagemap: int, found: Sequence[Area]) -> list[Addresses] | None:
    """Runs of own pages of the whole process, ascending, by one question for all areas; None before Linux 6.7."""
    try:
        runs = OWN_PAGES.found(pagemap, found[0].start, found[-1].end) if found else ()
        return [(at, at + length) for at, length in union((start, end - start) for start, end in runs)]
    except OSError:
        return None


def _own_pages_by_entries(pagemap: int, area: Area) -> Iterator[ByteRange]:
    """The same from the page table's entries (their bits 63, 62, 61)."""
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


def copy_base_into_memory(memory: int, base: int, kept: StoredArea) -> None:
    """Copy an area's part of the base into memory that is all zeros."""
    for first in range(0, kept.area.size, BLOCK):
        data = os.pread(base, min(BLOCK, kept.area.size - first), kept.below + first)
        if data.count(0) != len(data):
            write_memory(memory, data, kept.area.start + first)


def read_into_memory(memory: int, image: FileReader, kept: StoredArea) -> None:
    """Copy the runs from the image into the memory."""
    for place, offset, length in kept.placed():
        done = 0
        while done < length:
            data = image.read(place + done, length - done)
            write_memory(memory, data, kept.area.start + offset + done)
            done += len(data)
