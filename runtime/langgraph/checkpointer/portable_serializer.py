"""A serialiser that moves values from one database to another without building their types.

The types of a thread belong to the program that made it, which a command that copies the thread does not load. So an
object of LangGraph's form stays the bytes that it is. Only the form that Ramify alone reads (serializers.EXACT) is
built, and written in LangGraph's form: the types of such objects have to be loaded.
"""

from __future__ import annotations

from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import EXT_DELTA_SNAPSHOT

from ramify.runtime.langgraph.checkpointer.compat import MSGPACK_OPTION, DeltaSnapshot, msgpack_form
from ramify.runtime.langgraph.checkpointer.serializers import EXACT, StrictSerializer, exact
from ramify.runtime.langgraph.errors import ThreadNotCopied, TypeNotAllowed

_KINDS = ("null", "bytes", "bytearray", "json", "msgpack")


class PortableSerializer(StrictSerializer):
    """Reads objects as msgpack extensions, and writes what it has read. `keep_exact`: the target is a `Saver`, which
    reads Ramify's own form."""

    def __init__(self, *, keep_exact: bool) -> None:
        super().__init__()
        self._keep_exact = keep_exact

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj is None or isinstance(obj, bytes | bytearray):
            return super().dumps_typed(obj)
        return "msgpack", ormsgpack.packb(obj, default=msgpack_form, option=MSGPACK_OPTION)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Raises `ThreadNotCopied` for values of another serialiser, `TypeNotAllowed` for a type that is not
        loaded."""
        kind, body = data
        if kind not in _KINDS:
            raise ThreadNotCopied.serialised(kind)
        if kind != "msgpack":
            return super().loads_typed(data)
        refused: list[TypeNotAllowed] = []  # ormsgpack replaces the error by one of its own

        def kept(code: int, held: bytes) -> Any:
            if code == EXT_DELTA_SNAPSHOT:  # savers treat such values in their own way
                return DeltaSnapshot(ormsgpack.unpackb(held, ext_hook=kept, option=ormsgpack.OPT_NON_STR_KEYS))
            if code != EXACT or self._keep_exact:
                return ormsgpack.Ext(code, held)
            try:
                return exact(held)
            except TypeNotAllowed as error:
                refused.append(error)
                raise

        try:
            return ormsgpack.unpackb(body, ext_hook=kept, option=ormsgpack.OPT_NON_STR_KEYS)
        except ValueError:
            if refused:
                raise refused[0] from None
            raise
