"""What a backend can do: one flag for each feature, with a reason if it is missing.

A backend never silently does without: if a `WorldSpec` requires a feature that the backend lacks, the world is
refused with `Unsupported` before it is made. `ramify doctor` prints the flags of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ramify.sandboxes.errors import Unsupported


class Feature(StrEnum):
    """The value is the text that people read."""

    # What a world is protected from
    FILE_ISOLATION = "isolates files"  # commands cannot write the host's files
    NETWORK_ISOLATION = "no network"  # only its own loopback can be reached, unless asked for
    KILLS_TREE = "kills process tree"  # no process outlives its world, wherever it hides

    # What a world can be given
    MOUNT_AT = "tree at its own path"  # inside, the tree is at `WorldSpec.mount_at`
    HOST_NETWORK = "network on request"
    EGRESS = "allow-listed connections"  # by a broker outside, with no route inside
    IMAGES = "images"

    # What a snapshot keeps, and its cost
    FORK_BY_MOUNT = "fork by mount"  # a fork takes O(1), not a copy of the tree
    OUTSIDE = "keeps home and tmp"  # changes beside the workspace are part of a snapshot
    SHELL_STATE = "keeps the shell"  # tier c: functions, aliases, options, traps, unexported variables
    COMMANDS = "restarts commands"  # tier d
    REPL = "keeps Python sessions"  # tier b
    CRIU = "dumps processes"  # tier a

    # Limits that are enforced
    MEMORY_LIMIT = "memory limit"
    PROCESS_LIMIT = "process limit"
    FILE_LIMIT = "file size limit"
    DISK_LIMIT = "disk limit"
    OPEN_FILES_LIMIT = "open files limit"
    CPU_LIMIT = "processor time limit"


@dataclass(frozen=True, slots=True)
class Flag:
    """Whether a feature is there. `reason` says why not and what would provide it; it is empty if `yes`."""

    feature: Feature
    yes: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if self.yes is bool(self.reason):
            raise ValueError(
                f"{self.feature.name}: a missing feature needs a reason, and an available one must have none"
            )


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do here. `reason` says why it cannot be used at all; it is empty if it can."""

    backend: str
    flags: tuple[Flag, ...]  # one for each feature, in the order of `Feature`
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if [flag.feature for flag in self.flags] != list(Feature):
            raise ValueError(f"{self.backend}: every feature has one flag, in the features' own order")

    @property
    def available(self) -> bool:
        return not self.reason

    def can(self, feature: Feature) -> bool:
        """Whether worlds of this backend have the feature; false for all if the backend cannot be used."""
        return self.available and self._flag(feature).yes

    def why_not(self, feature: Feature) -> str:
        """Why the feature is missing; "" if it is there."""
        return self.reason or self._flag(feature).reason

    def require(self, feature: Feature) -> None:
        """Raise `Unsupported` if the feature is missing."""
        if not self.can(feature):
            raise Unsupported(self.backend, feature.value, self.why_not(feature))

    def _flag(self, feature: Feature) -> Flag:
        return self.flags[list(Feature).index(feature)]


def flags(nos: Mapping[Feature, str]) -> tuple[Flag, ...]:
    """A flag for every feature: a no for those in `nos`, with its reason, and a yes for all others."""
    return tuple(Flag(feature, not nos.get(feature), nos.get(feature, "")) for feature in Feature)
