"""Checks of output constraints (JSON schemas, patterns, grammars) that no answer can meet, or that crash an engine.

Engines do not notice these in time. llama.cpp turns a constraint into a grammar. From a repetition whose minimum is
above its maximum it builds one without end, until all memory is used. It reads parentheses recursively, so too many
of them crash it, and so do references that lead to themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ramify.serving.gateway.engines.constraint_budget import SCHEMAS, check_budget, roots
from ramify.serving.gateway.engines.constraint_parsing import named_by
from ramify.serving.gateway.errors import ApiError, bad_request

_FIELDS = SCHEMAS  # request fields that hold schemas, somewhere inside
_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")  # llama.cpp counts these in 32 bits
_INT64 = 2**63
_FAR = 10**15  # for a bound with more digits, and none on the other side, llama.cpp builds a grammar without end
_OF_A_SHAPE = re.compile(r"JSON schema|grammar")  # in an engine's message about a constraint
# Parts that are not syntax: an escaped character, a class (`[]` is an empty one, since patterns are ECMA 262's); in a
# grammar also quoted text and comments. An unclosed one extends to the end, so that a scan stays linear.
_CLASS = r"\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)"
_ATOM = re.compile(rf"\\.|{_CLASS}", re.DOTALL)
_TERMINAL = re.compile(rf'"(?:\\.|[^"\\])*(?:"|\\?\Z)|{_CLASS}|#(?P<comment>[^\r\n]*)', re.DOTALL)
_COUNT = re.compile(r"\s*\+?0*(\d+)")  # a number as C reads it: what follows the digits is ignored
_LONGEST = 1000  # characters of a name: llama.cpp walks its non-ASCII part recursively
_MEMORY, _TOKENS = "dry_penalty_last_n", 1_000_000  # without a limit, one call took 8 GB for tokens
_MOST = 2000  # references, and rules of a grammar: llama.cpp follows them recursively, too
_DEEPEST = 1000  # nested parentheses: engines descend them on their stack


def check_constraints(body: Mapping[str, object], *, llama_cpp: bool = False) -> None:
    """Raise ApiError, which names the field, for a constraint that no answer can meet or that crashes an engine.

    llama_cpp: the call may go to a llama.cpp, which cannot cope with some constraints that work elsewhere.
    """
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
        raise bad_request(_MEMORY, f"{_MEMORY}: the embedded engine allows at most {_TOKENS}")
    grammar = body.get("grammar")
    if isinstance(grammar, str):
        if llama_cpp and (rules := grammar.count("::=")) > _MOST:
            raise bad_request("grammar", f"grammar: the embedded engine allows {_MOST} rules, not {rules}")
        _check_syntax("grammar", _TERMINAL.sub(lambda m: "." if m["comment"] is None else "", grammar))


def requires_tool_call(body: Mapping[str, object]) -> bool:
    """Must the answer be a call of one of its tools?"""
    choice = body.get("tool_choice")
    return bool(body.get("tools")) and (choice == "required" or isinstance(choice, Mapping))


def constraint_field(message: str, body: Mapping[str, object]) -> str | None:
    """The field that an engine's message refuses, where that is clear."""
    asked = [field for field in ("grammar", *_FIELDS) if body.get(field)]
    return asked[0] if len(asked) == 1 and _OF_A_SHAPE.search(message) else None


def _objects(value: object) -> Iterator[Mapping[str, object]]:
    """All objects within a value, without recursion, because a client made it."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            yield one
            left += one.values()
        elif isinstance(one, list):
            left += one


def _check_references(field: str, root: Mapping[str, object], most: int | None) -> None:
    """Refuse references that lead to themselves, directly or through others: llama.cpp follows them until its stack
    is full."""
    to = {at["$ref"]: None for at in _objects(root) if isinstance(at.get("$ref"), str)}
    if most is not None and len(to) > most:
        raise bad_request(field, f"{field}: the embedded engine allows {most} different references, not {len(to)}")
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
                field, f"{field}: a name of {len(name)} characters: the embedded engine allows {_LONGEST}"
            )


def _check_numbers(field: str, at: Mapping[str, object]) -> None:
    """Refuse numbers that llama.cpp reads as something else, and as a constraint that no answer can meet."""
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
    """The first of these that is given. An older schema's boolean `exclusiveMinimum` does not count."""
    found = (at[name] for name in names if name in at)
    value = next(found, None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _check_syntax(field: str, text: str) -> None:
    """Check the syntax of a pattern or a grammar, without its literal parts."""
    end = 0
    while (begin := text.find("{", end)) >= 0 and (end := text.find("}", begin)) >= 0:
        counts = [_COUNT.match(one) for one in text[begin + 1 : end].split(",")]
        if len(counts) != 2 or None in counts:
            continue
        low, high = (count[1] for count in counts if count is not None)
        if (len(low), low) > (len(high), high):  # compared as text: a client may send numbers of any length
            raise _impossible(field, f"{text[begin : end + 1][:80]}: its least is above its most")
    depth = 0
    for bracket in re.findall(r"[()]", text):
        depth += 1 if bracket == "(" else -1
        if depth > _DEEPEST:
            raise bad_request(field, f"{field}: more than {_DEEPEST} nested parentheses")


def _impossible(field: str, said: str) -> ApiError:
    return bad_request(field, f"{field}: no answer can meet this: {said}")
