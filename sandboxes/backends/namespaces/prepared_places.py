"""Places with an agent and a shell that wait for a world, so that a first command need not wait for them.

A fork or a rollback takes one that was made for the same kind of world (`Kind`): its view, its home and /tmp, its
shell's start environment. Only the tree and the shell's state are still to come (`messages.Adopt`). Places are made
in the background, once a world of their kind has been sealed or rolled back.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ramify.fork_engine.errors import ForkEngineError
from ramify.fork_engine.types import LayerId, ProcessTier, Snapshot, SnapshotId
from ramify.sandboxes.agent import host_overlays
from ramify.sandboxes.agent.messages import Start
from ramify.sandboxes.backends.namespaces.home_overlay import SideOverlay
from ramify.sandboxes.backends.namespaces.place import Place, identity_of, make_folders
from ramify.sandboxes.contract import KeptReady, WorldSpec
from ramify.sandboxes.errors import SandboxError
from ramify.sandboxes.host.concurrency import finish_before_cancelling
from ramify.sandboxes.host.fork_server_client import ForkServerClient
from ramify.sandboxes.host.world_lifecycle import RecentBlobs
from ramify.sandboxes.linux.mount_table import MountWatch
from ramify.sandboxes.linux.process_memory import available_bytes

OF_A_KIND, WARM, KINDS = 2, 1, 3
"""Places that wait at most: of a kind for which no more forks are foreseen, of a warm snapshot, and kinds."""
PLACE_BYTES, SHARE = 8 << 20, 16
"""What two processes of a place have of their own (of a warm snapshot's, only what they write), and which part of the
memory that is left all places may take."""
AFTER_S = 0.02  # so that the worlds that are being started go first


@dataclass(frozen=True)
class Kind:
    """What worlds must have in common to use the same prepared places."""

    spec: WorldSpec
    image: LayerId | None
    outside: tuple[LayerId, ...]
    whole: bool  # they begin with an image of all processes, the shell among them
    warm: SnapshotId | None = None  # they begin at this snapshot, and its shell and processes are started ahead

    @classmethod
    def of(cls, snapshot: Snapshot, spec: WorldSpec) -> Kind | None:
        """None for worlds that are never prepared: secrets outlive no world, and connections to the host are made
        when a world begins."""
        if spec.secrets or spec.network or spec.egress is not None:
            return None
        return cls(spec, snapshot.image, tuple(snapshot.outside), snapshot.tier.whole)

    @classmethod
    def warm_of(cls, snapshot: Snapshot, spec: WorldSpec) -> Kind | None:
        """The kind whose shell and processes are started ahead; None if the world has others, which are not."""
        starts_none = not spec.startup and not snapshot.processes.commands
        ahead = snapshot.tier in (ProcessTier.NONE, ProcessTier.REPL) and starts_none
        kind = cls.of(snapshot, spec) if ahead or snapshot.tier is ProcessTier.TREE else None
        return None if kind is None else replace(kind, warm=snapshot.id)


@dataclass(frozen=True)
class Pattern:
    """How a world of some kind is started. `start` has nothing of a snapshot, and no folder."""

    kind: Kind
    start: Start
    beside: tuple[SideOverlay, ...]  # `upper` relative to the world's folder
    lowers: tuple[Path, ...] = ()  # the layers of the tree of a warm snapshot
    shell: str = ""  # the blob of the shell's state, unless `start` has it

    def at(self, snapshot: Snapshot, lowers: Sequence[Path], images: str) -> Pattern:
        """How a world of this kind begins at a snapshot, with the shell and processes that it kept. `images`: the
        folder of these processes."""
        env = {name: value for name, value in self.start.env.items() if name not in snapshot.env_unset}
        start = replace(
            self.start,
            env=env | dict(snapshot.env),
            cwd=snapshot.cwd,
            sessions=images,
            waits=False,
            whole=False,
            frozen=True,
        )
        kind = replace(self.kind, warm=snapshot.id)
        return replace(self, kind=kind, start=start, lowers=tuple(lowers), shell=snapshot.processes.shell)


def frozen(start: Start) -> Start:
    """The start of an agent whose world begins, with all its processes, but stands still."""
    assert start.view is not None
    return replace(start, view=replace(start.view, folder=""), frozen=True)


def waiting(start: Start, env: dict[str, str]) -> Start:
    """The start of an agent that waits for such a world. `env`: as the specification has it."""
    assert start.view is not None
    view = replace(start.view, folder="")
    blank = replace(start, env=env, cwd="", shell=b"", image="", sessions="", lost={})
    return replace(blank, view=view, waits=True)


class Places(Protocol):
    """Where a world gets its next place from."""

    def claim_one(self, snapshot: Snapshot, spec: WorldSpec) -> Place: ...

    def expect(self, pattern: Pattern) -> None: ...

    def expect_again(self, kind: Kind) -> bool: ...


class PreparedPlaces:
    """The places of one backend that wait. `folder` is the backend's own."""

    def __init__(
        self,
        folder: Path,
        helper: ForkServerClient,
        blobs: RecentBlobs,
        available: Callable[[], int] = available_bytes,
    ) -> None:
        """`available`: the bytes of memory that are left."""
        self._folder, self._helper, self._blobs, self._available = folder, helper, blobs, available
        self._patterns: list[Pattern] = []  # the kind that was asked for last is the first
        self._foreseen: tuple[Kind | None, int] = (None, 0)  # how many forks are about to be made
        self._foreseen_of: SnapshotId | None = None  # … of which snapshot
        self._ready: list[tuple[Kind, Place]] = []
        self._mounts = MountWatch()
        self._making: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self, kind: Kind | None, n: int) -> list[Place]:
        """At most `n` places for worlds of this kind. The caller closes their agents and removes their folders."""
        if kind is None or n <= 0:
            return []
        if self._mounts.changed():
            self._discard(self._ready)
        mine = [one for one in self._ready if one[0] == kind]
        outdated = [one for one in mine if _outdated(one[1])]
        self._discard(outdated)
        mine = [one for one in mine if one not in outdated][:n]
        self._ready = [one for one in self._ready if one not in mine]
        if self._foreseen[0] == kind:
            self._foreseen = (kind, max(0, self._foreseen[1] - n))
        if mine:
            self._restock()
        return [place for _, place in mine]

    def expect_again(self, kind: Kind) -> bool:
        """As `expect`, with the pattern that is known for this kind. False if none is."""
        known = next((one for one in self._patterns if one.kind == kind), None)
        if known is not None:
            self.expect(known)
        return known is not None

    def expect(self, pattern: Pattern) -> None:
        """Have places ready for worlds of this kind."""
        found = [pattern, *(other for other in self._patterns if other.kind != pattern.kind)]
        self._patterns = [one for number, one in enumerate(found) if number < KINDS or one.kind == self._foreseen[0]]
        self._restock()

    def foresee(
        self, snapshot: Snapshot, spec: WorldSpec, forks: int, lowers: Sequence[Path], images: str | None
    ) -> KeptReady:
        """Have places ready for so many forks of a snapshot at once, until they are made, others are foreseen, or it
        is forgotten. As far as that can be, its shell and processes are started ahead, over its tree. `lowers`,
        `images`: as in `Pattern.at`; None if there are processes that cannot be restored."""
        kind = Kind.of(snapshot, spec)
        if kind is None:
            return KeptReady(0, "worlds with secrets or connections are never prepared")
        pattern = next((one for one in self._patterns if one.kind == kind), None)
        if pattern is None:
            return KeptReady(0, "no world of this kind has been sealed yet")
        if images is not None and Kind.warm_of(snapshot, spec) is not None:
            pattern = pattern.at(snapshot, lowers, images)
        self._foreseen, self._foreseen_of = (pattern.kind, forks), snapshot.id
        self.expect(pattern)
        room = self._room()
        places = min(self._wanted(pattern.kind), room)
        return KeptReady(places, f"memory has room for {room}" if places < forks else "")

    def forget(self, snapshots: Collection[SnapshotId]) -> int:
        """End what waits at these snapshots."""
        self._patterns = [one for one in self._patterns if one.kind.warm not in snapshots]
        gone = [one for one in self._ready if one[0].warm in snapshots]
        if self._foreseen_of in snapshots:
            self._foreseen, self._foreseen_of = (None, 0), None
            gone += self._surplus()
        self._discard(gone)
        return len(gone)

    def _room(self) -> int:
        """How many places may wait, those that do among them."""
        return len(self._ready) + self._available() // SHARE // PLACE_BYTES

    def _restock(self) -> None:
        """See later what is missing: that takes longer than a request of a world's agent."""
        if not self._closed and (self._making is None or self._making.done()):
            self._making = asyncio.ensure_future(self._make())

    async def _make(self) -> None:
        await asyncio.sleep(AFTER_S)
        self._discard([one for one in self._ready if _outdated(one[1])])
        self._discard_unwanted()
        with suppress(SandboxError, ForkEngineError, OSError):  # a world that starts its own agent reports it
            while (pattern := self._missing()) is not None:
                try:
                    await finish_before_cancelling(self._prepare(pattern))
                except (SandboxError, ForkEngineError, OSError):
                    if pattern.kind.warm is None:
                        raise
                    self._patterns = [one for one in self._patterns if one is not pattern]  # others can be prepared
                self._discard_unwanted()  # it may have been forgotten meanwhile

    def _missing(self) -> Pattern | None:
        """The kind that lacks a place most urgently; None if memory has room for no more."""
        kinds = [kind for kind, _ in self._ready]
        lacks = (one for one in self._patterns if kinds.count(one.kind) < self._wanted(one.kind))
        found = next(lacks, None)
        return None if found is None or self._room() <= len(self._ready) else found

    def _wanted(self, kind: Kind) -> int:
        foreseen, forks = self._foreseen
        return max(OF_A_KIND if kind.warm is None else WARM, forks if kind == foreseen else 0)

    def _surplus(self) -> Iterator[tuple[Kind, Place]]:
        """What waits beyond what is wanted: forks that were foreseen were not made."""
        for pattern in self._patterns:
            mine = [one for one in self._ready if one[0] == pattern.kind]
            yield from mine[self._wanted(pattern.kind) :]

    async def _prepare(self, pattern: Pattern) -> None:
        folder = self._folder / secrets.token_hex(6)
        await asyncio.to_thread(make_folders, folder)
        place = Place(folder, self._helper.trees)
        place.beside = [replace(one, upper=str(folder / one.upper)) for one in pattern.beside]
        given: list[int] = []
        try:
            await place.mount_beside(given)
            if pattern.lowers:
                await place.mount_tree(pattern.lowers, folder.name)
                place.has_tree = place.warm = True
                place.layers, place.stack = pattern.lowers, identity_of(pattern.lowers)
                given.append(await self._helper.trees.clone(folder.name))
            view = pattern.start.view
            assert view is not None
            start = replace(pattern.start, view=replace(view, folder=str(folder)))
            if pattern.shell:
                start = replace(start, shell=await self._blobs.get(pattern.shell))
            place.agent = await self._helper.spawn(start, given)
        except BaseException:
            await place.clear()
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)
        self._ready.append((pattern.kind, place))

    def _discard_unwanted(self) -> None:
        kinds = [pattern.kind for pattern in self._patterns]
        self._discard([one for one in self._ready if one[0] not in kinds])
        self._discard(self._surplus())

    def _discard(self, unwanted: Iterable[tuple[Kind, Place]]) -> None:
        gone = list(unwanted)
        self._ready = [one for one in self._ready if one not in gone]
        for _, place in gone:
            self._ending.add(ending := asyncio.ensure_future(place.clear()))
            ending.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End what waits, and prepare no more."""
        self._closed = True
        await self.clear()
        self._mounts.close()

    async def clear(self) -> None:
        """End what waits, until more is expected."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})
        self._discard(self._ready)
        await asyncio.gather(*self._ending, return_exceptions=True)  # the backend's folder is removed as a whole


def _outdated(place: Place) -> bool:
    if place.agent is None or not place.agent.lives or host_overlays.outdated(place.agent.made):
        return True
    return place.warm and place.stack != identity_of(place.layers)
