"""What all parts of benchmarks/worlds.py measure on: the images in each backend, and which peers there are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.rollouts.backends import Backend, Bubblewrap, Docker, Worlds
from benchmarks.rollouts.task_images import TaskImage


@dataclass(frozen=True)
class Bed:
    """ids: of the images in Ramify's store, by name. missing: why a peer cannot be measured, empty if it can.
    no_agent: why there are no rollouts, empty if mini-swe-agent can drive them."""

    folder: Path
    images: list[TaskImage]
    ids: dict[str, str]
    missing: dict[str, str]
    quick: bool
    rollouts: int  # of each backend, for the row of throughput
    no_agent: str = ""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def ours(self) -> Worlds:
        return Worlds(self.home, self.ids)

    @property
    def peers(self) -> list[Backend]:
        return [one for one in (Docker(), Bubblewrap()) if not self.missing[one.name]]

    @property
    def missing_environments(self) -> dict[str, str]:
        """Why a peer cannot be measured in its environment of mini-swe-agent, empty if it can."""
        return {name: why or self.no_agent for name, why in self.missing.items()}

    def peer_or_reason(self, name: str, what: str) -> str:
        """The `peer` of a row: what it is, or why it is missing."""
        return f"not measured: {self.missing[name]}" if self.missing[name] else what

    def rounds(self, full: int, quick: int) -> int:
        return quick if self.quick else full
