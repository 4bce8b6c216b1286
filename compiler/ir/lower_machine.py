"""A graph of nodes (LangGraph) to blocks.

A superstep of one task acts on the world itself: the block `node.N`. A superstep of several gives each task a branch,
and joins them: the blocks `superstep`, `task.N`, `join`, with the plan's one FORK, MERGE and RELEASE of branches. Any
node may start such a superstep (several edges, a list from a branch, Sends, a Command with several targets), so from
each there is a way to it, whatever the edges that could be read.
"""

from __future__ import annotations

from typing import Any

from ramify.compiler.ir.build import Builder, OpenBlock
from ramify.compiler.plan import OpKind
from ramify.compiler.spec import END, Machine, Node, StepSpec, Unseen


def lower_machine(build: Builder, machine: Machine, steps: tuple[StepSpec, ...]) -> None:
    known = {step.name: step for step in steps}
    entry = build.block([], "entry")
    build.add(entry, build.named("enter"), OpKind.ENTER)
    if machine.unseen is not None:
        _break(build, entry, machine.unseen, "start", 0)
    blocks = {node.run.step: build.block(entry.worlds, f"node.{node.run.step}") for node in machine.nodes}
    superstep, leave = build.block(entry.worlds, "superstep"), build.block(entry.worlds, "exit")
    blocks[END] = leave
    for node in machine.nodes:
        _node(build, blocks[node.run.step], node, known[node.run.step], 0)
    for source, targets in [(entry, machine.entry), *((blocks[n.run.step], n.targets) for n in machine.nodes)]:
        for target in targets:
            build.jump(source, blocks[target])
        build.jump(source, superstep)
    join = _superstep(build, superstep, machine, known)
    for block in [*blocks.values(), superstep]:
        build.jump(join, block)
    build.add(leave, build.named("release.root"), OpKind.RELEASE, (0,))


def _superstep(build: Builder, superstep: OpenBlock, machine: Machine, known: dict[str, StepSpec]) -> OpenBlock:
    fork = build.named("fork.superstep")
    build.add(superstep, fork, OpKind.FORK, (0,), attrs={"superstep": True})
    join = build.block(superstep.worlds, "join")
    for node in machine.nodes:
        task = build.block(superstep.worlds, f"task.{node.run.step}")
        build.jump(superstep, task)
        _node(build, task, node, known[node.run.step], 1)
        build.jump(task, join)
    build.add(join, build.named("merge.superstep"), OpKind.MERGE, (0, 1), attrs={"fork": fork})
    build.add(join, build.named("release.superstep"), OpKind.RELEASE, (1,), attrs={"fork": fork})
    return join


def _node(build: Builder, block: OpenBlock, node: Node, step: StepSpec, place: int) -> None:
    run = node.run
    attrs: dict[str, Any] = {"subgraph": True} if run.subgraph else {}
    if run.waits_for:
        attrs["waits_for"] = list(run.waits_for)
    for name, channels in (("reads", step.reads), ("writes", step.writes)):
        if channels is not None:
            attrs[name] = list(channels)
    if step.reads_by:
        attrs["reads_by"] = step.reads_by
    if step.files is not None:
        attrs["files"] = step.files.attrs()
    if step.tools:
        attrs["tools"] = {tool.name: tool.effect.value for tool in step.tools}
    kind = OpKind.CALL_TOOL if step.tools else OpKind.RUN
    build.add(block, build.named(f"run.{run.step}"), kind, (place,), step=run.step, attrs=attrs)
    if node.unseen is not None:
        _break(build, block, node.unseen, run.step, place)


def _break(build: Builder, block: OpenBlock, unseen: Unseen, name: str, place: int) -> None:
    attrs = {"seal": True, "reason": unseen.reason, "where": unseen.where}
    build.add(block, build.named(f"break.{name}"), OpKind.BREAK, (place,), attrs=attrs)
