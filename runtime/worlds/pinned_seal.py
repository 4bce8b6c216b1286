"""Seal a run's world between steps, so that `ramify gc` keeps what the world stands over."""

from __future__ import annotations

import asyncio

from ramify.fork_engine.gc_pins import Pins
from ramify.fork_engine.types import Snapshot
from ramify.sandboxes.contract import World


async def sealed(world: World, pins: Pins) -> Snapshot:
    """Seal a world, for a row that names its state.

    If this is cancelled, the seal ends all the same, and no row names its state. The state is then kept as long as
    the world lives.
    """
    try:
        return await world.seal(flush=False)
    except asyncio.CancelledError:
        pins.keep_with(world, world.snapshot.id)
        raise
