"""What a backend can do, one typed flag a feature, each with the reason for its no.

A backend never does quietly without: what a `WorldSpec` asks for and the backend has no flag for is `Unsupported`
before the world is made. `ramify doctor` prints the flags of this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ramify.sandboxes.contract import Limit, WorldSpec
from ramify.sandboxes.errors import Unsupported, WorldStartFailed


class Feature(StrEnum):
    """The value is what people read."""

    # What a world is kept from
    FILE_ISOLATION = "isolates files"  # the host's files cannot be written from inside
    NETWORK_ISOLATION = "no network"  # nothing beside its own loopback can be reached, unless asked for
    KILLS_TREE = "kills process tree"  # no process outlives its world, wherever it hid

    # What a world can be given
    MOUNT_AT = "tree at its own path"  # the tree stands at `WorldSpec.mount_at` inside
    HOST_NETWORK = "network on request"
    IMAGES = "images"

    # What a snapshot keeps, and at what price
    FORK_BY_MOUNT = "fork by mount"  # a fork costs O(1), not a copy of the tree
    OUTSIDE = "keeps home and tmp"  # what changes beside the workspace is part of a snapshot
    SHELL_STATE = "keeps the shell"  # tier c: functions, aliases, options, traps, variables that are not exported
    COMMANDS = "restarts commands"  # tier d
    REPL = "keeps Python sessions"  # tier b
    CRIU = "dumps processes"  # tier a

    # Limits that hold
    MEMORY_LIMIT = "memory limit"
    PROCESS_LIMIT = "process limit"
    FILE_LIMIT = "file size limit"
    DISK_LIMIT = "disk limit"
    OPEN_FILES_LIMIT = "open files limit"
    CPU_LIMIT = "processor time limit"


FEATURE_OF = {
    Limit.MEMORY: Feature.MEMORY_LIMIT,
    Limit.PROCESSES: Feature.PROCESS_LIMIT,
    Limit.FILE: Feature.FILE_LIMIT,
    Limit.DISK: Feature.DISK_LIMIT,
    Limit.OPEN_FILES: Feature.OPEN_FILES_LIMIT,
    Limit.CPU: Feature.CPU_LIMIT,
}
"""The flag behind each limit of `Limits`. A timeout needs none: every backend keeps it."""


@dataclass(frozen=True, slots=True)
class Flag:
    """`reason` says why not, and what would make it a yes; it is empty exactly where `yes`."""

    feature: Feature
    yes: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if self.yes is bool(self.reason):
            raise ValueError(f"{self.feature.name}: a no needs its reason, and a yes has none")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do here. `reason` says why it cannot be used at all, and is empty where it can."""

    backend: str
    flags: tuple[Flag, ...]  # one for each feature, in their order
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if [flag.feature for flag in self.flags] != list(Feature):
            raise ValueError(f"{self.backend}: every feature has one flag, in the features' own order")

    @property
    def available(self) -> bool:
        return not self.reason

    def can(self, feature: Feature) -> bool:
        """Whether worlds of this backend have it: never where the backend cannot be used at all."""
        return self.available and self._flag(feature).yes

    def why_not(self, feature: Feature) -> str:
        """ "" where it can."""
        return self.reason or self._flag(feature).reason

    def require(self, feature: Feature) -> None:
        """Raises `Unsupported`."""
        if not self.can(feature):
            raise Unsupported(self.backend, feature.value, self.why_not(feature))

    def _flag(self, feature: Feature) -> Flag:
        return self.flags[list(Feature).index(feature)]


def flags(nos: Mapping[Feature, str]) -> tuple[Flag, ...]:
    """A flag for every feature: a no with its reason for those named with one, a yes for all the others."""
    return tuple(Flag(feature, not nos.get(feature), nos.get(feature, "")) for feature in Feature)


def wanted(spec: WorldSpec) -> Iterator[Feature]:
    """What a world after `spec` needs of its backend."""
    if spec.image is not None:
        yield Feature.IMAGES
    if spec.network:
        yield Feature.HOST_NETWORK
    if spec.startup:
        yield Feature.COMMANDS
    for limit in spec.limits.asked():
        yield FEATURE_OF[limit]


def check_supported(able: Capabilities, spec: WorldSpec) -> None:
    """Raises `Unsupported` for the first thing that `spec` asks for and the backend has not, and `WorldStartFailed`
    for variables that no process can have."""
    for name, value in (*spec.env.items(), *spec.secrets.items()):
        if not name or "=" in name or "\0" in name + value:  # whose value may be a secret
            raise WorldStartFailed(
                f"no process can have the variable {name!r}: a name is not empty and holds no '=', neither it nor "
                "its value a NUL byte"
            )
    for feature in wanted(spec):
        able.require(feature)
