"""Reads the text of a System State Graph that `print_graph` printed, so that tests can write graphs down."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ramify.compiler.errors import TextError
from ramify.compiler.ir.graph import Block, Graph, Operation
from ramify.compiler.plan import Effect, OpId, OpKind, Site, StepPlan, ValueId

T = TypeVar("T")
_BARE = re.compile(r"[A-Za-z0-9_.~-]+(?<!-)")


def parse_graph(text: str) -> Graph:
    """Read a graph that `print_graph` printed.

    Raises:
        TextError: The text cannot be parsed. `where` is the line.
    """
    head: tuple[str, str] | None = None
    steps: list[StepPlan] = []
    blocks: list[tuple[str, tuple[ValueId, ...], list[Operation], list[tuple[str, tuple[ValueId, ...]]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        scan = _Scanner(line, number)
        if scan.take("graph "):
            head = (scan.string(), scan.string())
        elif scan.take("step "):
            steps.append(_parse_step(scan))
        elif scan.take("block "):
            blocks.append((scan.name(), scan.values(), [], []))
        elif blocks and scan.take("  -> "):
            blocks[-1][3].append((scan.name(), scan.values()))
        elif blocks and scan.take("  "):
            blocks[-1][2].append(_parse_op(scan))
        else:
            raise scan.fail("graph, step, block, an operation or an exit")
        scan.end()
    if head is None:
        raise TextError("no line begins with `graph`", where="line 1", mend="give the text that the compiler printed")
    made = (Block(name, params, tuple(ops), tuple(exits)) for name, params, ops, exits in blocks)
    return Graph(*head, tuple(steps), tuple(made))


def _parse_step(scan: _Scanner) -> StepPlan:
    name, facts = scan.string(), scan.object()
    try:
        read = {"effect": Effect(facts["effect"]), "parameters": tuple(facts.get("parameters", ()))}
        return StepPlan(name, **{**facts, **read})
    except (KeyError, TypeError, ValueError):
        raise scan.fail("a step's effect, reuse, code_digest and why") from None


def _parse_op(scan: _Scanner) -> Operation:
    op_id = OpId(scan.name())
    scan.need(":")
    first = scan.names()
    outputs = first if scan.take("=") else ()
    kind = scan.name() if outputs else first[0]
    if kind not in OpKind.__members__:
        raise scan.fail("the kind of an operation")
    inputs = () if scan.peek() in ("", ":", "{", "@") else scan.names()
    step = scan.string() if scan.take(":") else None
    attrs = scan.object() if scan.peek() == "{" else {}
    site = None
    if scan.take("@"):
        file = scan.string()
        site = Site(file, *(int(part) for part in scan.match(r"(\d+):(\d+)-(\d+):(\d+)").groups()))
    return Operation(
        op_id, OpKind(kind), tuple(map(ValueId, inputs)), tuple(map(ValueId, outputs)), site, step, attrs
    )


class _Scanner:
    """Reads one line from left to right."""

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number, self.at = line, number, 0

    def fail(self, expected: str) -> TextError:
        found = self.line[self.at :] or "the end of the line"
        where = f"line {self.number}"
        return TextError(f"{expected} expected, found {found!r}", where=where, mend="give what the compiler printed")

    def take(self, text: str) -> bool:
        if not self.line.startswith(text, self.at):
            return False
        self.at += len(text)
        self._skip()
        return True

    def need(self, text: str) -> None:
        if not self.take(text):
            raise self.fail(repr(text))

    def peek(self) -> str:
        return self.line[self.at : self.at + 1]

    def match(self, pattern: str) -> re.Match[str]:
        found = re.compile(pattern).match(self.line, self.at)
        if found is None:
            raise self.fail(pattern)
        self.at = found.end()
        self._skip()
        return found

    def name(self) -> str:
        return self.string() if self.peek() == '"' else self.match(_BARE.pattern).group()

    def names(self) -> tuple[str, ...]:
        names = [self.name()]
        while self.take(","):
            names.append(self.name())
        return tuple(names)

    def values(self) -> tuple[ValueId, ...]:
        self.need("(")
        names = () if self.peek() == ")" else self.names()
        self.need(")")
        return tuple(map(ValueId, names))

    def string(self) -> str:
        return self._json(str, "a quoted string")

    def object(self) -> dict[str, Any]:
        return self._json(dict, "an object in braces")

    def _json(self, kind: Callable[..., T], expected: str) -> T:
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.line, self.at)
        except ValueError:
            raise self.fail(expected) from None
        if type(value) is not kind:
            raise self.fail(expected)
        self._skip()
        return value  # type: ignore[no-any-return]

    def _skip(self) -> None:
        while self.peek() == " ":
            self.at += 1

    def end(self) -> None:
        if self.at != len(self.line):
            raise self.fail("the end of the line")
