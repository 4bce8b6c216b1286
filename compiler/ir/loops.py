"""Which blocks a loop goes through."""

from __future__ import annotations

from ramify.compiler.ir.graph import Graph


def in_loops(graph: Graph) -> set[str]:
    """The blocks that lead back to themselves: Kosaraju's algorithm, linear in blocks and exits."""
    onward = {block.id: [to for to, _ in block.exits] for block in graph.blocks}
    back: dict[str, list[str]] = {name: [] for name in onward}
    for name, targets in onward.items():
        for to in targets:
            back[to].append(name)
    order, seen = list[str](), set[str]()
    for start in onward:
        order += _finished(start, onward, seen)
    found, seen = {name for name, targets in onward.items() if name in targets}, set[str]()
    for start in reversed(order):
        part = _finished(start, back, seen)
        if len(part) > 1:
            found.update(part)
    return found


def _finished(start: str, edges: dict[str, list[str]], seen: set[str]) -> list[str]:
    """What is reached from `start` and was not seen, each name after those reached from it."""
    if start in seen:
        return []
    seen.add(start)
    done, stack = list[str](), [(start, iter(edges[start]))]
    while stack:
        name, targets = stack[-1]
        fresh = next((to for to in targets if to not in seen), None)
        if fresh is None:
            done.append(name)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(edges[fresh])))
    return done
