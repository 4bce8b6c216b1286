"""Values to JSON and back: what crosses a step's boundary and what the journal keeps.

JSON's own types stay as they are; everything else becomes `{"$": kind, …}`. No pickle: a stored value can name a
dataclass, an enum, a pydantic model or another class of data by module and qualified name, never code to run, and
never a module to import that the program does not import itself (`typenames`). What comes back is equal to what went
in and of the same type, or `encode` refuses it. Two places that hold one object come back as two equal objects. The
order of a dict is kept, and is no part of a digest but that of `digest_as_given`.

`forms` says what each form holds; a form that was written once stays readable.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from ramify.runtime.codec.decoder import OWN_KINDS, Decoder
from ramify.runtime.codec.encoder import TAG, Encoder, sort_encoded
from ramify.runtime.codec.object_state import holds_itself
from ramify.runtime.codec.type_names import own
from ramify.runtime.errors import NotSerialisable

T = TypeVar("T")


def encode(value: object, what: str = "value") -> str:
    """JSON of a value, ASCII only. Raises `NotSerialisable`, and nothing else of the value's own doing, naming the
    place inside the value, which is `what`."""
    try:
        encoder = Encoder()
        text = _written(encoder, value, what)
        if encoder.unsure:
            _refuse_unless_same(text, value, what)
        return text
    except NotSerialisable:
        raise
    except RecursionError as error:
        where = holds_itself(value, what)
        why = f"{where} is a value that it is itself a part of" if where else "it is nested too deeply"
        mend = "Pass a flat value, with names for what it refers to"
        raise NotSerialisable(f"{what} cannot be kept: {why}. {mend}") from error
    except ValueError as error:  # an integer of thousands of digits
        raise NotSerialisable(f"{what} cannot be kept: {error}") from error
    except Exception as error:  # a property, a hash or an iterator of the value's own
        raise NotSerialisable(f"{what} cannot be kept: reading it raised {type(error).__name__}: {error}") from error


def _written(encoder: Encoder, value: object, what: str) -> str:
    return json.dumps(encoder.encode(value, what), separators=(",", ":"), ensure_ascii=True)


def _refuse_unless_same(text: str, value: object, what: str) -> None:
    """Of a value whose class has a say in what comes back: read it back now, and look."""
    try:
        again = _written(Encoder(), decode(text), what)
    except Exception as error:
        raise NotSerialisable(
            f"{what} cannot be kept: reading it back raised {type(error).__name__}: {error}. Pass plain values, "
            "dataclasses or pydantic models"
        ) from error
    if again != text:
        raise NotSerialisable(
            f"{what} cannot be kept: a {type(value).__qualname__} comes back otherwise than it was. Pass plain "
            "values, dataclasses or pydantic models"
        )


def decode(text: str) -> Any:
    """The value that `encode` was given. Raises `NotSerialisable` where its types are not what they were, or lie in
    a module that the program does not import."""
    return Decoder().decode(json.loads(text))


def decode_own(text: str, kind: type[T]) -> T:
    """As `decode`, of what Ramify itself recorded, as in the row of a model call: a `kind`, of Ramify's own types.
    Any other is refused, and no type of the user's is looked up: for commands that only look."""
    found = Decoder(own, OWN_KINDS).decode(json.loads(text))
    if not isinstance(found, kind):
        raise NotSerialisable(f"a {type(found).__qualname__} is stored where Ramify records a {kind.__qualname__}")
    return found


def digest_text(text: str) -> str:
    """sha256, hex, of what `encode` gave, whatever the order of its dicts."""
    canonical = json.dumps(_canonical(json.loads(text)), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def digest_as_given(text: str) -> str:
    """The same, of dicts in their order: code may loop over one, and what it makes of it is another result then."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest(value: object) -> str:
    """sha256, hex, of a value: equal for equal values of equal types."""
    return digest_text(encode(value))


def _canonical(value: Any) -> Any:
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    if not isinstance(value, dict):
        return value
    canonical = {k: _canonical(v) for k, v in value.items()}
    if value.get(TAG) in ("dict", "defaultdict") or (value.get(TAG) == "sub" and value.get("b") == "dict"):
        canonical["v"] = sort_encoded(canonical["v"])
    return canonical


__all__ = ["decode", "decode_own", "digest", "digest_as_given", "digest_text", "encode"]
