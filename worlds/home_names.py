"""The names of worlds and the tags of an open home."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.capabilities import Feature
from ramify.sandboxes.contract import WorldSpec
from ramify.sandboxes.errors import Unsupported
from ramify.worlds.errors import WorldError
from ramify.worlds.references import Kind, Reference, References
from ramify.worlds.world_spec import own_variables

if TYPE_CHECKING:
    from ramify.sandboxes.egress.settings import Egress

_WITHOUT_BROKER = ("copy", "docker")


class HomeNames:
    """The part of `WorldHome` that gives and deletes names."""

    references: References
    _clock: Callable[[], float]
    _chosen: Any  # the name of a backend, or what makes one
    _changing: threading.Lock  # a reference is read and written again, also in threads

    def worlds(self) -> list[Reference]:
        """The named worlds, newest first."""
        return self.references.all(Kind.WORLD)

    def tags(self) -> list[Reference]:
        """The tags of snapshots, newest first."""
        return self.references.all(Kind.TAG)

    def tag(self, name: str, snapshot: Snapshot, *, source: str = "") -> None:
        """Give a snapshot a name. Raises `NameTaken`, `BadName`."""
        now = self._clock()
        self.references.put(Kind.TAG, Reference(name, snapshot.id, now, now, source=source), new=True)

    def delete_tags(self, *names: str) -> None:
        """Delete tags. `ramify gc` then deletes the snapshots that nothing else needs. Raises `WorldNotFound` if one
        is missing: then none is deleted."""
        for name in names:
            self.references.get(Kind.TAG, name)
        for name in dict.fromkeys(names):
            self.references.delete(Kind.TAG, name)

    def delete_worlds(self, *names: str) -> None:
        """Delete named worlds that are not open. Their tags stay. Raises `WorldNotFound` if one is missing, and
        `WorldInUse` if one is open: then none is deleted."""
        each = tuple(dict.fromkeys(names))
        for name in each:
            self.references.get(Kind.WORLD, name)
        with ExitStack() as held:
            for name in each:
                held.enter_context(self.references.held(name))
            for name in each:
                self.references.delete(Kind.WORLD, name)

    def copy(self, name: str, new: str) -> Reference:
        """Store a named world's state as another world. Costs one small file. Raises `WorldNotFound`, `NameTaken`."""
        now, found = self._clock(), self.references.get(Kind.WORLD, name)
        copied = replace(found, name=new, created_at=now, updated_at=now, source=name)
        self.references.put(Kind.WORLD, copied, new=True)
        return copied

    def register(self, name: str, snapshot: Snapshot, spec: WorldSpec, source: str) -> Reference:
        """Give a new world a name. Raises `NameTaken`, `BadName`."""
        now, chosen = self._clock(), self._chosen
        reference = Reference(
            name,
            snapshot.id,
            now,
            now,
            backend=chosen if isinstance(chosen, str) else getattr(chosen, "name", ""),
            mount_at=str(spec.mount_at),
            image="" if spec.image is None else str(spec.image),
            network=spec.network,
            egress=None if spec.egress is None else tuple(spec.egress.allow),
            credentials=() if spec.egress is None else tuple(spec.egress.places),
            source=source,
            workdir=spec.workdir,
            user=spec.user,
            command_env=dict(spec.command_env),
            dumpable=spec.dumpable,
            env=own_variables(spec),
        )
        self.references.put(Kind.WORLD, reference, new=True)
        return reference

    def moved(self, reference: Reference, snapshot: Snapshot) -> Reference:
        """Let the name of a world stand for its new state. Raises `WorldNotFound` if the world was deleted."""
        with self._changing:
            now = self.references.get(Kind.WORLD, reference.name)
            changed = replace(now, snapshot=snapshot.id, updated_at=self._clock())
            self.references.put(Kind.WORLD, changed)
        return changed

    def egress_changed(self, reference: Reference, egress: Egress) -> Reference:
        """Record what a named world may connect to from now on. Raises `WorldNotFound`, and `WorldError` or
        `Unsupported` if no list can bound it: it could not be opened any more."""
        with self._changing:
            now = self.references.get(Kind.WORLD, reference.name)
            if now.network:
                raise WorldError(
                    f"the world {now.name!r} has this machine's network, which no list can limit: make a world "
                    "without network=True (--network)"
                )
            if now.backend in _WITHOUT_BROKER:
                raise Unsupported(now.backend, Feature.EGRESS.value, "make a world with the backend namespaces")
            changed = replace(now, egress=tuple(egress.allow), credentials=tuple(egress.places))
            self.references.put(Kind.WORLD, changed)
        return changed
