"""What a world may use, as its agent is told: `contract.Limits` without what the agent cannot import. Stdlib only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fields are those of `Limits`; none: as much as there is."""

    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None
    open_files: int | None = None
    cpu_s: int | None = None
