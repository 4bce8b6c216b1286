"""A snapshot's record whose file is damaged or gone: said again from what is left of it, or from its neighbours.

Every guess is held against the id, a digest of all that a restore brings back: what is found is what was there.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.fork_engine.fsck.check import Findings, Part, Parts
from ramify.fork_engine.manifest import MALFORMED
from ramify.fork_engine.snapshot_keys import UNDEFINED, snapshot_id
from ramify.fork_engine.snapshots import fields_of
from ramify.fork_engine.store_folder import read_store_file
from ramify.fork_engine.types import LayerId, Processes, ProcessTier, Snapshot, SnapshotId

_MOST_GUESSES = 200_000  # records tried before one is given up

_FIELD = re.compile(r'"([a-z_]+)":')


def record(parts: Parts, id: SnapshotId, found: Findings) -> Snapshot | None:
    """None where nothing says what it was."""
    if id in found.snapshots:  # sound in all that makes its id
        return found.snapshots[id]
    folder = parts.folder.root / Part.SNAPSHOTS
    files = sorted(found.bad(Part.SNAPSHOTS), key=lambda name: name != id)  # its own first
    remains = itertools.chain.from_iterable(_remains(folder / f"{name}.json") for name in files)
    guesses = itertools.chain(remains, _neighbours(found))
    for guess in itertools.islice(guesses, _MOST_GUESSES):
        if snapshot_id(guess) == id:
            return replace(guess, id=id)
    return None


def _remains(path: Path) -> Iterator[Snapshot]:
    """What a file still says, its end perhaps cut off. The tier stands near the end, and is one of a few."""
    try:
        fields = _fields(read_store_file(path).decode("ascii", "replace"))
    except (OSError, SnapshotCorrupt):
        return
    for tier in (fields.get("tier"), *ProcessTier):
        with suppress(*MALFORMED):
            said = {**fields, "content_key": "", "tier": tier, "parents": (), "merges": ()}
            yield fields_of(said, SnapshotId(""))


def _fields(text: str) -> dict[str, Any]:
    """By name, each that can be read by itself."""
    fields: dict[str, Any] = {}
    decoder, at = json.JSONDecoder(), 0
    while found := _FIELD.search(text, at):
        at = found.end()
        with suppress(ValueError, RecursionError):
            fields[found[1]], at = decoder.raw_decode(text, at)
    return fields


def _neighbours(found: Findings) -> Iterator[Snapshot]:
    """Every state that is a stack which some snapshot begins with, one layer more perhaps, as some snapshot's shell
    had it."""
    known = list(found.snapshots.values())
    layers = sorted(name for part, name in found.manifests if part is Part.LAYERS)
    stacks = {s.layers[:height] for s in known for height in range(1, len(s.layers) + 1)}
    stacks |= {(LayerId(name),) for name in layers}
    fresh = Snapshot(SnapshotId(""), (), UNDEFINED, processes=Processes())
    shells = [fresh, *(replace(s, parents=(), merges=()) for s in known)]
    taller = ((*stack, LayerId(name)) for stack in stacks for name in layers)
    for stack in itertools.chain(sorted(stacks), taller):
        for shell in shells:
            yield replace(shell, layers=stack)
