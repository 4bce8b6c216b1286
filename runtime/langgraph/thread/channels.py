"""The environment as a channel: what a LangGraph checkpoint holds of the world, and how siblings are joined.

The channel is put into a graph after it was compiled, so it is in no schema and no stream. LangGraph's history,
time travel and forks then carry the world like any other value. Only primitives are in it: it goes through
whatever serialiser a checkpointer uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, Self, TypeVar, cast

from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.errors import EmptyChannelError

from ramify.compiler.plan import site_file
from ramify.runtime.langgraph.thread.barriers import frozen_barrier
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition, copy_loan


class WorldChannel(BaseChannel[StoredPosition, StoredPosition, StoredPosition]):
    """One task's write replaces the value; several become a join. LangGraph hands them over ordered by task path,
    so what finished first does not matter."""

    __slots__ = ("made", "value")

    def __init__(self, typ: Any = dict, key: str = ENV, made: Callable[[WorldChannel], None] | None = None) -> None:
        """`made` is told of the channel that an invocation gets: the only way to it where no node runs."""
        super().__init__(typ, key)
        self.value: Any = MISSING
        self.made = made

    @property
    def ValueType(self) -> Any:
        return self.typ

    @property
    def UpdateType(self) -> Any:
        return self.typ

    def copy(self) -> Self:
        return self.from_checkpoint(self.value)

    def from_checkpoint(self, checkpoint: Any) -> Self:
        channel = type(self)(self.typ, self.key)
        channel.value = checkpoint
        if self.made is not None:
            self.made(channel)
        return channel

    def checkpoint(self) -> Any:
        return self.value

    def is_available(self) -> bool:
        return self.value is not MISSING

    def get(self) -> StoredPosition:
        if self.value is MISSING:
            raise EmptyChannelError
        return cast(StoredPosition, self.value)

    def update(self, values: Sequence[StoredPosition]) -> bool:
        if not values:
            return False
        self.value = joined(values)
        return True


def joined(writes: Sequence[StoredPosition]) -> StoredPosition:
    """What the writes of one superstep's tasks come to."""
    children = [list(write["child"]) for write in writes if "child" in write]
    if not children:
        return writes[-1]
    first = writes[0]
    env: StoredPosition = {
        "run": first["run"],
        "branch": first["branch"],
        "at": first["at"],
        "snapshot": first["snapshot"],
        "checkpoint": first["checkpoint"],
        "join": children,
    }
    copy_loan(first, env)
    return env


T = TypeVar("T")


def placed(channels: Mapping[str, T]) -> dict[str, T]:
    """The channels, joins and those with reducers of the user's in copies: the graph given stays as it is."""
    return {name: _placed(name, frozen_barrier(channel)) for name, channel in channels.items()}


def _placed(name: str, channel: T) -> T:
    if not isinstance(channel, BinaryOperatorAggregate) or not isinstance(channel.operator, FunctionType):
        return channel
    if hasattr(channel.operator, _MARK):
        return channel
    mine = channel.copy()
    mine.operator = _told(channel.operator, name)
    return mine


_MARK = "__ramify_placed__"


def _told(reducer: FunctionType, channel: str) -> Callable[[object, object], object]:
    @wraps(reducer)
    def joined(held: object, update: object) -> object:
        try:
            return reducer(held, update)
        except Exception as error:
            code = reducer.__code__
            error.add_note(
                f"{site_file(code.co_filename)}:{code.co_firstlineno}: reducer {reducer.__qualname__} of channel "
                f"{channel} raised on a {type(held).__name__} that it held and an update of {type(update).__name__}; "
                f"make it join whatever a node may write to {channel}"
            )
            raise

    setattr(joined, _MARK, True)
    return joined
