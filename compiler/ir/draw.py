"""Drawings of a System State Graph: DOT for Graphviz, Mermaid for pages that draw it themselves.

A box is a block with its operations; the arrows carry the worlds that are handed on.
"""

from __future__ import annotations

import json

from ramify.compiler.ir.graph import Block, Graph


def dot(graph: Graph) -> str:
    lines = [f"digraph {json.dumps(graph.name)} {{", '  node [shape=box fontname="monospace"]']
    for block in graph.blocks:
        lines.append(f"  {json.dumps(block.id)} [label={json.dumps(chr(10).join(_rows(block)))}]")
        for to, worlds in block.exits:
            label = json.dumps(", ".join(worlds))
            lines.append(f"  {json.dumps(block.id)} -> {json.dumps(to)} [label={label}]")
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(graph: Graph) -> str:
    names = {block.id: f"n{i}" for i, block in enumerate(graph.blocks)}  # Mermaid minds most other names
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
    """Mermaid reads `#…;` as a character and the rest of its own signs between quotes as they are."""
    return "".join(c if c.isalnum() or c in " _.-~/" else f"#{ord(c)};" for c in text)
