"""Lowers a Spec to a System State Graph. Start at `lower`.

A function's body. Each statement's bodies become blocks, and a block takes every world that is open at its start. A
fork is a region: all exits from it go through one cleanup block with its only RELEASE, and from there to where they
were going.

A LangGraph graph. A superstep of one task acts on the world itself, in the block `node.N`. A superstep of several
gives each task a branch and joins them: the blocks `superstep`, `task.N` and `join`, with the plan's one FORK, MERGE
and RELEASE of branches. Any node may start such a superstep (by several edges, a list from a branch, Sends, or a
Command with several targets), so each node leads to it, whatever edges could be read.

No SEAL is placed here: that is the pass `fork_points`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramify.compiler.ir.block_builder import BlockBuilder, OpenBlock
from ramify.compiler.ir.graph import CHANNELS, Graph, Operation
from ramify.compiler.ir.rewrite import normalised, ordered, renumber, threaded
from ramify.compiler.plan import IF_SET, UNORDERED, Effect, OpId, OpKind, StepPlan
from ramify.compiler.spec import (
    END,
    Adopt,
    Body,
    CallLlm,
    Conditional,
    EnterBranch,
    ExitKind,
    Fork,
    Inlined,
    Item,
    Leave,
    Loop,
    Machine,
    MachineNode,
    Spec,
    StepCall,
    StepSpec,
    Try,
    Unseen,
)


def lower(spec: Spec) -> Graph:
    """Return the System State Graph of a Spec."""
    steps = tuple(
        StepPlan(step.name, step.declared or Effect.UNKNOWN, step.reuse, step.code_digest, in_fork=step.in_fork)
        for step in spec.steps
    )
    build = BlockBuilder()
    if isinstance(spec.body, Machine):
        _lower_machine(build, spec.body, spec.steps)
        blocks = renumber(threaded(ordered(build.freeze()), CHANNELS, _takes_channels))
    else:
        _FunctionLowering(build, spec.steps).workflow(spec.body)
        blocks = normalised(build.freeze())
    return Graph(spec.name, spec.frontend, steps, blocks)


def _takes_channels(op: Operation) -> bool:
    return op.runs or op.kind in (OpKind.MERGE, OpKind.BREAK)


# A function's body


@dataclass(slots=True)
class _ExitTargets:
    """Where exits from a statement go. A cleanup catches every exit, and passes it on when the cleanup is done."""

    targets: dict[ExitKind, OpenBlock] = field(default_factory=dict)
    cleanup: OpenBlock | None = None
    pending: dict[ExitKind, None] = field(default_factory=dict)


class _FunctionLowering:
    def __init__(self, build: BlockBuilder, steps: tuple[StepSpec, ...]) -> None:
        self.build = build
        self.files = {step.name: {"files": step.files.attrs()} for step in steps if step.files is not None}
        self.exits: list[_ExitTargets] = []
        self.forks: list[tuple[OpId, int]] = []  # the open forks, outermost first, with the position of their world
        self.current = 0  # the position, among the open worlds, of the one that steps act on
        self.at: OpenBlock | None = None  # None: this point is unreachable

    def workflow(self, body: Body) -> None:
        entry = self.build.block([])
        self.build.add(entry, self.build.copy_of("enter"), OpKind.ENTER)
        self.at = entry
        leave = self.build.block(entry.worlds, "exit")
        self.exits.append(_ExitTargets({ExitKind.RETURN: leave, ExitKind.RAISE: leave}))
        self.body(body)
        self.go(leave)
        self.build.add(leave, self.build.copy_of("release.root"), OpKind.RELEASE, (0,))

    def body(self, body: Body) -> None:
        for item in body:
            if self.at is not None:
                self.item(item, self.at)

    def here(self) -> OpenBlock:
        assert self.at is not None
        return self.at

    def new(self) -> OpenBlock:
        return self.build.block(self.here().worlds)

    def go(self, target: OpenBlock) -> None:
        if self.at is not None:
            self.build.jump(self.at, target)
        self.at = None

    def arm(self, body: Body, start: OpenBlock, then: OpenBlock) -> None:
        """Lower `body` from the block `start`, which some block leads to already, and go on to `then`."""
        self.at = start
        self.body(body)
        self.go(then)

    def resume(self, block: OpenBlock) -> None:
        self.at = block if block.entered else None

    def item(self, item: Item, at: OpenBlock) -> None:
        match item:
            case StepCall(step, site):
                on = self.current if item.over is None else len(at.worlds) - 1 - item.over
                op_id = self.build.op_id("run", ("run", site))
                marks = {"caught": item.caught, "together": item.together, "every": item.every}
                attrs: dict[str, object] = {name: True for name, value in marks.items() if value}
                attrs |= _order(item)
                attrs |= self.files.get(step, {})
                self.build.add(at, op_id, OpKind.RUN, (on,), site=site, step=step, attrs=attrs)
            case CallLlm(method, site, n):
                op_id = self.build.op_id("llm", ("llm", site))
                call = {"method": method} if n is None else {"method": method, "n": n}
                self.build.add(at, op_id, OpKind.CALL_LLM, site=site, attrs=call | _order(item))
            case Unseen(reason, where, site):
                op_id = self.build.op_id("break", ("break", site))
                why = {"seal": True, "reason": reason, "where": where}
                self.build.add(at, op_id, OpKind.BREAK, (self.current,), site=site, attrs=why | _order(item))
            case Adopt(site, up):
                place = len(at.worlds) - 1 - up
                op_id = self.build.op_id("merge", ("merge", site))
                fork, parent = self.forks[place - 1]
                of_fork = {"fork": fork, "settled": True} if item.conflicts_handled else {"fork": fork}
                self.build.add(at, op_id, OpKind.MERGE, (parent, place), site=site, attrs=of_fork)
            case Fork():
                self.fork(item, at)
            case EnterBranch(up, body):
                outer, self.current = self.current, len(at.worlds) - 1 - up
                self.body(body)
                self.current = outer
            case Conditional(arms):
                self.conditional(arms)
            case Loop():
                self.loop(item)
            case Try():
                self.try_(item)
            case Inlined(_, body):
                after = self.new()
                self.exits.append(_ExitTargets({ExitKind.RETURN: after}))
                self.body(body)
                self.exits.pop()
                self.go(after)
                self.resume(after)
            case Leave(exit):
                self.leave(exit)

    def leave(self, exit: ExitKind) -> None:
        for around in reversed(self.exits):
            target = around.cleanup or around.targets.get(exit)
            if target is not None:
                if around.cleanup is not None:
                    around.pending[exit] = None
                self.go(target)
                return
        raise AssertionError(f"no loop or function around {exit}: Python refuses that")

    def fork(self, item: Fork, at: OpenBlock) -> None:
        op_id = self.build.op_id("fork", ("fork", item.site))
        self.build.add(at, op_id, OpKind.FORK, (self.current,), site=item.site)
        self.forks.append((op_id, self.current))
        region = _ExitTargets(cleanup=self.new())
        self.exits.append(region)
        self.body(item.body)
        falls_through = self.into_cleanup(region)
        self.forks.pop()
        if self.at is not None:
            place, release = len(self.at.worlds) - 1, self.build.copy_of("release" + op_id.removeprefix("fork"))
            self.build.add(self.at, release, OpKind.RELEASE, (place,), site=item.site, attrs={"fork": op_id})
        self.out_of_cleanup(region, falls_through)

    def into_cleanup(self, region: _ExitTargets) -> bool:
        """End a region, and continue in its cleanup if an exit leads there.

        Returns:
            Whether the end of the region's body is reached.
        """
        assert region.cleanup is not None
        falls_through = self.at is not None
        self.go(region.cleanup)
        self.exits.pop()
        self.resume(region.cleanup)
        return falls_through

    def out_of_cleanup(self, region: _ExitTargets, falls_through: bool) -> None:
        """Lead from the end of a cleanup to where the exits that entered it were going."""
        end, after = self.at, None
        if end is None:
            return
        if falls_through:
            after = self.new()
            self.go(after)
        for exit in region.pending:
            self.at = end
            self.leave(exit)
        self.at = after

    def conditional(self, arms: tuple[Body, ...]) -> None:
        start, after = self.here(), self.new()
        for body in arms:
            arm = self.build.block(start.worlds) if body else after
            self.build.jump(start, arm)
            if body:
                self.arm(body, arm, after)
        self.resume(after)

    def loop(self, item: Loop) -> None:
        header, after = self.new(), self.new()
        self.go(header)
        self.resume(header)
        self.body(item.test)
        tested = self.at
        if tested is None:
            return
        start = self.new()
        self.build.jump(tested, start)
        self.exits.append(_ExitTargets({ExitKind.BREAK: after, ExitKind.CONTINUE: header}))
        self.arm(item.body, start, header)
        self.exits.pop()
        if not item.endless:
            done = self.build.block(tested.worlds)
            self.build.jump(tested, done)
            self.arm(item.orelse, done, after)
        self.resume(after)

    def try_(self, item: Try) -> None:
        """Lower a `try`. An exception may come at the start of its body and at the end."""
        start, done, caught = self.here(), self.new(), self.new()
        final = _ExitTargets(cleanup=self.new())
        if item.final:
            self.exits.append(final)
        body = self.new()
        self.build.jump(start, body)
        self.exits.append(_ExitTargets({ExitKind.RAISE: caught} if item.handlers else {}))
        self.resume(body)
        self.body(item.body)
        self.exits.pop()
        for place in (start, self.at):
            if place is not None and item.handlers:
                self.build.jump(place, caught)
        if self.at is not None:
            orelse = self.new()
            self.go(orelse)
            self.arm(item.orelse, orelse, done)
        for handler in item.handlers:
            start_of_handler = self.build.block(caught.worlds)
            self.build.jump(caught, start_of_handler)
            self.arm(handler, start_of_handler, done)
        self.resume(done)
        if item.final:
            self.finally_(item, final, start)

    def finally_(self, item: Try, region: _ExitTargets, start: OpenBlock) -> None:
        if not item.handlers and region.cleanup is not None:
            region.pending[ExitKind.RAISE] = None
            self.build.jump(start, region.cleanup)
        falls_through = self.into_cleanup(region)
        self.body(item.final)
        self.out_of_cleanup(region, falls_through)


# A LangGraph graph


def _lower_machine(build: BlockBuilder, machine: Machine, steps: tuple[StepSpec, ...]) -> None:
    known = {step.name: step for step in steps}
    entry = build.block([], "entry")
    build.add(entry, build.copy_of("enter"), OpKind.ENTER)
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
    build.add(leave, build.copy_of("release.root"), OpKind.RELEASE, (0,))


def _superstep(build: BlockBuilder, superstep: OpenBlock, machine: Machine, known: dict[str, StepSpec]) -> OpenBlock:
    fork = build.copy_of("fork.superstep")
    build.add(superstep, fork, OpKind.FORK, (0,), attrs={"superstep": True})
    join = build.block(superstep.worlds, "join")
    for node in machine.nodes:
        task = build.block(superstep.worlds, f"task.{node.run.step}")
        build.jump(superstep, task)
        _node(build, task, node, known[node.run.step], 1)
        build.jump(task, join)
    build.add(join, build.copy_of("merge.superstep"), OpKind.MERGE, (0, 1), attrs={"fork": fork})
    build.add(join, build.copy_of("release.superstep"), OpKind.RELEASE, (1,), attrs={"fork": fork})
    return join


def _node(build: BlockBuilder, block: OpenBlock, node: MachineNode, step: StepSpec, place: int) -> None:
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
    build.add(block, build.copy_of(f"run.{run.step}"), kind, (place,), step=run.step, attrs=attrs)
    if node.unseen is not None:
        _break(build, block, node.unseen, run.step, place)


def _break(build: BlockBuilder, block: OpenBlock, unseen: Unseen, name: str, place: int) -> None:
    attrs = {"seal": True, "reason": unseen.reason, "where": unseen.where}
    build.add(block, build.copy_of(f"break.{name}"), OpKind.BREAK, (place,), attrs=attrs)


def _order(item: StepCall | CallLlm | Unseen) -> dict[str, Any]:
    """Return the attributes that say how calls follow the order of a set."""
    follows = item.unordered
    attrs: dict[str, Any] = {UNORDERED: follows.how} if follows.how else {}
    return attrs | ({IF_SET: list(follows.given)} if follows.given else {})
