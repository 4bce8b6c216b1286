"""The environment as a channel: what a LangGraph checkpoint holds of the world, and how siblings are joined.

The channel is put into a graph after it was compiled, so it is in no schema and no stream. LangGraph's history,
time travel and forks then carry the world like any other value. Only primitives are in it: it goes through
whatever serialiser a checkpointer uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, cast

from langgraph._internal._typing import MISSING
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyChannelError

from ramify.runtime.langgraph.env import ENV, Env, keep_loan


class EnvChannel(BaseChannel[Env, Env, Env]):
    """One task's write replaces the value; several become a join. LangGraph hands them over ordered by task path,
    so what finished first does not matter."""

    __slots__ = ("made", "value")

    def __init__(self, typ: Any = dict, key: str = ENV, made: Callable[[EnvChannel], None] | None = None) -> None:
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

    def get(self) -> Env:
        if self.value is MISSING:
            raise EmptyChannelError
        return cast(Env, self.value)

    def update(self, values: Sequence[Env]) -> bool:
        if not values:
            return False
        self.value = joined(values)
        return True


def joined(writes: Sequence[Env]) -> Env:
    """What the writes of one superstep's tasks come to."""
    children = [list(write["child"]) for write in writes if "child" in write]
    if not children:
        return writes[-1]
    first = writes[0]
    env: Env = {
        "run": first["run"],
        "branch": first["branch"],
        "at": first["at"],
        "snapshot": first["snapshot"],
        "checkpoint": first["checkpoint"],
        "join": children,
    }
    keep_loan(first, env)
    return env
