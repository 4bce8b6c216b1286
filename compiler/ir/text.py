"""A System State Graph as text: an exact form, and drawings in DOT and Mermaid.

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
from dataclasses import asdict

from ramify.compiler.ir.graph import Block, Graph, Operation
from ramify.compiler.plan import ValueId

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
