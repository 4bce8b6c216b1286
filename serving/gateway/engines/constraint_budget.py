"""One budget over all output constraints of a call, checked before an engine compiles them.

The numbers are for llama.cpp, measured with SmolLM2-135M on 2 busy cores. 1,000 alternatives at one place cost a
second per token, 4,000 cost half a minute per call, and with 16,000 no token came. A million symbols take two seconds
to compile. 50 optional parts in a row cost five seconds. Some costs cannot be computed beforehand (an ambiguous
grammar has more ways with each token): there the hang check (supervisor.py) restarts the engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ramify.serving.gateway.engines.constraint_cost import COPIED, Atom, Choice, Expression, Rules
from ramify.serving.gateway.engines.constraint_parsing import Json, Schemas, TooDeep, grammar, pattern
from ramify.serving.gateway.errors import ApiError

_ROOTS: Mapping[str, tuple[tuple[str, ...], ...]] = {  # for each field, where its schemas begin
    "response_format": (("schema",), ("json_schema", "schema")),
    "json_schema": ((),),
    "text": (("format", "schema"),),
    "tools": (("function", "parameters"), ("parameters",), ("input_schema",)),
    "functions": (("parameters",),),
    "structured_outputs": (("json",),),
    "guided_json": ((),),
}
SCHEMAS = tuple(_ROOTS)
_PATTERNS = (("guided_regex",), ("structured_outputs", "regex"))
_GRAMMARS = (("grammar",), ("guided_grammar",), ("structured_outputs", "grammar"))
_CHOICES = (("guided_choice",), ("structured_outputs", "choice"))
SHAPES = (*SCHEMAS, "guided_regex", "guided_grammar", "guided_choice", "grammar")
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
class ShapeBudget:
    """The most of each, over all schemas, patterns and grammars of a call together."""

    values: int = 10_000  # JSON values
    text: int = 131_072  # characters of names and values
    syntax: int = 32_768  # those of them in patterns and grammars
    depth: int = 64  # of nested JSON, and of nested parentheses
    width: int = 1_000  # alternatives at one place
    size: int = 1_000_000  # symbols once repetitions are written out
    skips: int = 32  # optional parts in a row


BUDGET = ShapeBudget()


def has_shape(body: Json) -> bool:
    """Does the call have an output constraint?"""
    return any(body.get(name) for name in SHAPES)


def check_budget(body: Json, budget: ShapeBudget = BUDGET) -> None:
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
    if not has_shape(body):
        return
    weight = _Weight()
    for name in SHAPES:
        if said := body.get(name):
            weight.add(name, said, budget)
    check_cost(body, budget)


def roots(field: str, said: object) -> Iterator[Json]:
    """The schemas in a field, where its references begin."""
    for one in said if isinstance(said, list) else [said]:
        for way in _ROOTS[field]:
            if isinstance(found := _down(one, way), Mapping):
                yield found


def check_cost(body: Json, budget: ShapeBudget = BUDGET) -> None:
    """Check what constraints cost the engine, however short their text is: also those that were translated for it.

    Field by field, so that the one at fault is named; what each field has counts for all of them. Raises ApiError.
    """
    rules, made = Rules(), list[Expression]()
    schemas = Schemas(rules, budget.depth)
    for name in SHAPES:
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


def _expressions(field: str, body: Json, rules: Rules, schemas: Schemas, budget: ShapeBudget) -> Iterator[Expression]:
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

    def add(self, field: str, said: object, budget: ShapeBudget) -> None:
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
