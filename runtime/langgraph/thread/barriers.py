"""A join's barrier as it was when its checkpoint was taken.

LangGraph's hands out the set that it goes on changing. Under durability="async" a checkpoint is written while the
next superstep runs, and could hold who arrived in that: going on from there, the join was never reached.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from langgraph.channels.named_barrier_value import NamedBarrierValue

T = TypeVar("T")


class _Barrier(NamedBarrierValue[Any]):
    __slots__ = ()

    def checkpoint(self) -> set[Any]:
        return set(self.seen)


def frozen_barrier(channel: T) -> T:
    """The channel, in a copy where it is a barrier: the graph that was given stays as it is."""
    if not isinstance(channel, NamedBarrierValue):  # that of a deferred node is reached all the same
        return channel
    mine = _Barrier(channel.typ, channel.names)
    mine.key = channel.key
    return cast(T, mine)
