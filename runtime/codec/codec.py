"""Encode values as JSON and decode them: step arguments and results, and everything else that the journal stores.

JSON's own types stay as they are; everything else becomes `{"$": kind, …}`. There is no pickle: a stored value can
name a dataclass, an enum, a pydantic model or another data class by module and qualified name. It never names code to
run, nor a module that the program does not import itself (`type_names`). A decoded value is equal to the original and
of the same type; otherwise `encode` refuses it. An object that is referenced twice is decoded as two equal objects.
The order of a dict is kept. It is not part of the digest, except in `digest_as_given`. Nor is the state that is
stored aside (`ASIDE`): a property that is cached, a note that is added to an error.

`encoder` lists the kinds. A kind that was ever written stays readable.
"""

from __future__ import annotations

import json
from typing import TypeVar

from ramify.runtime.codec.decoder import OWN_KINDS, Decoder
from ramify.runtime.codec.encoded_value import Encoded, decode
from ramify.runtime.codec.long_texts import digest_text, sha256_of
from ramify.runtime.codec.type_names import resolve_own
from ramify.runtime.errors import NotSerialisable

T = TypeVar("T")


def encode(value: object, what: str = "value", *, unicode: bool = False) -> str:
    """Return the value as JSON, in ASCII. With `unicode`, a long text keeps its characters if that is shorter.

    `what` names the value in errors. Raises `NotSerialisable`, as `Encoded`.
    """
    return Encoded(value, what, unicode=unicode).text()


def decode_own(text: str, kind: type[T]) -> T:
    """Decode a value that Ramify itself recorded, such as a model call. For commands that only read.

    Only Ramify's own types are looked up, never the user's. Raises `NotSerialisable` if it is not a `kind`.
    """
    found = Decoder(resolve_own, OWN_KINDS).decode(json.loads(text))
    if not isinstance(found, kind):
        raise NotSerialisable(f"a {type(found).__qualname__} is stored where Ramify records a {kind.__qualname__}")
    return found


def is_same(text: str, other: str) -> bool:
    """Whether two texts made by `encode` hold the same value, whatever the order of dict entries, such as that of
    keyword arguments."""
    return text == other or digest_text(text) == digest_text(other)


def digest_as_given(text: str) -> str:
    """Like `digest_text`, but dependent on the order of dict entries: code that loops over a dict may compute another
    result for another order."""
    return sha256_of([text])


def digest(value: object) -> str:
    """Return the sha256 (hex) of a value: equal for equal values of equal types."""
    return Encoded(value).digest()


__all__ = ["Encoded", "decode", "decode_own", "digest", "digest_as_given", "digest_text", "encode", "is_same"]
