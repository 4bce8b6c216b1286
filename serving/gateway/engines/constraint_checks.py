"""What a call asks its answer's shape to be, so far as no answer could have it and engines do not see that in time.

llama.cpp makes a grammar of it, and one of a repetition whose least is above its most without end: until its memory
is all that the machine has. It reads parentheses by recursion, and so many of them end it; so do references that lead
to themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ramify.serving.gateway.engines.constraint_budget import SCHEMAS, check_budget, roots
from ramify.serving.gateway.engines.shape_cost import named_by
from ramify.serving.gateway.errors import ApiError, bad_request

_FIELDS = SCHEMAS  # where schemas stand, somewhere within
_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")  # which llama.cpp counts in 32 bits
_INT64 = 2**63
_FAR = 10**15  # llama.cpp makes a bound of more digits, where there is none on its other side, without end
_MADE = ("json_schema", "json_object")  # formats of a response that are a shape
_OF_A_SHAPE = re.compile(r"JSON schema|grammar")  # in what an engine says of it
# What is no syntax: an escaped character, a class (`[]` is an empty one: a schema's patterns are ECMA 262's); in a
# grammar also what is quoted, and comments. One that is not closed goes to the end: a scan is to be linear.
_CLASS = r"\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)"
_ATOM = re.compile(rf"\\.|{_CLASS}", re.DOTALL)
_TERMINAL = re.compile(rf'"(?:\\.|[^"\\])*(?:"|\\?\Z)|{_CLASS}|#(?P<comment>[^\r\n]*)', re.DOTALL)
_COUNT = re.compile(r"\s*\+?0*(\d+)")  # as C reads a number: what follows it is not looked at
_LONGEST = 1000  # characters of a name: llama.cpp goes through it by recursion, as far as it is no ASCII
_MEMORY, _TOKENS = "dry_penalty_last_n", 1_000_000  # 8 GB of tokens were taken for one call
_MOST = 2000  # references, rules of a grammar: it follows them by recursion, too
_DEEPEST = 1000  # parentheses within each other: engines go down them on their stack


def check_constraints(body: Mapping[str, object], *, llama_cpp: bool = False) -> None:
    """Raises ApiError, naming the field. `llama_cpp`: it may go to one, which some shapes end that are good ones
    elsewhere."""
    for field in _FIELDS:
        for root in roots(field, body.get(field)):
            _check_references(field, root, _MOST if llama_cpp else None)
        for at in _objects(body.get(field)):
            for least, most in _BOUNDS:
                low, high = at.get(least), at.get(most)
                if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
                    raise _impossible(field, f"{least} {low} is above {most} {high}")
            if llama_cpp:
                _check_names(field, at)
                _check_numbers(field, at)
            pattern = at.get("pattern")
            if isinstance(pattern, str):
                _check_syntax(field, _ATOM.sub(".", pattern))
    if llama_cpp:
        check_budget(body)
    memory = body.get(_MEMORY)
    if llama_cpp and isinstance(memory, int | float) and memory > _TOKENS:
        raise bad_request(_MEMORY, f"{_MEMORY}: the embedded engine keeps room for as many: at most {_TOKENS}")
    grammar = body.get("grammar")
    if isinstance(grammar, str):
        if llama_cpp and (rules := grammar.count("::=")) > _MOST:
            raise bad_request("grammar", f"grammar: the embedded engine takes {_MOST} rules, not {rules}")
        _check_syntax("grammar", _TERMINAL.sub(lambda m: "." if m["comment"] is None else "", grammar))


def with_response_format(body: dict[str, object]) -> dict[str, object]:
    """As llama.cpp reads it also from a response's body, whose `text` it does not look at."""
    text = body.get("text")
    asked = text.get("format") if isinstance(text, Mapping) else None
    if "response_format" in body or not isinstance(asked, Mapping) or asked.get("type") not in _MADE:
        return body
    named = {name: value for name, value in asked.items() if name != "type"}
    made = {"json_schema": named} if asked["type"] == "json_schema" else named
    return {**body, "response_format": {"type": asked["type"], **made}}


def requires_tool_call(body: Mapping[str, object]) -> bool:
    """Must its answer be a call of one of its tools?"""
    choice = body.get("tool_choice")
    return bool(body.get("tools")) and (choice == "required" or isinstance(choice, Mapping))


def constraint_field(message: str, body: Mapping[str, object]) -> str | None:
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


def _check_references(field: str, root: Mapping[str, object], most: int | None) -> None:
    """One that leads to itself, by others or at once, is no shape; llama.cpp follows it until its stack is full."""
    to = {at["$ref"]: None for at in _objects(root) if isinstance(at.get("$ref"), str)}
    if most is not None and len(to) > most:
        raise bad_request(field, f"{field}: the embedded engine takes {most} different references, not {len(to)}")
    next_of = {ref: at.get("$ref") for ref in to if isinstance(at := named_by(root, str(ref)), Mapping)}
    ended: set[object] = set()
    for ref in to:
        way: set[object] = set()
        follows: object = ref
        while isinstance(follows, str) and follows in next_of and follows not in ended:
            if follows in way:
                raise _impossible(field, f"$ref {follows[:80]!r} leads to itself")
            way.add(follows)
            follows = next_of[follows]
        ended |= way


def _check_names(field: str, at: Mapping[str, object]) -> None:
    ref = at.get("$ref")
    for name in (*at, ref) if isinstance(ref, str) else at:
        if len(name) > _LONGEST:
            raise bad_request(
                field, f"{field}: a name of {len(name)} characters: the embedded engine takes {_LONGEST}"
            )


def _check_numbers(field: str, at: Mapping[str, object]) -> None:
    """What llama.cpp reads as another shape, and as one that no answer can have."""
    lengths = {name: value for name in _LENGTHS if type(value := at.get(name)) is int}
    for name, value in lengths.items():
        if not -(2**31) <= value < 2**31:
            raise bad_request(
                field, f"{field}: {name} {value} is beyond what the embedded engine counts, {2**31 - 1}"
            )
    kinds = at.get("type")
    if kinds != "integer" and not (isinstance(kinds, list) and "integer" in kinds):
        return
    low, high = _number(at, "minimum", "exclusiveMinimum"), _number(at, "maximum", "exclusiveMaximum")
    if low is not None and low >= _FAR - 1 and (high is None or high >= _INT64 - 1):
        said = "has no maximum below 9223372036854775807"
    elif high is not None and high <= 1 - _FAR and (low is None or low <= -_INT64):
        said = "has no minimum above -9223372036854775808"
    else:
        return
    bound = low if high is None or high > 0 else high
    raise bad_request(
        field, f"{field}: an integer as far from 0 as {bound} that {said}: the embedded engine needs one"
    )


def _number(at: Mapping[str, object], *names: str) -> int | float | None:
    """The first that is said; of an older schema's `exclusiveMinimum` the truth is no number."""
    found = (at[name] for name in names if name in at)
    value = next(found, None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _check_syntax(field: str, text: str) -> None:
    """Of a pattern or a grammar, without what it says literally."""
    end = 0
    while (begin := text.find("{", end)) >= 0 and (end := text.find("}", begin)) >= 0:
        counts = [_COUNT.match(one) for one in text[begin + 1 : end].split(",")]
        if len(counts) != 2 or None in counts:
            continue
        low, high = (count[1] for count in counts if count is not None)
        if (len(low), low) > (len(high), high):  # numbers as long as a client likes
            raise _impossible(field, f"{text[begin : end + 1][:80]}: its least is above its most")
    depth = 0
    for bracket in re.findall(r"[()]", text):
        depth += 1 if bracket == "(" else -1
        if depth > _DEEPEST:
            raise bad_request(field, f"{field}: more than {_DEEPEST} parentheses within each other")


def _impossible(field: str, said: str) -> ApiError:
    return bad_request(field, f"{field}: no answer can have this shape: {said}")
