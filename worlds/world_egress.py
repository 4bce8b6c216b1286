"""The network connections of a live world: its allow-list, and the log of its connections."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ramify.sandboxes import contract
from ramify.sandboxes.contract import Brokered, WorldSpec
from ramify.sandboxes.egress.broker import EgressBroker
from ramify.sandboxes.egress.connection_log import Connection, ConnectionFiles
from ramify.sandboxes.egress.settings import Egress, Header
from ramify.worlds.errors import WorldError
from ramify.worlds.home import WorldHome
from ramify.worlds.references import Reference

Allowed = Egress | Sequence[str]


class WorldEgress(ABC):
    """The part of `World` that is about its connections."""

    _home: WorldHome
    _spec: WorldSpec
    _reference: Reference | None

    @abstractmethod
    def _alive(self) -> contract.World:
        """The live sandbox. Raises `WorldClosed`."""

    def _keep_connections(self, live: contract.World) -> None:
        """From now on, write the connections of a named world into its log."""
        broker = _broker(live)
        if broker is not None and self._reference is not None:
            broker.log.keep_in(self._connection_files(self._reference))

    def _connection_files(self, reference: Reference) -> ConnectionFiles:
        return ConnectionFiles(self._home.references.connections(reference.name))

    async def set_egress(self, egress: Allowed) -> None:
        """Change what the world may connect to, while it runs: an allow-list, or an `Egress` with credentials. New
        connections follow it, and connections that it does not allow are cut. Forks inherit it; a named world keeps
        it, without the credentials.

        Raises `BadEntry`, `BadCredential`; `PortTaken` if a command uses the port of a new entry such as
        127.0.0.1:8000; `WorldError` if the world was made without `egress=`.
        """
        broker, changed = _broker(self._alive()), Egress.of(egress)
        if broker is None:
            raise WorldError("this world was made without a broker: make it with egress=[], which allows nothing yet")
        self._spec = replace(self._spec, egress=changed)
        if self._reference is not None:
            self._reference = await asyncio.to_thread(self._home.egress_changed, self._reference, changed)
        await broker.apply(changed)

    async def connections(self) -> list[Connection]:
        """The connections that the world made, or tried to make, oldest first. The log is bounded
        (`connection_log.py`); for a named world it goes back to earlier processes."""
        broker = _broker(self._alive())
        found: dict[str, Connection] = {}
        if self._reference is not None:
            earlier = await asyncio.to_thread(self._connection_files(self._reference).read)
            found = {one.id: one for one in earlier}
        if broker is not None:
            found |= {one.id: one for one in broker.connections()}
        return sorted(found.values(), key=lambda one: one.at)


def recorded_egress(reference: Reference, credentials: Mapping[str, Header] | None) -> Egress | None:
    """The egress with which a named world goes on. Raises `BadEntry`, `BadCredential`, `WorldError`."""
    if reference.egress is None:
        if credentials:
            raise WorldError(
                f"the world {reference.name!r} was made without egress=, so credentials have no effect: leave "
                "them out, or make the world with egress=[]"
            )
        return None
    return Egress(reference.egress, credentials or {}).without(reference.credentials)


def _broker(live: contract.World) -> EgressBroker | None:
    return live.broker if isinstance(live, Brokered) else None
