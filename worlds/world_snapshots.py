"""The states of a live world: snapshot (also in the background), restore, diff, merge, checkout."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ramify import paths
from ramify.fork_engine.gc_pins import WorldPins
from ramify.fork_engine.types import Change, MergeStrategy, Resolver, Snapshot, Written
from ramify.sandboxes import contract
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Reference


class PendingSnapshot(Awaitable[Snapshot]):
    """Await it for the snapshot, once that is on disk. Made by `World.begin_snapshot`.

    The snapshot goes on without being awaited, and if the task that awaits it is cancelled.
    """

    def __init__(self, taken: asyncio.Future[Snapshot], stored: asyncio.Future[Snapshot]) -> None:
        """`taken`: the state, complete but not flushed. `stored`: the same once it is flushed and the world's name
        stands for it."""
        self._taken, self._stored = taken, stored

    def __await__(self) -> Generator[Any, None, Snapshot]:
        return asyncio.shield(self._stored).__await__()

    async def result(self) -> Snapshot:
        """As awaiting it."""
        return await self

    def done(self) -> bool:
        """Whether the snapshot is on disk, or has failed."""
        return self._stored.done()

    async def taken(self) -> None:
        """Wait until the state is taken, or that has failed: the world then stands as it did before the snapshot."""
        await asyncio.wait({self._taken})

    async def ended(self) -> None:
        """Wait until it is on disk or has failed."""
        await asyncio.wait({self._stored})


class WorldSnapshots(ABC):
    """The part of `World` that keeps and changes states."""

    _home: WorldHome
    _live: contract.World
    _spec: contract.WorldSpec
    _origin: Snapshot
    _pending: PendingSnapshot | None  # the last one that was begun
    _world_pins: WorldPins
    _order: asyncio.Lock  # the name stands for the states in the order in which they were made
    _reference: Reference | None

    @abstractmethod
    def _alive(self) -> contract.World:
        """The live sandbox, in its own event loop. Raises `WorldClosed`."""

    @abstractmethod
    def _opened(self) -> contract.World:
        """The live sandbox, wherever this is called. Raises `WorldClosed`."""

    @property
    @abstractmethod
    def name(self) -> str | None:
        """The name that keeps the world."""

    @property
    def state(self) -> Snapshot:
        """The snapshot that the world last started from or was sealed into."""
        return self._given(self._opened().snapshot)

    async def snapshot(self, tag: str | None = None) -> Snapshot:
        """Keep the state as it is now: files, environment, shell, and what the backend keeps of processes. The world
        lives on. If nothing changed, it is the same snapshot. It waits for a command of `run`, and for no other one.

        `ramify gc` keeps it as long as the world is open or this process refers to the result; its id alone does not
        keep it. tag: a name for it, which keeps it until the tag is deleted.

        Raises `NameTaken`, `BadName`, `WorldDied`.
        """
        return self._given(await self._sealed(tag))

    async def delete_tag(self, name: str) -> None:
        """Delete a tag of the world's home, of any snapshot. `ramify gc` then deletes what nothing else needs. Raises
        `WorldNotFound`, `BadName`."""
        self._alive()
        await asyncio.to_thread(self._home.delete_tags, name)

    async def begin_snapshot(self, tag: str | None = None) -> PendingSnapshot:
        """Begin a snapshot, and return while it goes on: it may be written while a model answers.

        Await the result before you report anything that depends on it. The state is that of a moment between this
        call and the next operation on the world, which waits until the state is taken. `fork`, `restore`, `diff`,
        `merge`, `checkout` and `close` wait until it is on disk. Do not use `path` before `taken()`. If the process
        dies first, a named world keeps its previous state. Awaiting the result raises as `snapshot` does.
        """
        async with self._order, AsyncExitStack() as held:
            await held.enter_async_context(self._home.pins.held())
            with self._pinned_if_cancelled():
                taken = await self._alive().begin_seal()
            stored = asyncio.ensure_future(self._stored(taken, tag, self._pending, held.pop_all()))
            self._pending = PendingSnapshot(taken, stored)
            return self._pending

    async def _stored(
        self, taken: asyncio.Future[Snapshot], tag: str | None, before: PendingSnapshot | None, held: AsyncExitStack
    ) -> Snapshot:
        """Flush a state that is being taken, and let the world's name stand for it after that of `before`."""
        async with held:
            try:
                sealed = await taken
                await asyncio.to_thread(self._home.store.flush)
            finally:  # also after a failure: whoever waits for this one waits for all before it
                if before is not None:
                    await before.ended()
            self._keep(sealed)
            if tag is not None:
                self._home.tag(tag, sealed, source=self.name or "")
            return self._given(sealed)

    @contextmanager
    def _pinned_if_cancelled(self) -> Iterator[None]:
        """Keep the state that a seal reached although it was cancelled: the world's tree lies over it."""
        try:
            yield
        except asyncio.CancelledError:
            self._world_pins.moved(self._live.snapshot.id)
            raise

    async def _state_taken(self) -> None:
        if self._pending is not None:
            await self._pending.taken()

    async def _nothing_pending(self) -> None:
        if self._pending is not None:
            await self._pending.ended()

    async def _all_ended(self) -> None:
        """Wait for every snapshot and restore that goes on: each may move the name."""
        async with self._order:
            await self._nothing_pending()

    async def _sealed(self, tag: str | None = None, *, flush: bool = True) -> Snapshot:
        """The state of now. Without `flush` it is lost if the machine crashes, as a world without a name is."""
        async with self._order:
            await self._nothing_pending()
            async with self._home.pins.held():
                return await self._sealed_in_turn(tag, flush=flush)

    async def _sealed_in_turn(self, tag: str | None = None, *, flush: bool = True) -> Snapshot:
        """As `_sealed`; the caller holds `_order` and the pins, and nothing is pending."""
        with self._pinned_if_cancelled():
            sealed = await self._alive().seal(flush=False)
        if flush or self._reference is not None:  # even if nothing changed since a seal without a flush
            await asyncio.to_thread(self._home.store.flush)
        self._keep(sealed)
        if tag is not None:
            self._home.tag(tag, sealed, source=self.name or "")
        return sealed

    async def restore(self, snapshot: str | Snapshot) -> None:
        """Drop all changes and processes, and go back to a snapshot: an id, a tag, or a world's name. Raises
        `WorldError` for one over another image."""
        async with self._order:
            await self._nothing_pending()  # its tag may be the one that is meant
            async with self._home.pins.held():
                state = await asyncio.to_thread(self._home.resolve, snapshot)
                self._world_pins.keep(state.id)  # it may be asked for again
            if state.image_stack != (now := self._alive().snapshot).image_stack:  # a thread takes longer than this
                await asyncio.to_thread(self._home.check_image, state, now, self._spec.image)
            with self._pinned_if_cancelled():
                await self._alive().rollback(state)
            self._keep(state)

    async def diff(self, other: WorldSnapshots | Snapshot | str | None = None) -> list[Change]:
        """Return the changes from `other` to the current state, sorted by path. Without `other`: since the world was
        made or opened. Over an image, changes outside the workspace follow, with absolute paths."""
        now = await self._sealed(flush=False)
        before = self._origin if other is None else await self._state_of(other)
        return await asyncio.to_thread(self._home.store.world_changes, before, now)

    async def merge(
        self,
        other: WorldSnapshots | Snapshot | str,
        *,
        base: Snapshot | str | None = None,
        strategy: MergeStrategy | Resolver = MergeStrategy.FAIL,
    ) -> Snapshot:
        """Merge what `other` changed into this world, three ways, and return the new state. Background processes end;
        what they and others write meanwhile is lost.

        base: the state from which both come; by default their nearest common ancestor. strategy: what to do with
        conflicts. Raises `MergeConflict`, with nothing changed, `NoCommonAncestor`, and `ValueError` for no strategy.
        """
        strategy = MergeStrategy(strategy) if isinstance(strategy, str) else strategy
        await self._nothing_pending()  # its tag may be the one that is meant
        theirs = await self._state_of(other)
        root = None if base is None else await asyncio.to_thread(self._home.resolve, base)
        async with self._order:  # also from the seal on: what another merge brought in between would be lost
            await self._nothing_pending()
            async with self._home.pins.held():
                ours = self._given(await self._sealed_in_turn())
                merged = await asyncio.to_thread(self._merged, root, ours, theirs, strategy)
                if merged.id != ours.id:
                    with self._pinned_if_cancelled():
                        await self._alive().rollback(merged)
                self._keep(merged)
                return self._given(merged)

    def _merged(
        self, base: Snapshot | None, ours: Snapshot, theirs: Snapshot, strategy: MergeStrategy | Resolver
    ) -> Snapshot:
        root = base or self._home.common_ancestor(ours, theirs)
        return self._home.store.merge(root, ours, theirs, strategy=strategy)

    async def checkout(self, folder: str | Path, *, force: bool = False, active_files: bool = False) -> Written:
        """Write the world's files into a folder of the host, missing or empty (with `force`, any). Raises
        `CheckoutRefused`.

        Files that the world changed and that programs run by themselves (hooks and configuration of git, `.envrc`,
        editors' tasks) are left out, unless `active_files`. The result is the list of what was written; its
        `withheld` names the rest.
        """
        now = await self.snapshot()
        target = paths.expanded(folder)
        checkout = partial(self._home.store.checkout, now, target, force=force, active_files=active_files)
        return await asyncio.to_thread(checkout)

    async def _state_of(self, other: WorldSnapshots | Snapshot | str) -> Snapshot:
        if isinstance(other, WorldSnapshots):
            return await other.snapshot()
        return await asyncio.to_thread(self._home.resolve, other)

    def _given(self, state: Snapshot) -> Snapshot:
        """Return the state as a new object for the caller. `ramify gc` keeps the state as long as this object or this
        world is in use."""
        given = replace(state)
        self._world_pins.keep(given.id)
        self._home.pins.keep_with(given, given.id)
        return given

    def _keep(self, state: Snapshot) -> None:
        self._world_pins.moved(state.id)
        if self._reference is not None and self._reference.snapshot != state.id:
            self._reference = self._home.moved(self._reference, state)
