"""The part of a namespace world that moves from place to place: its starts, its rollbacks and its end.

A place that was prepared has an agent that waits (prepared_places.py). A rollback leaves the old place at once: it is
cleared in the background.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.agent.messages import Adopt, Start
from ramify.sandboxes.backends.namespaces.home_overlay import SideOverlay
from ramify.sandboxes.backends.namespaces.place import Place
from ramify.sandboxes.backends.namespaces.prepared_places import Kind, Pattern, Places, frozen, waiting
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.egress.broker import EgressBroker
from ramify.sandboxes.errors import SandboxError, WorldDied, WorldStartFailed
from ramify.sandboxes.host.agent_link import AgentLink, LazyAgentLink
from ramify.sandboxes.host.agent_world import AgentWorld
from ramify.sandboxes.host.fork_server_client import ForkServerClient
from ramify.sandboxes.host.world_lifecycle import BASE_IMAGES_FOLDER, BaseImages, WorldResources

MOST_CLEARING = 2  # places that a world has left and that are not cleared yet
CLEAR_AFTER_S = 0.01  # so that the first command of the next life goes first


class PlacedWorld(AgentWorld):
    """A world that has one place at a time."""

    def __init__(
        self,
        resources: WorldResources,
        helper: ForkServerClient,
        snapshot: Snapshot,
        spec: WorldSpec,
        place: Place,
        places: Places,
        broker: EgressBroker | None,
    ) -> None:
        super().__init__(resources, snapshot, spec)
        self._helper, self._broker = helper, broker
        self._place, self._places = place, places
        self._start: Start | None = None  # how its agent was started, or will be
        self._expected: Pattern | None = None  # how places are prepared for its snapshots
        self._tidying: asyncio.Task[None] | None = None  # removes work folders
        self._clearing: set[asyncio.Task[None]] = set()  # places that it has left
        self._leaving: asyncio.Task[None] | None = None  # ends the processes of an earlier life

    @property
    def broker(self) -> EgressBroker | None:
        return self._broker

    @property
    def place(self) -> Place:
        return self._place

    @abstractmethod
    async def _side_overlays(self, folder: Path, snapshot: Snapshot) -> list[SideOverlay]:
        """What lies beside the tree at a snapshot, in a world with this folder."""

    @abstractmethod
    async def _mounted(self, given: list[int]) -> None:
        """Append to `given` a descriptor of every mount that a new agent attaches."""

    # Starts

    async def _link_to(self, start: Start) -> AgentLink:
        """Start the agent with the first request; at once if processes of the snapshot or startup commands must
        run."""
        self._start = start
        place = self._place
        if place.agent is not None:
            lazy_link = LazyAgentLink(lambda: self._begin_in(place, start))
        else:
            lazy_link = self._helper.lazy_link(start, self._mounted)
        if self._snapshot.tier.whole or self._spec.startup:
            await lazy_link.start()
        if self._snapshot.tier.whole:
            await self._keep_warm(start)
        return lazy_link

    async def _keep_warm(self, start: Start) -> None:
        """Have the snapshot's shell and processes started ahead: what was rolled back to, or forked with processes,
        will be again."""
        kind = Kind.warm_of(self._snapshot, self._spec)
        if kind is not None and not self._places.expect_again(kind):
            beside = await self._side_overlays(Path(), self._snapshot)
            lowers = self._resources.store.lower_dirs(self._snapshot)
            self._places.expect(Pattern(kind, frozen(start), tuple(beside), tuple(lowers)))

    async def _begin_in(self, place: Place, start: Start) -> AgentLink:
        """Let the agent that waits in this place begin the world's life, or a new one if it has ended. Raises
        `WorldStartFailed`."""
        agent, place.agent = place.agent, None
        if agent is None or not agent.lives:
            if agent is not None:
                await agent.close()
            return await self._helper.lazy_link(start, self._mounted).start()
        try:
            if place.warm:
                await agent.resumed()
            else:
                await self._adopt(agent, start)
        except BaseException as error:
            await agent.close()
            if isinstance(error, WorldDied) and not start.image and not start.sessions:
                return await self._begin_in(place, start)  # no process of the snapshot has run there
            if isinstance(error, SandboxError):
                raise WorldStartFailed(f"a world could not be set up: {error}") from error
            raise
        return agent

    async def _adopt(self, agent: AgentLink, start: Start) -> None:
        trees, given = self._helper.trees, list[int]()
        adopt = Adopt(start.env, start.cwd, start.shell, bool(start.image), start.sessions, start.lost)
        try:
            if start.image:
                given.append(await trees.clone_folder(Path(start.image)))
            given.append(await trees.clone(self._id))
            await agent.ask(adopt, given)
        finally:
            for descriptor in given:
                os.close(descriptor)

    async def _expect(self, snapshot: Snapshot) -> None:
        """Have places prepared for rollbacks to this snapshot and forks of it."""
        kind = Kind.of(snapshot, self._spec)
        if kind is None or self._start is None:
            return
        if self._expected is None or self._expected.kind != kind:
            if self._places.expect_again(kind):
                return
            beside = await self._side_overlays(Path(), snapshot)
            start = replace(waiting(self._start, self._start_env()), whole=kind.whole)
            self._expected = Pattern(kind, start, tuple(beside))
        self._places.expect(self._expected)

    # Rollbacks and the end

    async def _rollback(self, snapshot: Snapshot, begun: asyncio.Future[None]) -> None:
        try:
            await super()._rollback(snapshot, begun)
        finally:
            if begun.done() and self._leaving is not None:
                await self._leaving  # no process of the earlier life is left
                self._leaving = None
        await self._expect(self._snapshot)
        if self._start is not None:
            await self._keep_warm(self._start)

    async def _leave(self, snapshot: Snapshot) -> None:
        """End all processes, and move to another place. The old one is cleared in the background."""
        link, self._link = self._link, None
        self._abandon_processes()
        self._leaving = None if link is None else asyncio.ensure_future(link.leave())
        if self._leaving is not None and (self._spec.network or self._broker is not None):
            await asyncio.wait({self._leaving})  # its connections and ports are the next life's
        if self._broker is not None:
            await self._broker.hang_up()
        if len(self._clearing) >= MOST_CLEARING:
            await asyncio.wait(self._clearing, return_when=asyncio.FIRST_COMPLETED)
        left, self._place = self._place, self._places.claim_one(snapshot, self._spec)
        self._folder = self._place.folder
        self._base_images = BaseImages(self._folder / BASE_IMAGES_FOLDER)
        aside = f"left-{left.folder.name}"
        try:
            await self._helper.trees.replace(self._id, aside, self._place.folder.name if self._place.warm else "")
        finally:
            self._clear(link, left, aside, self._leaving)

    def _clear(self, link: AgentLink | None, place: Place, tree: str, leaving: asyncio.Task[None] | None) -> None:
        """Remove what an earlier life of the world has left, its `tree` among it."""

        async def clear(tidying: asyncio.Task[None] | None) -> None:
            if leaving is not None:
                await asyncio.wait({leaving})
            if len(self._clearing) < MOST_CLEARING:
                await asyncio.sleep(CLEAR_AFTER_S)
            if link is not None:
                await link.close()
            await self._helper.trees.unmount(tree, lazily=True)
            if tidying is not None:
                await asyncio.wait({tidying})
            if place.agent is not None:
                await place.agent.close()
            await asyncio.to_thread(place.remove)

        self._clearing.add(clearing := asyncio.ensure_future(clear(self._tidying)))
        clearing.add_done_callback(self._cleared)

    def _cleared(self, clearing: asyncio.Task[None]) -> None:
        if clearing.exception() is None:  # else the end of the world reports it
            self._clearing.discard(clearing)

    async def _end_processes(self) -> None:
        try:
            await super()._end_processes()
        finally:
            if self._broker is not None:
                await self._broker.hang_up()
            await self._helper.trees.unmount(self._id, lazily=True)
            if self._tidying is not None:
                await asyncio.wait({self._tidying})
            if self._place.agent is not None:
                await self._place.agent.close()
            if self._clearing:
                await asyncio.gather(*self._clearing)
