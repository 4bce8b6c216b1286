"""Channels of a graph over worlds: the world's position, reducers that say where they failed, joins and topics.

**The world channel** is added after the graph was compiled, so it is in no schema and no stream. LangGraph's history,
time travel and forks carry it like any other value. It holds only primitives, because any checkpointer's serialiser
has to store it.

**Reducers.** If a user's reducer raises, its error stays as in plain LangGraph, with a note that names the channel,
the reducer's line and the two types.

**Joins and topics.** LangGraph's barrier hands out the set that it goes on changing, and a `Topic` that accumulates
its list. With durability="async", a checkpoint is written while the next superstep runs, and could hold what arrived
in that superstep: a thread resumed from it would never reach the join, or hold a value twice. So checkpoints get a
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from types import FunctionType
from typing import Any, Self, TypeVar, cast

from langgraph.channels.base import BaseChannel
from langgraph.channels.binop import BinaryOperatorAggregate
from langgraph.channels.named_barrier_value import NamedBarrierValue
from langgraph.channels.topic import Topic
from langgraph.errors import EmptyChannelError

from ramify.compiler.plan import site_file
from ramify.runtime.langgraph.compat import MISSING, PregelLoop
from ramify.runtime.langgraph.errors import note_channel
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition, copy_fork


class WorldChannel(BaseChannel[StoredPosition, StoredPosition, StoredPosition]):
    """The channel of the world's position. The write of one task replaces the value; the writes of several become a
    join. LangGraph passes writes in the order of task paths, so it does not matter which task finished first."""

    __slots__ = ("made", "value")

    def __init__(self, typ: Any = dict, key: str = ENV, made: Callable[[WorldChannel], None] | None = None) -> None:
        """`made` is called with the channel that an invocation gets. There is no other way to it if no node runs."""
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
        copied = object.__new__(type(self))  # every conditional edge copies the channels
        copied.typ, copied.key, copied.value, copied.made = self.typ, self.key, self.value, None
        return copied

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
    """Return the position that the writes of one superstep's tasks make together."""
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
    copy_fork(first, env)
    return env


T = TypeVar("T")


def instrumented_channels(channels: Mapping[str, T]) -> dict[str, T]:
    """Return the channels, with copies of joins, topics and channels with a user's reducer: the given graph stays as
    it is."""
    return {name: _with_noted_reducer(name, with_copied_checkpoints(channel)) for name, channel in channels.items()}


def _with_noted_reducer(name: str, channel: T) -> T:
    if not isinstance(channel, BinaryOperatorAggregate) or not isinstance(channel.operator, FunctionType):
        return channel
    if hasattr(channel.operator, _MARK):
        return channel
    mine = channel.copy()
    mine.operator = _noting_errors(channel.operator, name)
    return mine


_MARK = "__ramify_placed__"


def _noting_errors(reducer: FunctionType, channel: str) -> Callable[[object, object], object]:
    @wraps(reducer)
    def joined(held: object, update: object) -> object:
        try:
            return reducer(held, update)
        except Exception as error:
            code = reducer.__code__
            error.add_note(
                f"{site_file(code.co_filename)}:{code.co_firstlineno}: reducer {reducer.__qualname__} of channel "
                f"{channel} raised: the channel held a {type(held).__name__}, the update is a "
                f"{type(update).__name__}; "
                f"make it join everything that a node may write to {channel}"
            )
            raise

    setattr(joined, _MARK, True)
    return joined


class _Barrier(NamedBarrierValue[Any]):
    __slots__ = ()

    def checkpoint(self) -> set[Any]:
        return set(self.seen)


class _Topic(Topic[Any]):
    __slots__ = ()

    def checkpoint(self) -> list[Any]:
        return list(self.values)


def with_copied_checkpoints(channel: T) -> T:
    """Return the channel; if it hands out what it goes on changing, a copy whose checkpoints do not change."""
    mine: BaseChannel[Any, Any, Any]
    if type(channel) not in (NamedBarrierValue, Topic):  # a user's own kind of topic does more
        return channel
    if isinstance(channel, NamedBarrierValue):  # the barrier of a deferred node is not affected
        mine = _Barrier(channel.typ, channel.names)
    elif isinstance(channel, Topic) and channel.accumulate:
        mine = _Topic(channel.typ, accumulate=True)
    else:
        return channel
    mine.key = cast(BaseChannel[Any, Any, Any], channel).key
    return cast(T, mine)


def note_unserializable_channel(error: BaseException, loop: PregelLoop | None) -> None:
    """Add a note to a serialiser's error that names the channel. A foreign checkpointer raised it without saying
    which value failed, so its serialiser is tried again for each channel."""
    checkpointer = loop.checkpointer if loop is not None else None
    if loop is None or checkpointer is None or not isinstance(error, TypeError | ValueError):
        return
    if any("no checkpoint can keep" in note for note in getattr(error, "__notes__", ())):
        return
    for channel, value in _written(loop):
        try:
            checkpointer.serde.dumps_typed(value)
        except (TypeError, ValueError) as again:
            if str(again) == str(error):
                note_channel(error, channel, value)
                return


def _written(loop: PregelLoop) -> Iterator[tuple[str, Any]]:
    """Yield what the tasks of the last superstep wrote, and what the channels hold."""
    for task in loop.tasks.values():
        yield from ((channel, value) for channel, value in task.writes if channel in loop.channels)
    for name, channel in loop.channels.items():
        if name != ENV and channel.is_available():
            yield name, channel.checkpoint()
