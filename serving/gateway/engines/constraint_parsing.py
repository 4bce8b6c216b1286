"""Parse output constraints into expressions whose cost `constraint_cost` computes.

`pattern` takes a regular expression, `grammar` a grammar in llama.cpp's notation, `Schemas` JSON schemas.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from ramify.serving.gateway.engines.constraint_cost import (
    PLAIN_ATOM,
    Atom,
    Chain,
    Choice,
    Expression,
    Reference,
    Repeat,
    Rules,
)

Json = Mapping[str, object]
_MEMBERS = 32  # members of a class that cost as much as one more way, since each is tried against each token
_ANY_VALUE = 8  # kinds of JSON value, if a schema does not say which
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
            built.add(_class(found[0]) if found[0].startswith("[") else PLAIN_ATOM)
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
    """Builds the expressions of JSON schemas. References are kept apart by the schema that they are in.

    A client may name one part by many references, and parts within each other. So what is named is built once, as a
    rule of its own.
    """

    def __init__(self, rules: Rules, deepest: int) -> None:
        self._rules = rules
        self._deepest = deepest
        self._number = 0
        self._named: list[str] = []
        self._shared: dict[int, str] = {}  # by the identity of a part that references name: its rule

    def expression(self, root: Json) -> Expression:
        self._number += 1
        targets = {id(found): found for ref in _references(root) if isinstance(found := named_by(root, ref), Mapping)}
        self._shared = {at: f"part {self._number} {number}" for number, at in enumerate(targets)}
        self._rules.inlined.update(self._shared.values())
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
        if (name := self._shared.get(id(said))) is None:
            return self._built(said)
        if name not in self._rules.bodies:
            self._rules.bodies[name] = self._built(said)
        return Reference(name, inline=True)

    def _built(self, said: Json) -> Expression:
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
            yield Chain((PLAIN_ATOM, *must, *optional, *more, PLAIN_ATOM))

    def _property(self, name: str, one: object) -> Expression:
        return Chain((Atom(len(name) + 4), self._of(one)))

    def _array(self, said: Json) -> Iterator[Expression]:
        items = [said[name] for name in ("items", "prefixItems", "additionalItems", "contains") if name in said]
        if items or said.get("type") == "array":
            parts = [self._of(one) for item in items for one in (item if isinstance(item, list) else [item])]
            least, most = _count(said.get("minItems")) or 0, _count(said.get("maxItems"))
            item = Chain((PLAIN_ATOM, *parts)) if parts else Atom(ways=_ANY_VALUE)
            yield Chain((PLAIN_ATOM, Repeat(item, least, most), PLAIN_ATOM))

    def _string(self, said: Json) -> Iterator[Expression]:
        if isinstance(said.get("pattern"), str):
            yield Chain((PLAIN_ATOM, pattern(str(said["pattern"]), self._deepest), PLAIN_ATOM))
        least, most = _count(said.get("minLength")), _count(said.get("maxLength"))
        if least is not None or most is not None:
            yield Chain((PLAIN_ATOM, Repeat(PLAIN_ATOM, least or 0, most), PLAIN_ATOM))
        elif said.get("type") == "string" and "enum" not in said and "const" not in said:  # engines add nothing
            yield Atom(20)  # also for a format

    def _reference(self, ref: str) -> Expression:
        if (name := self._rule(ref)) not in self._rules.bodies:
            self._rules.bodies[name] = PLAIN_ATOM  # until it is built
            self._named.append(ref)
        return Reference(name)

    def _rule(self, ref: str) -> str:
        return f"schema {self._number} {ref}"


def _references(root: Json) -> set[str]:
    """All references within a schema. Without recursion, because a client made it."""
    found, left = set[str](), list[object]([root])
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            found |= {ref} if isinstance(ref := one.get("$ref"), str) else set()
            left += one.values()
        elif isinstance(one, list):
            left += one
    return found


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
