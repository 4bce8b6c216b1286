"""The cost of a schema, a pattern or a grammar for an engine that follows it token by token, before it is compiled.

At each place of an answer, llama.cpp keeps every way in which the grammar can continue, and tries each token of the
vocabulary against each way. So what matters most is the largest number of ways at any place: the `width`. With 16,000
alternatives in one schema, one token took longer than anybody waits, and no other call was served meanwhile.

All three kinds become one kind of expression, made of atoms, sequences, alternatives, repetitions and references, so
that one computation covers them all. Equal ways count as often as they occur, because an engine walks each of them
before it sees that they are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_ENDLESS = 10**18  # numbers here are capped at this, however often they are doubled
COPIED = 2000  # llama.cpp refuses to write out more copies of a repetition
_RULE = 3  # extra symbols of an optional copy: it is a rule of its own


@dataclass(frozen=True, slots=True)
class Atom:
    size: int = 1
    ways: int = 1


PLAIN_ATOM = Atom()


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
    """A rule by its name. `inline`: an engine writes it out at this place."""

    name: str
    inline: bool = False


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
        self.inlined: set[str] = set()  # the rules that no engine writes by themselves
        self._known: dict[str, Cost] = {}

    def most(self, roots: Iterable[Expression]) -> Cost:
        """The maximum of each cost over everything that the roots lead to."""
        roots = list(roots)
        order = self._order(roots)
        for _ in range(2):  # the cost of a recursive rule is known only after the first round
            for name in order:
                self._known[name] = self._cost(self.bodies[name])
        costs = [cost for name, cost in self._known.items() if name not in self.inlined]
        costs += map(self._cost, roots)
        return Cost(
            width=max((cost.width for cost in costs), default=0),
            size=sum(cost.size for cost in costs),
            skips=max((cost.skips for cost in costs), default=0),
        )

    def most_copies(self, roots: Iterable[Expression]) -> int:
        """The largest least number of a repetition, over everything that the roots lead to."""
        roots = list(roots)
        left, most = [*roots, *(self.bodies[name] for name in self._order(roots))], 0
        while left:
            match left.pop():
                case Repeat(part, least):
                    left.append(part)
                    most = max(most, least)
                case Choice(parts) | Chain(parts):
                    left.extend(parts)
        return most

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
                return _ONE if one is PLAIN_ATOM else Cost(one.ways, one.ways, one.size)
            case Reference():
                cost = self._known.get(one.name, _RECURSIVE)
                return cost if one.inline else replace(cost, size=1)  # a rule is written once, however often named
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
    ways = min(_ENDLESS, sum(max(1, cost.ways) for cost in costs))  # an empty one is a way, too
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
    copies = min(COPIED, least + 1 if most is None else max(1, most))
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
