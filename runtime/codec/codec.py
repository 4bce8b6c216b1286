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
from typing import Any, TypeVar

from ramify.runtime.codec.decoder import OWN_KINDS, Decoder
from ramify.runtime.codec.encoder import Encoder, sort_encoded
from ramify.runtime.codec.long_texts import (
    PIECE,
    OrderUnknown,
    canonical_parts,
    has_surrogates,
    parse,
    sha256_of,
    with_bytes,
)
from ramify.runtime.codec.object_state import ASIDE, TAG, find_cycle
from ramify.runtime.codec.type_names import resolve_own
from ramify.runtime.errors import NotSerialisable

T = TypeVar("T")

_AS_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode
_AS_UNICODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_CANONICAL = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, sort_keys=True).encode


def encode(value: object, what: str = "value", *, unicode: bool = False) -> str:
    """Return the value as JSON, in ASCII. With `unicode`, values with long strings keep their characters if that is
    shorter.

    `what` names the value in errors. Raises `NotSerialisable`, which names the part of the value that cannot be
    stored; errors that the value's own code raises are wrapped in it.
    """
    try:
        encoder = Encoder(lifts=True)
        text = _encoded(encoder, value, what, unicode)
        if encoder.unsure:
            _refuse_unless_same(text, value, what, unicode)
        return text
    except NotSerialisable:
        raise
    except RecursionError as error:
        where = find_cycle(value, what)
        why = f"{where} contains itself" if where else "it is nested too deeply"
        mend = "Pass a flat value, in which names stand for references"
        raise NotSerialisable(f"{what} cannot be kept: {why}. {mend}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise NotSerialisable(f"{what} cannot be kept: {error}") from error
    except Exception as error:  # a property, a hash or an iterator of the value's own
        raise NotSerialisable(f"{what} cannot be kept: reading it raised {type(error).__name__}: {error}") from error


def _encoded(encoder: Encoder, value: object, what: str, unicode: bool) -> str:
    encoded = encoder.encode(value, what)
    text = _AS_UNICODE(encoded) if unicode and encoder.in_unicode else _AS_JSON(encoded)
    if not text.isascii() and has_surrogates(text):
        text = _AS_JSON(encoded)
    del encoded
    whole = with_bytes(text, encoder.lifted) if encoder.lifts else text
    return _encoded(Encoder(), value, what, unicode) if whole is None else whole


def _refuse_unless_same(text: str, value: object, what: str, unicode: bool) -> None:
    """Decode and encode again a value whose class may change what is decoded; refuse it if the text differs."""
    try:
        again = _encoded(Encoder(), decode(text), what, unicode)
    except Exception as error:
        raise NotSerialisable(
            f"{what} cannot be kept: reading it back raised {type(error).__name__}: {error}. Pass plain values, "
            "dataclasses or pydantic models"
        ) from error
    if again != text:
        raise NotSerialisable(
            f"{what} cannot be kept: a decoded {type(value).__qualname__} differs from the original. Pass plain "
            "values, dataclasses or pydantic models"
        )


def decode(text: str) -> Any:
    """Return the value that was given to `encode`.

    Raises `NotSerialisable` if a type has changed incompatibly, or lies in a module that the program does not import.
    """
    found = parse(text)
    return Decoder().decode(found) if f'"{TAG}"' in text else found  # JSON's own values are what they are


def decode_own(text: str, kind: type[T]) -> T:
    """Decode a value that Ramify itself recorded, such as a model call. For commands that only read.

    Only Ramify's own types are looked up, never the user's. Raises `NotSerialisable` if it is not a `kind`.
    """
    found = Decoder(resolve_own, OWN_KINDS).decode(json.loads(text))
    if not isinstance(found, kind):
        raise NotSerialisable(f"a {type(found).__qualname__} is stored where Ramify records a {kind.__qualname__}")
    return found


def digest_text(text: str) -> str:
    """Return the sha256 (hex) of a text made by `encode`, independent of the order of dict entries."""
    if len(text) <= PIECE:
        return sha256_of([_canonical_text(text, None)])
    return sha256_of(canonical_parts(text, _canonical_text))


def digest_of_parsed(text: str, value: object) -> str:
    """Return `digest_text(text)`. `value`: what `json.loads(text)` would return, so the text is parsed only where its
    long strings are left out."""

    def canonical(part: str, mark: str | None) -> str:
        return _CANONICAL(value) if part is text else _canonical_text(part, mark)

    return sha256_of(canonical_parts(text, canonical))


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
    return digest_text(encode(value))


def _canonical_text(text: str, mark: str | None) -> str:
    """Return the canonical form of a text. `mark`: in a text whose long strings are replaced by it."""
    value = json.loads(text)
    return _CANONICAL(_canonical(value, mark) if f'"{TAG}":' in text else value)


def _canonical(value: Any, mark: str | None) -> Any:
    if isinstance(value, list):
        return [_canonical(v, mark) for v in value]
    if not isinstance(value, dict):
        return value
    canonical = {k: _canonical(v, mark) for k, v in value.items() if k != ASIDE or TAG not in value}
    if value.get(TAG) in ("dict", "defaultdict") or (value.get(TAG) == "sub" and value.get("b") == "dict"):
        if mark is not None:
            _refuse_marked_keys(canonical["v"], mark)
        canonical["v"] = sort_encoded(canonical["v"])
    return canonical


def _refuse_marked_keys(pairs: list[Any], mark: str) -> None:
    """Raise `OrderUnknown` if the keys alone do not give the order of the pairs."""
    keys = [json.dumps(key) for key, _ in pairs]
    if len(set(keys)) < len(keys) or any(mark in key for key in keys):
        raise OrderUnknown


__all__ = [
    "decode",
    "decode_own",
    "digest",
    "digest_as_given",
    "digest_of_parsed",
    "digest_text",
    "encode",
    "is_same",
]
