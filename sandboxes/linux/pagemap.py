"""The state of another process's pages, by PAGEMAP_SCAN on its /proc/PID/pagemap (Linux 6.7). Stdlib only."""

from __future__ import annotations

import ctypes
import fcntl
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SCAN = 0xC0606610  # the request PAGEMAP_SCAN
PROTECT = 1 << 0  # PM_SCAN_WP_MATCHING
WP_ALLOWED, WRITTEN, FILE, PRESENT, SWAPPED = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4  # PAGE_IS_…
ARGUMENT = struct.Struct("=12Q")
REGION = struct.Struct("=3Q")
REGIONS = 512  # read at once

Addresses = tuple[int, int]
"""A range of addresses: its beginning and its end."""


@dataclass(frozen=True, slots=True)
class Pages:
    """Which pages are asked for: those of all categories in `having`, of none in `lacking`, and in memory or swapped
    out."""

    having: int = 0
    lacking: int = 0

    def found(self, pagemap: int, start: int, end: int) -> Iterator[Addresses]:
        """Their ranges between two addresses, ascending. Raises `OSError`: the kernel may not have this request."""
        room = ctypes.create_string_buffer(REGION.size * REGIONS)
        while start < end:
            start, count = self._scan(pagemap, 0, start, end, ctypes.addressof(room), REGIONS)
            yield from (REGION.unpack_from(room, at * REGION.size)[:2] for at in range(count))

    def protect(self, pagemap: int, start: int, end: int) -> None:
        """Note writes to these pages from now on. Raises `OSError`."""
        self._scan(pagemap, PROTECT, start, end, 0, 0)

    def _scan(self, pagemap: int, flags: int, start: int, end: int, room: int, regions: int) -> tuple[int, int]:
        """Where the scan ended, and how many ranges it has put into `room`."""
        categories = (self.lacking, self.having | self.lacking, PRESENT | SWAPPED)  # inverted, all of, any of
        told = PRESENT if regions else 0
        asked = bytearray(ARGUMENT.pack(ARGUMENT.size, flags, start, end, 0, room, regions, 0, *categories, told))
        count = fcntl.ioctl(pagemap, SCAN, asked)
        return ARGUMENT.unpack(asked)[4], count


OWN = Pages(lacking=FILE)
NOT_WRITTEN = Pages(having=WP_ALLOWED, lacking=WRITTEN)
PROTECTABLE = Pages(having=WP_ALLOWED)
