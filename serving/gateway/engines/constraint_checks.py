"""Checks of output constraints (JSON schemas, patterns, grammars) before an engine compiles them.

`check_constraints` refuses those that no answer can meet, or that crash an engine. Engines do not notice these in
time. llama.cpp turns a constraint into a grammar. From a repetition whose minimum is above its maximum it builds one
without end, until all memory is used. It reads parentheses recursively, so too many of them crash it, and so do
references that lead to themselves.

`check_budget` holds all constraints of a call within one budget. The numbers are for llama.cpp, measured with
SmolLM2-135M on 2 busy cores. 1,000 alternatives at one place cost a second per token, 4,000 cost half a minute per
call, and with 16,000 no token came. A million symbols take two seconds to compile. 50 optional parts in a row cost
five seconds. Some costs cannot be computed beforehand (an ambiguous grammar has more ways with each token): there the
hang check (supervisor.py) restarts the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ramify.serving.gateway.engines.constraint_cost import COPIED, Atom, Choice, Expression, Rules
from ramify.serving.gateway.engines.constraint_parsing import Json, Schemas, TooDeep, grammar, named_by, pattern
from ramify.serving.gateway.errors import ApiError, bad_request

_ROOTS: Mapping[str, tuple[tuple[str, ...], ...]] = {  # for each field, where its schemas begin
    "response_format": (("schema",), ("json_schema", "schema")),
    "json_schema": ((),),
    "text": (("format", "schema"),),
    "tools": (("function", "parameters"), ("parameters",), ("input_schema",)),
    "functions": (("parameters",),),
    "structured_outputs": (("json",),),
    "guided_json": ((),),
}
SCHEMAS = tuple(_ROOTS)  # request fields that hold schemas, somewhere inside
_PATTERNS = (("guided_regex",), ("structured_outputs", "regex"))
_GRAMMARS = (("grammar",), ("guided_grammar",), ("structured_outputs", "grammar"))
_CHOICES = (("guided_choice",), ("structured_outputs", "choice"))
CONSTRAINT_FIELDS = (*SCHEMAS, "guided_regex", "guided_grammar", "guided_choice", "grammar")
TOO_COSTLY = "shape_too_costly"
_PROSE = ("description", "title", "$comment")  # no engine compiles these
_LISTS = {  # the longest lists in other fields that an engine walks for each token, or before the first
    "stop": 256,
    "logit_bias": 10_000,
    "prompt": 100_000,
    "samplers": 64,
    "dry_sequence_breakers": 64,
    "grammar_triggers": 64,
    "preserved_tokens": 1024,
    "lora": 64,
}
_MOST_ANSWERS = 128
_NUMBERS = {  # the largest numbers: 49,000 log-probabilities per token took 80 MB per token
    **dict.fromkeys(("n", "best_of", "n_cmpl"), _MOST_ANSWERS),
    **dict.fromkeys(("top_logprobs", "logprobs", "n_probs"), 1_000),
}


@dataclass(frozen=True, slots=True)
class ConstraintBudget:
    """The most of each, over all schemas, patterns and grammars of a call together."""

    values: int = 10_000  # JSON values
    text: int = 131_072  # characters of names and values
    syntax: int = 32_768  # those of them in patterns and grammars
    depth: int = 64  # of nested JSON, and of nested parentheses
    width: int = 1_000  # alternatives at one place
    size: int = 1_000_000  # symbols once repetitions are written out
    skips: int = 32  # optional parts in a row


BUDGET = ConstraintBudget()


def has_constraint(body: Json) -> bool:
    """Does the call have an output constraint?"""
    return any(body.get(name) for name in CONSTRAINT_FIELDS)


def check_budget(body: Json, budget: ConstraintBudget = BUDGET) -> None:
    """Raises ApiError, which names the field and the limit."""
    for name, most in _LISTS.items():
        said = body.get(name)
        if isinstance(said, list | Mapping) and len(said) > most:
            raise _beyond(name, f"{len(said)} entries", most)
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > _MOST_ANSWERS and not isinstance(prompts[0], int):
        raise _beyond("prompt", f"{len(prompts)} prompts", _MOST_ANSWERS)
    for name, most in _NUMBERS.items():
        if isinstance(said := body.get(name), int | float) and said > most:
            raise _beyond(name, f"{said}", most)
    if not has_constraint(body):
        return
    weight = _Weight()
    for name in CONSTRAINT_FIELDS:
        if said := body.get(name):
            weight.add(name, said, budget)
    check_cost(body, budget)


def roots(field: str, said: object) -> Iterator[Json]:
    """The schemas in a field, where its references begin."""
    for one in said if isinstance(said, list) else [said]:
        for way in _ROOTS[field]:
            if isinstance(found := _down(one, way), Mapping):
                yield found


def check_cost(body: Json, budget: ConstraintBudget = BUDGET) -> None:
    """Check what constraints cost the engine, however short their text is: also those that were translated for it.

    Field by field, so that the one at fault is named; what each field has counts for all of them. Raises ApiError.
    """
    rules, made = Rules(), list[Expression]()
    schemas = Schemas(rules, budget.depth)
    for name in CONSTRAINT_FIELDS:
        if not body.get(name):
            continue
        try:
            made.extend(_expressions(name, body, rules, schemas, budget))
            cost, copies = rules.most(made), rules.most_copies(made)
        except (RecursionError, TooDeep):
            raise _beyond(name, "a shape nested too deeply", budget.depth) from None
        if cost.width > budget.width:
            raise _beyond(name, f"{_told(cost.width)} alternatives at one place", budget.width)
        if cost.size > budget.size:
            raise _beyond(name, f"{_told(cost.size)} symbols with its repetitions written out", budget.size)
        if copies > COPIED:
            raise _beyond(name, f"a repetition of at least {_told(copies)} (as in minLength)", COPIED)
        if cost.skips > budget.skips:
            raise _beyond(name, f"{_told(cost.skips)} optional parts in a row", budget.skips)


def _expressions(
    field: str, body: Json, rules: Rules, schemas: Schemas, budget: ConstraintBudget
) -> Iterator[Expression]:
    said = _read(body[field])
    if field in _ROOTS:
        for root in roots(field, _with_read_json(said)):
            yield schemas.expression(root)
    for way in _PATTERNS:
        if way[0] == field and isinstance(text := _down(body, way), str):
            yield pattern(text, budget.depth)
    for way in _GRAMMARS:
        if way[0] == field and isinstance(text := _down(body, way), str):
            yield from grammar(text, rules, budget.depth)
    for way in _CHOICES:
        if way[0] == field and isinstance(options := _down(body, way), list):
            yield Choice(tuple(Atom(len(str(one))) for one in options))


def _with_read_json(said: object) -> object:
    """vLLM also takes a schema as text: parse it."""
    if isinstance(said, Mapping) and isinstance(said.get("json"), str):
        return {**said, "json": _read(said["json"])}
    return said


def _read(said: object) -> object:
    if not isinstance(said, str):
        return said
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        return said


@dataclass
class _Weight:
    """The amount of JSON in constraints, counted without recursion, because a client made it."""

    values: int = 0
    text: int = 0
    syntax: int = 0

    def add(self, field: str, said: object, budget: ConstraintBudget) -> None:
        """Add a field. Raises ApiError if there is too much."""
        read = _with_read_json(_read(said)) if field in _ROOTS else said
        left: list[tuple[object, int]] = [(read, 1)]
        while left:
            one, depth = left.pop()
            self._count(one, syntax=not isinstance(read, Mapping | list))
            inner = _inner(one)
            if inner and depth >= budget.depth:
                raise _beyond(field, f"JSON {depth + 1} levels deep", budget.depth)
            left += [(value, depth + 1) for value in inner]
            if self.values > budget.values or self.text > budget.text:
                break
        for found, most, of in (
            (self.values, budget.values, "JSON values"),
            (self.text, budget.text, "characters of names and values"),
            (self.syntax, budget.syntax, "characters of patterns and grammars"),
        ):
            if found > most:
                raise _beyond(field, f"over {most} {of}", most)

    def _count(self, one: object, *, syntax: bool) -> None:
        self.values += 1
        if isinstance(one, Mapping):
            self.text += sum(map(len, one))
            patterns = [one.get(name) for name in ("pattern", "regex", "grammar")]
            patterns += one["patternProperties"] if isinstance(one.get("patternProperties"), Mapping) else ()
            self.syntax += sum(len(text) for text in patterns if isinstance(text, str))
        elif isinstance(one, str):
            self.text += len(one)
            self.syntax += len(one) if syntax else 0


def _inner(one: object) -> list[object]:
    if isinstance(one, Mapping):
        return [value for name, value in one.items() if name not in _PROSE or not isinstance(value, str)]
    return one if isinstance(one, list) else []


def _down(one: object, way: tuple[str, ...]) -> object:
    for name in way:
        one = one.get(name) if isinstance(one, Mapping) else None
    return one


def _told(number: int) -> str:
    return str(number) if number < 10**9 else "over a billion"


def _beyond(field: str, said: str, most: int) -> ApiError:
    message = f"{field}: {said}: the embedded engine allows {most}"
    return ApiError(400, TOO_COSTLY, message, field)


_BOUNDS = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum"))
_LENGTHS = ("minLength", "maxLength", "minItems", "maxItems")  # llama.cpp counts these in 32 bits
_INT64 = 2**63
_FAR = 10**15  # for a bound with more digits, and none on the other side, llama.cpp builds a grammar without end
_OF_A_CONSTRAINT = re.compile(r"JSON schema|grammar")  # in an engine's message about a constraint
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
    for field in SCHEMAS:
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
    asked = [field for field in ("grammar", *SCHEMAS) if body.get(field)]
    return asked[0] if len(asked) == 1 and _OF_A_CONSTRAINT.search(message) else None


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
