"""What the host asks of its keeper (keeper.py), and how it travels. No logic; stdlib only.

One datagram asks, one answers, in the same order. Descriptors come beside an answer. Paths are the host's.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, fields

BIGGEST = 1 << 17  # bytes in a datagram
FEW = 16  # overlays in one order, so that other orders wait no longer than some milliseconds


@dataclass(frozen=True, slots=True)
class Over:
    """Where one overlay writes, and where the keeper holds it. `upper` "": nowhere, it is read-only."""

    upper: str  # made like the uppermost layer where it is not there yet
    work: str  # made
    point: str  # its name with the keeper; "": it is given away as a descriptor and not kept
    fresh: bool = False  # both were made before, empty: `upper` is to be made like the uppermost layer all the same


@dataclass(frozen=True, slots=True)
class Mount:
    """Mount overlays over one stack, all or none. Answered with a descriptor for each that is not kept."""

    lowers: list[str]  # the bottom first; "@name/…" is an overlay or a folder that the keeper holds
    overlays: list[Over]


@dataclass(frozen=True, slots=True)
class Piece:
    path: str
    kind: str  # "folder", "file", "whiteout"
    mode: int = 0o755
    mtime_ns: int = -1  # -1: now
    text: str = ""  # of a file


@dataclass(frozen=True, slots=True)
class Furnish:
    """Make a folder of the keeper's own, "@point" in a stack: what a layer needs that lies in no store."""

    point: str
    pieces: list[Piece]  # a folder before what it holds


@dataclass(frozen=True, slots=True)
class Clone:
    """A descriptor of an overlay that the keeper holds, to be attached somewhere else."""

    point: str


@dataclass(frozen=True, slots=True)
class Unmount:
    """Let go of an overlay. `ok` is false, with all as before, where a host process has something open in it."""

    point: str
    lazily: bool = False  # whoever holds it: for a world that has ended


@dataclass(frozen=True, slots=True)
class Answer:
    pid: int  # the keeper's own
    ok: bool = True
    error: str = ""


Order = Mount | Furnish | Clone | Unmount
_KINDS: dict[str, type[Order | Answer]] = {kind.__name__: kind for kind in (Mount, Furnish, Clone, Unmount, Answer)}


def pack(message: Order | Answer) -> bytes:
    return json.dumps([type(message).__name__, _plain(message)]).encode()


def _plain(message: object) -> dict[str, object]:
    values = {f.name: getattr(message, f.name) for f in fields(message)}  # type: ignore[arg-type]
    if isinstance(message, Mount):
        values["overlays"] = [[over.upper, over.work, over.point, over.fresh] for over in message.overlays]
    if isinstance(message, Furnish):
        values["pieces"] = [list(astuple(piece)) for piece in message.pieces]
    return values


def unpack(data: bytes) -> Order | Answer:
    kind, values = json.loads(data)
    if kind == "Mount":
        values["overlays"] = [Over(*over) for over in values["overlays"]]
    if kind == "Furnish":
        values["pieces"] = [Piece(*piece) for piece in values["pieces"]]
    return _KINDS[kind](**values)
