"""A reducer of the user's that raises while a graph runs: its error stays as plain LangGraph gives it, with a note
beneath that names the channel, the line of the reducer, and what it could not join."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType
from typing import TypeVar

from langgraph.channels.binop import BinaryOperatorAggregate

from ramify.compiler.plan import site_file
from ramify.runtime.langgraph.barriers import standing_still

T = TypeVar("T")


def placed(channels: Mapping[str, T]) -> dict[str, T]:
    """The channels, joins and those with reducers of the user's in copies: the graph given stays as it is."""
    return {name: _placed(name, standing_still(channel)) for name, channel in channels.items()}


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
