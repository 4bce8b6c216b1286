"""A System State Graph as text: an exact form that is read back, and drawings in DOT and Mermaid.

    graph "repair" "decorators"
    step "try_patch" {"effect": "revertible", "reuse": false, "code_digest": "…", "why": "takes a Sandbox"}
    block b0()
      enter: w1 = ENTER
      fork.1: w2, ws1 = FORK w1 {"base": ["enter"]} @ "app/repair.py" 12:15-12:28
      -> b1(w2, ws1)

A name of letters, digits and `_.~-` is written as it is, and any other name as a JSON string. In a drawing, a box is
a block with its operations, and an arrow shows the worlds that are passed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from ramify.compiler.errors import TextError
from ramify.compiler.ir.graph import Block, Graph, Operation
from ramify.compiler.plan import Effect, OpId, OpKind, Site, StepPlan, ValueId

T = TypeVar("T")
_BARE = re.compile(r"[A-Za-z0-9_.~-]+(?<!-)")


def print_graph(graph: Graph) -> str:
    """Return the exact form. `parse_graph` reads it back."""
    lines = [f"graph {json.dumps(graph.name)} {json.dumps(graph.frontend)}"]
    for step in graph.steps:
        facts = asdict(step)
        lines.append(f"step {json.dumps(facts.pop('name'))} {json.dumps(facts)}")
    for block in graph.blocks:
        lines.append(f"block {_name(block.id)}({_names(block.params)})")
        lines += [f"  {_print_op(op)}" for op in block.ops]
        lines += [f"  -> {_name(to)}({_names(worlds)})" for to, worlds in block.exits]
    return "\n".join(lines) + "\n"


def _print_op(op: Operation) -> str:
    text = f"{_name(op.id)}: "
    text += f"{_names(op.outputs)} = " if op.outputs else ""
    text += op.kind + (f" {_names(op.inputs)}" if op.inputs else "")
    text += f" : {json.dumps(op.step)}" if op.step is not None else ""
    text += f" {json.dumps(dict(op.attrs))}" if op.attrs else ""
    if op.site is not None:
        site = op.site
        text += f" @ {json.dumps(site.file)} {site.line}:{site.col}-{site.end_line}:{site.end_col}"
    return text


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _names(names: tuple[ValueId, ...]) -> str:
    return ", ".join(map(_name, names))


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
        return StepPlan(name, **{**facts, "effect": Effect(facts["effect"])})
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


def dot(graph: Graph) -> str:
    """Return a drawing for Graphviz."""
    lines = [f"digraph {json.dumps(graph.name)} {{", '  node [shape=box fontname="monospace"]']
    for block in graph.blocks:
        lines.append(f"  {json.dumps(block.id)} [label={json.dumps(chr(10).join(_rows(block)))}]")
        for to, worlds in block.exits:
            label = json.dumps(", ".join(worlds))
            lines.append(f"  {json.dumps(block.id)} -> {json.dumps(to)} [label={label}]")
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(graph: Graph) -> str:
    """Return a drawing for pages that render Mermaid."""
    names = {block.id: f"n{i}" for i, block in enumerate(graph.blocks)}  # Mermaid does not accept most other names
    lines = ["flowchart TD"]
    for block in graph.blocks:
        lines.append(f'  {names[block.id]}["{"<br>".join(map(_escaped, _rows(block)))}"]')
    for block in graph.blocks:
        for to, worlds in block.exits:
            label = f'|"{", ".join(worlds)}"|' if worlds else ""
            lines.append(f"  {names[block.id]} -->{label} {names[to]}")
    return "\n".join(lines) + "\n"


def _rows(block: Block) -> list[str]:
    return [block.id, *(f"{op.id}{' ' + op.step if op.step else ''}" for op in block.ops)]


def _escaped(text: str) -> str:
    """Escape a text for Mermaid, which reads `#…;` as a character and its other signs in quotes as they are."""
    return "".join(c if c.isalnum() or c in " _.-~/" else f"#{ord(c)};" for c in text)
