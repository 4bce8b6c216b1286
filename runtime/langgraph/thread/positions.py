"""What a checkpoint of a thread holds of its world: by itself, so that who looks at a thread loads no graph."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from ramify.runtime.codec import codec

ENV = "__env__"


class StoredPosition(TypedDict):
    """Where a thread's world stands.

    `join` is there where several tasks ended a superstep: [snapshot, node, branch, checkpoint] of each, in the order
    of their paths. They stand on `snapshot` and are merged when somebody asks for the world.
    """

    run: str
    branch: str
    at: str  # key of the journal row that brought the branch here; "" at its beginning
    snapshot: str
    checkpoint: str  # Ramify's, not LangGraph's
    unsealed: NotRequired[bool]  # the plan sealed nothing here: the live world holds more than `snapshot`
    join: NotRequired[list[list[str]]]
    child: NotRequired[list[str]]  # only in a task's write: one entry of `join`
    base: NotRequired[str]  # in a graph that a node runs: the snapshot of the node's world that it began on
    lender: NotRequired[str]  # beside `base`: that node's task, by its key in the journal


def copy_loan(begun: StoredPosition, env: StoredPosition) -> None:
    """Say in `env` what `begun`, where it stood before, says of the loan that its graph began on."""
    if "base" in begun:
        env["base"] = begun["base"]
    if "lender" in begun:
        env["lender"] = begun["lender"]


def join_key(env: StoredPosition) -> str:
    """What the journal knows a join by: the rows of its merges and of its release begin with it."""
    return f"join {codec.digest([env['branch'], env['at'], env['snapshot'], env['join']])[:24]}"
