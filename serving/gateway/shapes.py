"""What a call asks its answer's shape to be, so far as no answer could have it and engines do not see that in time.

llama.cpp makes a grammar of it, and one of a repetition whose least is above its most without end: until its memory
is all that the machine has. It reads parentheses by recursion, and so many of them end it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ramify.serving.gateway.errors import ApiError, bad_request

_FIELDS = ("response_format", "json_schema", "text", "tools")  # where schemas stand, somewhere within
_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_REPEATED = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")  # in a pattern, in a grammar
_OF_A_SHAPE = re.compile(r"JSON schema|grammar")  # in what an engine says of it
# What is no syntax: an escaped character, a class; in a grammar also what is quoted, and comments. One that is not
# closed goes to the end: a scan is to be linear.
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*(?:\]|\\?\Z)", re.DOTALL)
_TERMINAL = re.compile(
    r'"(?:\\.|[^"\\])*(?:"|\\?\Z)|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|#(?P<comment>[^\r\n]*)', re.DOTALL
)
_DEEPEST = 1000  # parentheses within each other: engines go down them on their stack


def check_shape(body: Mapping[str, object]) -> None:
    """Raises ApiError, naming the field."""
    for field in _FIELDS:
        for at in _objects(body.get(field)):
            for least, most in _BOUNDS:
                low, high = at.get(least), at.get(most)
                if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                    raise _impossible(field, f"{least} {low} is above {most} {high}")
            pattern = at.get("pattern")
            if isinstance(pattern, str):
                _check_syntax(field, _ATOM.sub(".", pattern))
    grammar = body.get("grammar")
    if isinstance(grammar, str):
        _check_syntax("grammar", _TERMINAL.sub(lambda m: "." if m["comment"] is None else "", grammar))


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


def _check_syntax(field: str, text: str) -> None:
    """Of a pattern or a grammar, without what it says literally."""
    for found in _REPEATED.finditer(text):
        low, high = (digits.lstrip("0") for digits in found.groups())
        if (len(low), low) > (len(high), high):  # numbers as long as a client likes
            raise _impossible(field, f"{found[0][:80]}: its least is above its most")
    depth = 0
    for bracket in re.findall(r"[()]", text):
        depth += 1 if bracket == "(" else -1
        if depth > _DEEPEST:
            raise bad_request(field, f"{field}: more than {_DEEPEST} parentheses within each other")


def _impossible(field: str, said: str) -> ApiError:
    return bad_request(field, f"{field}: no answer can have this shape: {said}")
