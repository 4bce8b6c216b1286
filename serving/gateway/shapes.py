"""What a call asks its answer's shape to be, so far as no answer could have it and engines do not see that in time.

llama.cpp makes a grammar of it, and one of a repetition whose least is above its most without end: until its memory
is all that the machine has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ramify.serving.gateway.errors import ApiError, bad_request

_FIELDS = ("response_format", "json_schema", "text", "tools")  # where schemas stand, somewhere within
_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_REPEATED = re.compile(r"(?<!\\)\{\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")  # in a pattern, in a grammar
_OF_A_SHAPE = re.compile(r"JSON schema|grammar")  # in what an engine says of it
_COMMENT = re.compile(r"#[^\r\n]*")


def check_shape(body: Mapping[str, object]) -> None:
    """Raises ApiError, naming the field."""
    for field in _FIELDS:
        for at in _objects(body.get(field)):
            for least, most in _BOUNDS:
                low, high = at.get(least), at.get(most)
                if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                    raise _impossible(field, f"{least} {low} is above {most} {high}")
            pattern = at.get("pattern")
            if isinstance(pattern, str) and (said := _reversed(pattern)):
                raise _impossible(field, f"{said} in a pattern: its least is above its most")
    grammar = body.get("grammar")
    if isinstance(grammar, str) and (said := _reversed(grammar) or _reversed(_COMMENT.sub("", grammar))):
        raise _impossible("grammar", f"{said}: its least is above its most")


def shape_in(message: str, body: Mapping[str, object]) -> str | None:
    """The field that an engine refuses with such words, where that is clear."""
    asked = [field for field in ("grammar", *_FIELDS) if body.get(field)]
    return asked[0] if len(asked) == 1 and _OF_A_SHAPE.search(message) else None


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    """All within it, without recursion: it is a client's."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def _reversed(text: str) -> str | None:
    """The first repetition of this kind."""
    return next((m[0] for m in _REPEATED.finditer(text) if int(m[1]) > int(m[2])), None)


def _impossible(field: str, said: str) -> ApiError:
    return bad_request(field, f"{field}: no answer can have this shape: {said}")
