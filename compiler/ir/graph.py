"""The System State Graph: blocks of operations on worlds, and its text.

The values are states: each version of a world is one value, made once and used once. Blocks pass worlds on by
parameters, as in MLIR, and use no world that they neither made nor received. So each block shows by itself that
worlds are linear.

`SIGNATURES` says which values each operation takes and makes; `OpKind` documents their meaning. Values are named for
their sort: `w3` is a world; `ws4` is a family, that is, all branches of one fork, which are operated on as one value;
`c5` is a version of the channels; `e6` is a value in the chain of effects on the outside.

A graph is written in an exact form (`print_graph`):

    graph "repair" "decorators"
    step "try_patch" {"effect": "revertible", "reuse": false, "code_digest": "…", "why": "takes a Sandbox"}
    block b0()
      enter: w1 = ENTER
      fork.1: w2, ws1 = FORK w1 {"base": ["enter"]} @ "app/repair.py" 12:15-12:28
      -> b1(w2, ws1)

A name of letters, digits and `_.~-` is written as it is, and any other name as a JSON string. In a drawing (`dot`,
`mermaid`), a box is a block with its operations, and an arrow shows the worlds that are passed on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any

from ramify.compiler.plan import STEPS, OpId, OpKind, Site, StepPlan, ValueId

CHANNELS = "c"  # prefix of values that are versions of the channels
EFFECTS = "e"  # prefix of values in the chain of effects
NO_WORLD = (CHANNELS, EFFECTS)
COPY = "~"  # `run.3~2` is the second copy of `run.3`: the same call site on another call path


def base_id(op_id: str) -> OpId:
    """Return the id of an operation without the mark of a copy."""
    return OpId(op_id.partition(COPY)[0])


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `inputs` are the values that it takes, `outputs` those that it makes."""

    id: OpId
    kind: OpKind
    inputs: tuple[ValueId, ...] = ()
    outputs: tuple[ValueId, ...] = ()
    site: Site | None = None
    step: str | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)  # JSON values only

    @property
    def runs(self) -> bool:
        """Whether it runs a step's code."""
        return self.kind in STEPS

    @property
    def worlds(self) -> tuple[ValueId, ...]:
        """The inputs that are worlds or families of branches."""
        return tuple([value for value in self.inputs if value[0] not in NO_WORLD])

    @property
    def fork(self) -> str | None:
        """The FORK that a MERGE or a RELEASE of branches belongs to."""
        fork = self.attrs.get("fork")
        return fork if isinstance(fork, str) else None

    @property
    def place(self) -> str:
        """Where it stands in the user's code, for messages."""
        return f"{self.site} ({self.id})" if self.site else self.id


@dataclass(frozen=True, slots=True)
class Block:
    """A sequence of operations. `exits` name the blocks that may follow, and the values passed to each."""

    id: str
    params: tuple[ValueId, ...] = ()
    ops: tuple[Operation, ...] = ()
    exits: tuple[tuple[str, tuple[ValueId, ...]], ...] = ()


@dataclass(frozen=True)  # no slots: the tables are cached on it
class Graph:
    """A System State Graph. The first block is the entry."""

    name: str
    frontend: str
    steps: tuple[StepPlan, ...]
    blocks: tuple[Block, ...]

    def __str__(self) -> str:
        return print_graph(self)

    @property
    def digest(self) -> str:
        return hashlib.sha256(str(self).encode()).hexdigest()

    def ops(self) -> Iterator[Operation]:
        """Yield all operations in reading order."""
        for block in self.blocks:
            yield from block.ops

    @cached_property
    def by_id(self) -> dict[str, Block]:
        return {block.id: block for block in self.blocks}

    @cached_property
    def by_step(self) -> dict[str, StepPlan]:
        return {step.name: step for step in self.steps}

    @cached_property
    def predecessors(self) -> dict[str, list[str]]:
        """For each block, the blocks that lead to it."""
        table: dict[str, list[str]] = {}
        for block in self.blocks:
            for to, _ in block.exits:
                table.setdefault(to, []).append(block.id)
        return table


WORLD, FAMILY = "w", "ws"


def sort(value: ValueId) -> str:
    """Return the sort of a value: "w", "ws", "c" or "e"."""
    first = value[0]
    return first if first != WORLD else FAMILY if value[1:2] == "s" else WORLD


# The permitted worlds of each operation: (in, out). `x` stands for one sort, w or ws, the same on both sides.
SIGNATURES: dict[OpKind, tuple[tuple[str, str], ...]] = {
    OpKind.ENTER: (("", "w"),),
    OpKind.RUN: (("x", "x"), ("", "")),
    OpKind.CALL_TOOL: (("x", "x"), ("", "")),
    OpKind.CALL_LLM: (("", ""),),
    OpKind.SEAL: (("x", "x"),),
    OpKind.FORK: (("x", "x ws"),),
    OpKind.MERGE: (("x ws", "x ws"),),
    OpKind.RESTORE: (("x", "x"),),
    OpKind.INTERRUPT: (("", ""),),
    OpKind.SLEEP: (("", ""),),
    OpKind.RELEASE: (("x", ""),),
    OpKind.BREAK: (("x", "x"),),
    OpKind.BARRIER: (("", ""),),
    OpKind.PREFORK: (("x", "x"),),
}
# The chains, c then e, that each may take behind its worlds, and then also makes; ENTER only makes, RELEASE only
# takes.
CHAINS: dict[OpKind, str] = {
    OpKind.ENTER: "ce",
    OpKind.RUN: "ce",
    OpKind.CALL_TOOL: "ce",
    OpKind.MERGE: "c",
    OpKind.RELEASE: "ce",
    OpKind.BREAK: "ce",
    OpKind.BARRIER: "e",
}


def fits(kind: OpKind, inputs: tuple[ValueId, ...], outputs: tuple[ValueId, ...]) -> bool:
    """Return whether an operation of this kind may take and make these values."""
    return _fits(kind, tuple(map(sort, inputs)), tuple(map(sort, outputs)))


@cache
def _fits(kind: OpKind, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> bool:
    taken, chains_in = _split(inputs)
    made, chains_out = _split(outputs)
    allowed = CHAINS.get(kind, "")
    carried = chains_in if kind is OpKind.RELEASE else chains_out
    ends = (kind is OpKind.ENTER and not chains_in) or (kind is OpKind.RELEASE and not chains_out)
    if carried not in ("", "c", "e", "ce") or not set(carried) <= set(allowed):
        return False
    if not ends and chains_in != chains_out:
        return False
    if kind is OpKind.RELEASE and chains_in and taken != WORLD:
        return False  # the chains end with the root world
    return any(
        (taken, made) == (left.replace("x", one), right.replace("x", one))
        for left, right in SIGNATURES[kind]
        for one in (WORLD, FAMILY)
    ) and (kind is not OpKind.BARRIER or carried == EFFECTS)


def _split(sorts: tuple[str, ...]) -> tuple[str, str]:
    """Return the sorts of the worlds, which come first, and those of the chains behind them."""
    worlds = [one for one in sorts if one not in (CHANNELS, EFFECTS)]
    return " ".join(worlds), "".join(sorts[len(worlds) :])


_BARE = re.compile(r"[A-Za-z0-9_.~-]+(?<!-)")


def print_graph(graph: Graph) -> str:
    """Return the exact form: equal texts are equal graphs (`tests/compiler/graph_parser.py` reads it back)."""
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
