"""What leads where among blocks or nodes: questions of graph theory, which networkx answers.

It is imported when it is asked: that takes a tenth of a second, and a command that compiles nothing needs none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ramify.compiler.ir.graph import Graph


def in_loops(graph: Graph) -> set[str]:
    """The blocks that lead back to themselves. Linear in blocks and exits."""
    import networkx

    flow = networkx.DiGraph({block.id: [to for to, _ in block.exits] for block in graph.blocks})
    found = set(networkx.nodes_with_selfloops(flow))
    for part in networkx.strongly_connected_components(flow):
        if len(part) > 1:
            found |= part
    return found


def reached(start: Iterable[str], onward: Mapping[str, Iterable[str]]) -> set[str]:
    """`start`, and all that can be come to from there."""
    import networkx

    flow, seen = networkx.DiGraph({name: list(targets) for name, targets in onward.items()}), set(start)
    flow.add_nodes_from(seen)
    seen.update(to for _, to in networkx.edge_bfs(flow, list(seen)))
    return seen
