"""The cost of a schema, a pattern or a grammar for an engine that follows it token by token, before it is compiled.

At each place of an answer, llama.cpp keeps every way in which the grammar can continue, and tries each token of the
vocabulary against each way. So what matters most is the largest number of ways at any place: the `width`. With 16,000
alternatives in one schema, one token took longer than anybody waits, and no other call was served meanwhile.

All three kinds become one kind of expression, made of atoms, sequences, alternatives, repetitions and references, so
that one computation covers them all. Equal ways count as often as they occur, because an engine walks each of them
before it sees that they are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

Json = Mapping[str, object]
_ENDLESS = 10**18  # numbers here are capped at this, however often they are doubled
_COPIED = 2000  # llama.cpp refuses to write out more copies of a repetition
_RULE = 3  # extra symbols of an optional copy: it is a rule of its own
_MEMBERS = 32  # members of a class that cost as much as one more way, since each is tried against each token
_ANY_VALUE = 8  # kinds of JSON value, if a schema does not say which


@dataclass(frozen=True, slots=True)
class Atom:
    size: int = 1
    ways: int = 1


_ATOM = Atom()


@dataclass(frozen=True, slots=True)
class Chain:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Expression
    least: int
    most: int | None  # None: unlimited


@dataclass(frozen=True, slots=True)
class Reference:
    name: str


Expression = Atom | Chain | Choice | Repeat | Reference


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an expression.

    ways: in which it can begin. width: the largest number of ways at any place inside. size: symbols once repetitions
    are written out. skips: parts in a row that may match nothing.
    """

    ways: int = 1
    width: int = 1
    size: int = 1
    skips: int = 0
    empty: bool = False  # it may match nothing, so that what follows can begin there, too


_ONE = Cost()
_RECURSIVE = Cost()  # the first guess for a rule that leads to itself


class Rules:
    """Expressions by name, and the cost of each."""

    def __init__(self) -> None:
        self.bodies: dict[str, Expression] = {}
        self._known: dict[str, Cost] = {}

    def most(self, roots: Iterable[Expression]) -> Cost:
        """The maximum of each cost over everything that the roots lead to."""
        roots = list(roots)
        order = self._order(roots)
        for _ in range(2):  # the cost of a recursive rule is known only after the first round
            for name in order:
                self._known[name] = self._cost(self.bodies[name])
        costs = [*self._known.values(), *map(self._cost, roots)]
        return Cost(
            width=max((cost.width for cost in costs), default=0),
            size=sum(cost.size for cost in costs),
            skips=max((cost.skips for cost in costs), default=0),
        )

    def _order(self, roots: list[Expression]) -> list[str]:
        """The rules that are needed, each after those that it names. Without recursion: a client may chain many."""
        order: list[str] = []
        seen: set[str] = set()
        left: list[tuple[str | None, Iterator[str]]] = [(None, _names(Choice(tuple(roots))))]
        while left:
            name, named = left[-1]
            found = next((one for one in named if one in self.bodies and one not in seen), None)
            if found is not None:
                seen.add(found)
                left.append((found, _names(self.bodies[found])))
                continue
            left.pop()
            if name is not None:
                order.append(name)
        return order

    def _cost(self, one: Expression) -> Cost:
        match one:
            case Atom():
                return _ONE if one is _ATOM else Cost(one.ways, one.ways, one.size)
            case Reference():
                cost = self._known.get(one.name, _RECURSIVE)
                return replace(cost, size=1)  # a rule is written once, however often it is named
            case Choice():
                return _choice([self._cost(part) for part in one.parts])
            case Chain():
                return _chain([self._cost(part) for part in one.parts])
            case Repeat():
                cost = self._cost(one.part)
                written = one.part.size if isinstance(one.part, Atom) else 1  # a group is a rule, and copies name it
                return _repeat(cost, written, one.least, one.most)


def _names(one: Expression) -> Iterator[str]:
    left = [one]
    while left:
        match left.pop():
            case Reference(name):
                yield name
            case Choice(parts) | Chain(parts):
                left.extend(parts)
            case Repeat(part):
                left.append(part)


def _choice(costs: list[Cost]) -> Cost:
    ways = min(_ENDLESS, sum(cost.ways for cost in costs))
    return Cost(
        ways,
        max([ways, *(cost.width for cost in costs)]),
        min(_ENDLESS, sum(cost.size for cost in costs)),
        max((cost.skips for cost in costs), default=0),
        any(cost.empty for cost in costs),
    )


def _chain(costs: list[Cost]) -> Cost:
    ways, width, size, empty = 0, 1, 0, True
    skips = run = 0
    for cost in reversed(costs):
        ways = min(_ENDLESS, cost.ways + (ways if cost.empty else 0))
        width = max(width, ways, cost.width)
        size = min(_ENDLESS, size + cost.size)
        run = min(_ENDLESS, run + max(1, cost.skips)) if cost.empty else 0
        skips = max(skips, run, cost.skips)
        empty = empty and cost.empty
    return Cost(ways, width, size, skips, empty)


def _repeat(cost: Cost, written: int, least: int, most: int | None) -> Cost:
    copies = min(_COPIED, least + 1 if most is None else max(1, most))
    optional = 0 if most is None else max(0, copies - least)
    in_a_row = copies if cost.empty else 1
    ways = min(_ENDLESS, cost.ways * in_a_row)
    return Cost(
        ways,
        max(ways, cost.width),
        min(_ENDLESS, cost.size + written * copies + _RULE * optional),
        min(_ENDLESS, max(1, cost.skips) * copies) if cost.empty else cost.skips,
        least == 0 or cost.empty,
    )


_REGEX = re.compile(
    r"(?P<text>[A-Za-z0-9_ ]+)(?=[A-Za-z0-9_ ])|\\.|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\(\?[:=!<]*|\{[^{}]{1,40}\}|.",
    re.DOTALL,
)
_GRAMMAR = re.compile(
    r'#[^\r\n]*|"(?:\\.|[^"\\])*(?:"|\\?\Z)|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\{[^{}"]{1,40}\}'
    r"|(?P<head>[A-Za-z0-9_-]+)\s*::=|(?P<name>[A-Za-z0-9_-]+)|\S",
    re.DOTALL,
)
_DIGITS = re.compile(r"\s*\+?0*(\d+)")
_QUANTIFIERS: Mapping[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}


class TooDeep(ValueError):
    """Nested more deeply than is allowed."""


class _Builder:
    """Builds groups and alternatives without recursion, because a client chooses the parentheses."""

    def __init__(self, deepest: int) -> None:
        self._deepest = deepest
        self._stack: list[tuple[list[Expression], list[Expression]]] = []
        self._begin()

    def _begin(self) -> None:
        if len(self._stack) > self._deepest:
            raise TooDeep("parentheses within each other")
        self._stack.append(([], []))  # complete alternatives, and the parts of the present one

    def add(self, one: Expression) -> None:
        """Add a part. A run of atoms becomes one atom, except for the last, which a quantifier may follow."""
        parts = self._stack[-1][1]
        last_two = [part for part in parts[-2:] if isinstance(part, Atom) and part.ways == 1]
        if len(last_two) == 2:
            before, last = last_two
            parts[-2:] = [Atom(before.size + last.size)]
        parts.append(one)

    def symbol(self, text: str) -> bool:
        """Process a piece of syntax. False for anything else."""
        whole, parts = self._stack[-1]
        if text.startswith("("):
            self._begin()
        elif text == ")":
            if len(self._stack) > 1:
                self._stack.pop()
                self.add(_either(whole, parts))
        elif text == "|":
            whole.append(Chain(tuple(parts)))
            parts.clear()
        elif (counts := _counts(text)) is not None:
            if parts:
                parts[-1] = Repeat(parts[-1], *counts)
        else:
            return False
        return True

    @property
    def depth(self) -> int:
        return len(self._stack) - 1

    def end(self) -> Expression:
        while self.depth:
            self.symbol(")")
        whole, parts = self._stack[-1]
        self._stack = []
        self._begin()
        return _either(whole, parts)


def _either(whole: list[Expression], parts: list[Expression]) -> Expression:
    last = parts[0] if len(parts) == 1 else Chain(tuple(parts))
    return Choice((*whole, last)) if whole else last


def _counts(text: str) -> tuple[int, int | None] | None:
    if text in _QUANTIFIERS:
        return _QUANTIFIERS[text]
    if not text.startswith("{") or not text.endswith("}") or len(text) < 3:
        return None
    low, comma, high = text[1:-1].partition(",")
    least = _number(low)
    return least, (least if not comma else _number(high) if high.strip() else None)


def _class(text: str, size: int = 1) -> Atom:
    return Atom(size, max(1, len(text) // _MEMBERS))


def _number(text: str) -> int:
    """A number as C reads it: what follows the digits is ignored."""
    found = _DIGITS.match(text)
    return int(found[1][:12]) if found else 0


def pattern(text: str, deepest: int) -> Expression:
    """The expression of a regular expression. Raises TooDeep."""
    built = _Builder(deepest)
    for found in _REGEX.finditer(text):
        if found["text"] is not None:
            built.add(Atom(len(found[0])))
        elif not built.symbol(found[0]) and found[0] not in "^$":
            built.add(_class(found[0]) if found[0].startswith("[") else _ATOM)
    return built.end()


def grammar(text: str, rules: Rules, deepest: int) -> list[Expression]:
    """The roots of a grammar in llama.cpp's notation; its rules are added to `rules`.

    An engine reads all rules, so each is a root. Raises TooDeep.
    """
    built, name = _Builder(deepest), None
    for found in _GRAMMAR.finditer(text):
        token = found[0]
        if token.startswith("#"):
            continue
        if found["head"] is not None:
            _keep(rules, name, built.end())
            name = f"rule {found['head']}"
        elif found["name"] is not None:
            built.add(Reference(f"rule {found['name']}"))
        elif token.startswith("["):
            built.add(_class(token, max(1, len(token) - 2)))
        elif not built.symbol(token):
            built.add(Atom(max(1, len(token) - 2)))
    _keep(rules, name, built.end())
    return [Reference(name) for name in rules.bodies if name.startswith("rule ")]


def _keep(rules: Rules, name: str | None, body: Expression) -> None:
    if name is not None:
        rules.bodies[name] = body  # of two rules with one name, the last one holds


class Schemas:
    """Builds the expressions of JSON schemas. References are kept apart by the schema that they are in."""

    def __init__(self, rules: Rules, deepest: int) -> None:
        self._rules = rules
        self._deepest = deepest
        self._number = 0
        self._named: list[str] = []

    def expression(self, root: Json) -> Expression:
        self._number += 1
        made = self._of(root)
        while self._named:  # one after the other, not nested: a client may chain many
            ref = self._named.pop()
            self._rules.bodies[self._rule(ref)] = self._of(named_by(root, ref))
        return made

    def _of(self, said: object) -> Expression:
        """The expression of a subschema. What it says twice, as with an `enum` beside an `anyOf`, counts twice,
        because it is unknown which of them an engine reads."""
        if not isinstance(said, Mapping):
            return Atom(ways=_ANY_VALUE)
        parts = tuple(self._parts(said))
        if not parts:
            return Atom(ways=_ANY_VALUE)
        return parts[0] if len(parts) == 1 else Choice(parts)

    def _parts(self, said: Json) -> Iterator[Expression]:
        if isinstance(ref := said.get("$ref"), str):
            yield self._reference(ref)
        for name in ("anyOf", "oneOf"):
            if isinstance(options := said.get(name), list):
                yield Choice(tuple(map(self._of, options)))
        if isinstance(merged := said.get("allOf"), list):
            yield Choice(tuple(map(self._of, merged)))
        if "const" in said:
            yield Atom(_length(said["const"]))
        if isinstance(values := said.get("enum"), list):
            yield Choice(tuple(Atom(_length(value)) for value in values))
        if isinstance(kinds := said.get("type"), list):
            yield Atom(ways=len(kinds))
        elif isinstance(kinds, str) and kinds not in ("object", "array", "string"):
            yield Atom(20)  # a number's digits
        yield from self._object(said)
        yield from self._array(said)
        yield from self._string(said)

    def _object(self, said: Json) -> Iterator[Expression]:
        names = said.get("properties")
        named = names if isinstance(names, Mapping) else {}
        required = said.get("required")
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        must = [self._property(name, one) for name, one in named.items() if name in needed]
        may = [self._property(name, one) for name, one in named.items() if name not in needed]
        more = [self._of(said[name]) for name in ("additionalProperties", "unevaluatedProperties") if name in said]
        if isinstance(by_pattern := said.get("patternProperties"), Mapping):
            more += [Chain((pattern(name, self._deepest), self._of(one))) for name, one in by_pattern.items()]
        if must or may or more or said.get("type") == "object":
            pairs = Atom(len(may) ** 2 // 2)  # llama.cpp writes a rule for each pair of them
            optional: list[Expression] = [pairs, Choice(tuple(may))] if may else []
            yield Chain((_ATOM, *must, *optional, *more, _ATOM))

    def _property(self, name: str, one: object) -> Expression:
        return Chain((Atom(len(name) + 4), self._of(one)))

    def _array(self, said: Json) -> Iterator[Expression]:
        items = [said[name] for name in ("items", "prefixItems", "additionalItems", "contains") if name in said]
        if items or said.get("type") == "array":
            parts = [self._of(one) for item in items for one in (item if isinstance(item, list) else [item])]
            least, most = _count(said.get("minItems")) or 0, _count(said.get("maxItems"))
            item = Chain((_ATOM, *parts)) if parts else Atom(ways=_ANY_VALUE)
            yield Chain((_ATOM, Repeat(item, least, most), _ATOM))

    def _string(self, said: Json) -> Iterator[Expression]:
        if isinstance(said.get("pattern"), str):
            yield Chain((_ATOM, pattern(str(said["pattern"]), self._deepest), _ATOM))
        least, most = _count(said.get("minLength")), _count(said.get("maxLength"))
        if least is not None or most is not None:
            yield Chain((_ATOM, Repeat(_ATOM, least or 0, most), _ATOM))
        elif said.get("type") == "string" and "enum" not in said and "const" not in said:  # engines add nothing
            yield Atom(20)  # also for a format

    def _reference(self, ref: str) -> Expression:
        if (name := self._rule(ref)) not in self._rules.bodies:
            self._rules.bodies[name] = _ATOM  # until it is built
            self._named.append(ref)
        return Reference(name)

    def _rule(self, ref: str) -> str:
        return f"schema {self._number} {ref}"


def named_by(root: Json, ref: str) -> object:
    """What a reference into the same schema points at; None if it points at nothing, or elsewhere."""
    if ref == "#":
        return root
    if not ref.startswith("#/"):
        return None
    found: object = root
    for name in ref[2:].split("/"):
        if isinstance(found, Mapping):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and len(name) < 10 and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found


def _count(value: object) -> int | None:
    """The value as a count; llama.cpp takes 3.0 for 3."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        return None
    return int(value)


def _length(value: object) -> int:
    return len(value) + 2 if isinstance(value, str) else 20
