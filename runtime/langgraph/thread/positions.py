"""What a checkpoint says about the thread's world. It imports nothing of LangGraph, so reading a thread loads no
graph."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ramify.runtime.codec import codec

ENV = "__env__"


class StoredPosition(TypedDict):
    """Where a thread's world stands; the value of the world channel.

    `join` is set if several tasks ended a superstep: [snapshot, node, branch, checkpoint] of each, in the order of
    their paths. They began at `snapshot` and are merged when something asks for the world.
    """

    run: str
    branch: str
    at: str  # key of the journal row that brought the branch here; "" at its beginning
    snapshot: str
    checkpoint: str  # Ramify's checkpoint, not LangGraph's
    unsealed: NotRequired[bool]  # the plan sealed nothing here: the live world holds more than `snapshot`
    join: NotRequired[list[list[str]]]
    child: NotRequired[list[str]]  # only in the write of a task: one entry of `join`
    base: NotRequired[str]  # in a graph that a node runs: the snapshot of the node's world at which the graph began
    lender: NotRequired[str]  # next to `base`: journal key of that node's task


def copy_fork(begun: StoredPosition, env: StoredPosition) -> None:
    """Copy to `env` the fork on which the graph of `begun`, its earlier position, began."""
    if "base" in begun:
        env["base"] = begun["base"]
    if "lender" in begun:
        env["lender"] = begun["lender"]


def join_key(env: StoredPosition) -> str:
    """Return the prefix of the journal keys of a join's merges and of its release."""
    return f"join {codec.digest([env['branch'], env['at'], env['snapshot'], env['join']])[:24]}"
