"""A world in Linux namespaces: a fork is a mount, a seal is a rename.

A world's tree is an overlay: the snapshot's layers below a fresh upper folder. The mount server mounts it before the
world has any process; the world's agent starts with the first request. A seal removes the mount for a moment, hands
the upper folder to the store as a new layer, and mounts the longer stack. What lies beside the tree is sealed in the
same way (home_overlay.py).

Sometimes the mount cannot be removed: a process besides the shell lives, something holds the mount, or it is the root
that the agent itself stands on (an image that has changed). Then all processes are frozen and the upper folders are
copied; the world goes on over its old stack, so its next layer again holds everything since that stack.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ramify.fork_engine.seal import LastSeal
from ramify.fork_engine.types import LayerId, Snapshot
from ramify.sandboxes.agent.messages import Attach, Detach, Done, Start, View
from ramify.sandboxes.agent.mount_view import PRIVATE
from ramify.sandboxes.backends.namespaces.home_overlay import (
    HomeOverlays,
    ImageUser,
    SideOverlay,
    bash_of_image,
    image_user,
)
from ramify.sandboxes.backends.namespaces.place import Place
from ramify.sandboxes.backends.namespaces.placed_world import PlacedWorld
from ramify.sandboxes.backends.namespaces.prepared_places import Places
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.egress.broker import EgressBroker
from ramify.sandboxes.egress.settings import environment
from ramify.sandboxes.errors import SandboxError, WorldStartFailed
from ramify.sandboxes.host import criu
from ramify.sandboxes.host.agent_link import LazyAgentLink
from ramify.sandboxes.host.fork_server_client import ForkServerClient
from ramify.sandboxes.host.ports import PortClient
from ramify.sandboxes.host.scratch import remove_tree
from ramify.sandboxes.host.world_lifecycle import DEFAULT_PATH, ShellState, WorldResources

RESOLVER = Path("/etc/resolv.conf")


class NamespaceWorld(PlacedWorld):
    """One world. Its tree and what lies beside it are overlays; its agent is PID 1 of its namespaces."""

    def __init__(
        self,
        resources: WorldResources,
        helper: ForkServerClient,
        overlays: HomeOverlays,
        snapshot: Snapshot,
        spec: WorldSpec,
        place: Place,
        places: Places,
        broker: EgressBroker | None = None,
    ) -> None:
        super().__init__(resources, helper, snapshot, spec, place, places, broker)
        self._overlays = overlays
        self._base = snapshot  # mounted below the uppers; older than the last seal if that seal had to copy
        self._user: tuple[tuple[LayerId, ...], ImageUser] | None = None  # the image's, by the layers that name it
        self._stayed = LastSeal()  # what seals recorded of the uppers since they were mounted

    @property
    def path(self) -> Path:
        self._require_link()
        return self._helper.trees.path(self._id)

    def _tree_inside(self) -> str:
        return str(self._spec.mount_at)

    def _default_env(self) -> dict[str, str]:
        proxies = {} if self._broker is None else environment()
        user = self._image_user(self._snapshot)
        return {"PATH": DEFAULT_PATH, "HOME": self._overlays.inside if user is None else user.home, **proxies}

    def _image_user(self, snapshot: Snapshot) -> ImageUser | None:
        if snapshot.image is None:
            return None
        layers = (snapshot.image, *snapshot.outside)
        if self._user is None or self._user[0] != layers:
            self._user = layers, image_user(self._resources.store.outside_dirs(snapshot), self._spec.user)
        return self._user[1]

    # Life

    async def _make(self, snapshot: Snapshot) -> Start:
        """Mount the tree, unless it is mounted, and describe the world to its agent."""
        self._stayed.forget()
        if not self._place.has_tree:
            await mount_trees([self], snapshot)
        self._base = snapshot
        self._place.has_tree = False
        image = snapshot.image is not None
        if not image:
            self._refuse_without_bash(Path(os.path.realpath(self._resources.bash)))
        if self._place.agent is None:  # a prepared place has its overlays
            await self._lay_out(snapshot)
        return Start(
            tree=self._tree_inside(),
            private=PRIVATE,
            bash=self._resources.bash if not image else bash_of_image(self._resources.store.outside_dirs(snapshot)),
            env=self._shell_env(snapshot),
            cwd=snapshot.cwd,
            max_output=self._spec.max_output,
            view=View(
                folder=str(self._folder),
                store=self._overlays.store,
                points=[*(beside.point for beside in self._place.beside), self._tree_inside()],
                hidden=[*map(str, self._resources.hidden), *self._overlays.exposed],
                visible=[str(path) for path in self._visible()],
                network=self._spec.network,
                image=image,
                user=self._only_user(snapshot),
                egress=self._broker is not None,
            ),
        )

    def _refuse_without_bash(self, bash: Path) -> None:
        """Raise `WorldStartFailed` if the tree covers this machine's bash and has none at that place."""
        place = os.path.normpath(self._spec.mount_at)
        if bash.is_relative_to(place) and not os.path.lexists(
            self._helper.trees.path(self._id) / bash.relative_to(place)
        ):
            raise WorldStartFailed(f"the tree at {place} would cover {bash}, which a world needs: name another place")

    def _only_user(self, snapshot: Snapshot) -> list[int]:
        """The user and group that stand for the user of Ramify in an image. Nothing for root over root's store, which
        has all the users that there are."""
        user = self._image_user(snapshot)
        if user is None or (os.geteuid() == 0 and user.uid == user.gid == 0):
            return []
        return [user.uid, user.gid]

    async def _lay_out(self, snapshot: Snapshot) -> None:
        self._place.beside = await self._side_overlays(self._folder, snapshot)

    async def _side_overlays(self, folder: Path, snapshot: Snapshot) -> list[SideOverlay]:
        places = [self._spec.mount_at, *self._visible()]
        layers = self._resources.store.outside_dirs(snapshot)
        if count := len(snapshot.image_stack):
            image, above = layers[:count], layers[count:]
            return await self._overlays.overlays_over_image(folder, image, above, places)
        return await self._overlays.overlays_over_host(folder, layers, places)

    def _visible(self) -> tuple[Path, ...]:
        """With the network, also show the resolver's configuration if it lies in a hidden place."""
        shown = self._spec.visible
        if self._spec.dumpable and self._snapshot.image is None and criu.folder().is_dir():
            shown = (*shown, criu.folder())  # it lies in Ramify's home by default, which is hidden
        if not self._spec.network:
            return shown
        resolver = RESOLVER.resolve()
        hides = self._snapshot.image is not None or resolver.is_relative_to("/run")
        if hides and resolver.is_file():
            return (*shown, resolver if self._snapshot.image is None else RESOLVER)
        return shown

    async def _mounted(self, given: list[int]) -> None:
        """Append to `given` a descriptor of every mount that the agent attaches."""
        tree = asyncio.ensure_future(self._helper.trees.clone(self._id))
        try:
            await self._place.mount_beside(given)
        finally:
            given.append(await tree)
        if self._broker is not None:
            await self._broker.hang_up()  # what an earlier start, which failed, has left
            ports = PortClient()
            self._broker.open_ports(ports)
            given.append(ports.give())

    # MountView

    def adopt_tree(self, snapshot: Snapshot) -> None:
        """Its tree was mounted over this snapshot."""
        self._base = snapshot

    # Seals

    async def _seal(self, flush: bool, begun: asyncio.Future[None]) -> Snapshot:
        snapshot = await super()._seal(flush, begun)
        await self._expect(snapshot)
        return snapshot

    async def _seal_files(self, state: ShellState, others: int) -> Snapshot:
        """Seal by moving the uppers if the mounts can be removed, else by copying them while all processes are
        frozen."""
        place = self._place
        outside = not place.unchanged(beside.upper for beside in place.beside)
        if not outside and place.unchanged([str(place.upper)]):
            if state.same_as(self._snapshot):
                return self._snapshot
            return await asyncio.to_thread(self._seal_uppers, state, outside=False, move=False)
        root = outside and self._base.image is not None  # a process cannot unmount the root that it stands on
        if others or root or not await self._unmount_all(outside=outside):
            return await self._frozen(lambda: self._seal_uppers(state, outside=outside, move=False))
        spent = place.spent_works(outside=outside)
        try:
            self._base = await asyncio.to_thread(self._seal_uppers, state, outside=outside, move=True)
        finally:
            await self._remount(outside=outside)
            self._remove_work_folders(spent)
        return self._base

    def _remove_work_folders(self, spent: set[Path]) -> None:
        """Remove work folders that no mount holds any more, in the background: it waits for the disk. Work folders of
        mounts beside the tree stay: without them nothing could be changed there."""

        async def tidy(before: asyncio.Task[None] | None) -> None:
            if before is not None:
                await asyncio.wait({before})
            for work in spent:
                with suppress(OSError):  # it goes with the world's folder, and that removal reports errors
                    await asyncio.to_thread(remove_tree, work)

        self._tidying = asyncio.ensure_future(tidy(self._tidying))

    def _seal_uppers(self, state: ShellState, *, outside: bool, move: bool) -> Snapshot:
        if move:
            self._stayed.forget()
        sealed = self._resources.store.seal_upper(
            self._folder / "upper",
            self._base,
            env=state.env,
            env_unset=state.unset,
            cwd=state.cwd,
            processes=state.processes,
            outside=self._folder / "outside" if outside else None,
            move=move,
            flush=self._flush and not self._stopped,  # stopped processes wait for no disk: the flush comes later
            last_seal=self._stayed,
            follows=self._snapshot,
        )
        if self._maps_files:
            self._stayed.distrust()
        return sealed

    def _started(self) -> bool:
        return self._require_link().pid != 0

    async def _unmount_all(self, *, outside: bool) -> bool:
        """Unmount what is to be sealed, everywhere. False, with all mounts back, if something holds one."""
        link = self._require_link()
        if self._place.warm and isinstance(link, LazyAgentLink):
            await link.start()  # its processes stand still over the tree that goes: they must change over, too
        if self._started() and not (await self._ask(Detach(outside), Done)).ok:
            return False
        if await self._helper.trees.unmount(self._id):
            return True
        await self._attach(outside=outside)
        return False

    async def _remount(self, *, outside: bool) -> None:
        """Mount the longer stack after a seal; after a failed seal the old stack, whose uppers are still there."""
        try:
            await self._place.mount_tree(self._resources.store.lower_dirs(self._base), self._id)
            if outside:
                await self._lay_out(self._base)
            await self._attach(outside=outside)
        except SandboxError:
            await self._end_processes()  # commands would see the host's folder in the tree's place
            raise

    async def _attach(self, *, outside: bool) -> None:
        if not self._started():
            return
        given: list[int] = []
        try:
            if outside:
                await self._place.mount_beside(given)
            given.append(await self._helper.trees.clone(self._id))
            await self._require_link().ask(Attach(outside), given)
        finally:
            for descriptor in given:
                os.close(descriptor)


async def mount_trees(worlds: Sequence[NamespaceWorld], snapshot: Snapshot) -> None:
    """Mount the trees of those worlds that have none, over one snapshot."""
    worlds = [world for world in worlds if not world.place.has_tree]
    if not worlds:
        return
    first = worlds[0]
    lowers = first._resources.store.lower_dirs(snapshot)
    overlays = [world.place.next_tree_overlay(world.id) for world in worlds]
    await first._helper.trees.mount([str(folder) for folder in lowers], overlays)
    top = lowers[-1].stat()
    for world in worlds:
        world.place.note_new_tree(top)
        world.adopt_tree(snapshot)
