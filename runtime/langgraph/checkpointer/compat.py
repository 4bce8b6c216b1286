"""All private names of the distribution `langgraph-checkpoint` that Ramify uses, and functions around them.

It loads nothing of LangGraph's graphs: the saver can be used alone, and commands that only read a thread stay quick.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from langgraph.checkpoint.base import id as checkpoint_ids

from ramify.runtime.langgraph.errors import LangGraphChanged

SUPPORTED = ("4",)
"""The major versions of `langgraph-checkpoint` that this module was written for."""

if version("langgraph-checkpoint").partition(".")[0] not in SUPPORTED:
    raise LangGraphChanged.version("langgraph-checkpoint", version("langgraph-checkpoint"), SUPPORTED)

try:
    from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
    from langgraph.checkpoint.serde.jsonplus import _create_msgpack_ext_hook as ext_hook_for
    from langgraph.checkpoint.serde.jsonplus import _msgpack_default as msgpack_form
    from langgraph.checkpoint.serde.jsonplus import _option as MSGPACK_OPTION
    from langgraph.checkpoint.serde.jsonplus import _reconstruction_fallback as reconstruction_fallback
    from langgraph.checkpoint.serde.jsonplus import _send_from_args as send_from_args
    from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot
except ImportError as error:
    raise LangGraphChanged.name("langgraph-checkpoint", str(error)) from error

ERROR_SOURCE_NODE = "__error_source_node__"
"""The channel of the node whose error a handler takes. LangGraph exports it only beside its graphs."""


def advance_ids_past(newest: str) -> None:
    """Make this process's next checkpoint ids greater than `newest`, an id from the database.

    The newest checkpoint is the one with the greatest id. LangGraph's ids hold the time and grow within one process.
    A process or a machine whose clock is behind would otherwise make checkpoints that sort before those of another
    one, and its thread would be found where it was before. Ids that LangGraph did not make are ignored: they do not
    tell the time.
    """
    try:
        there = checkpoint_ids.UUID(newest)
    except ValueError:
        return
    if there.version == 6 and str(checkpoint_ids.uuid6()) < str(there):
        ids: Any = checkpoint_ids
        ids._last_v6_timestamp = there.time


__all__ = [
    "ERROR_SOURCE_NODE",
    "MSGPACK_OPTION",
    "SAFE_MSGPACK_METHODS",
    "SAFE_MSGPACK_TYPES",
    "SUPPORTED",
    "DeltaSnapshot",
    "advance_ids_past",
    "ext_hook_for",
    "msgpack_form",
    "reconstruction_fallback",
    "send_from_args",
]
