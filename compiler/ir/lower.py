"""Spec to System State Graph.

Each statement's bodies become blocks; a block takes every world that is open where it stands. A fork is a region: all
ways out of it lead through one cleanup block with its single RELEASE, whose exits are where those ways go on. No SEAL
is placed here: that is the pass `fork_points`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ramify.compiler.ir.block_builder import BlockBuilder, OpenBlock
from ramify.compiler.ir.graph import CHANNELS, Graph, Operation
from ramify.compiler.ir.rewrite import renumber, straightened, threaded, tidy
from ramify.compiler.plan import Effect, OpId, OpKind, StepPlan
from ramify.compiler.spec import (
    END,
    Adopt,
    Body,
    CallLlm,
    Choice,
    Enter,
    Fork,
    Inlined,
    Item,
    Leave,
    Loop,
    Machine,
    Node,
    Run,
    Spec,
    StepSpec,
    Try,
    Unseen,
    Way,
)


def lower_machine(build: BlockBuilder, machine: Machine, steps: tuple[StepSpec, ...]) -> None:
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


def _superstep(build: BlockBuilder, superstep: OpenBlock, machine: Machine, known: dict[str, StepSpec]) -> OpenBlock:
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


def _node(build: BlockBuilder, block: OpenBlock, node: Node, step: StepSpec, place: int) -> None:
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


def _break(build: BlockBuilder, block: OpenBlock, unseen: Unseen, name: str, place: int) -> None:
    attrs = {"seal": True, "reason": unseen.reason, "where": unseen.where}
    build.add(block, build.named(f"break.{name}"), OpKind.BREAK, (place,), attrs=attrs)


def lower(spec: Spec) -> Graph:
    """Versions of the channels are values where there are channels: the nodes of a Machine hand them on."""
    steps = tuple(
        StepPlan(step.name, step.declared or Effect.UNKNOWN, step.reuse, step.code_digest, in_fork=step.in_fork)
        for step in spec.steps
    )
    build = BlockBuilder()
    if isinstance(spec.body, Machine):
        lower_machine(build, spec.body, spec.steps)
        blocks = renumber(threaded(straightened(build.freeze()), CHANNELS, _takes_channels))
    else:
        _Lowering(build, spec.steps).workflow(spec.body)
        blocks = tidy(build.freeze())
    return Graph(spec.name, spec.frontend, steps, blocks)


def _takes_channels(op: Operation) -> bool:
    return op.runs or op.kind in (OpKind.MERGE, OpKind.BREAK)


@dataclass(slots=True)
class _Scope:
    """What catches a way out: `catches` says where each way goes on. A cleanup catches every way, and hands each on
    when its own work is done."""

    catches: dict[Way, OpenBlock] = field(default_factory=dict)
    cleanup: OpenBlock | None = None
    pending: dict[Way, None] = field(default_factory=dict)


class _Lowering:
    def __init__(self, build: BlockBuilder, steps: tuple[StepSpec, ...]) -> None:
        self.build = build
        self.files = {step.name: {"files": step.files.attrs()} for step in steps if step.files is not None}
        self.scopes: list[_Scope] = []
        self.forks: list[tuple[OpId, int]] = []  # the open ones, outermost first, and the place of the world forked
        self.current = 0  # the place, among the open worlds, of the one that steps act on
        self.at: OpenBlock | None = None  # None: nothing reaches here

    def workflow(self, body: Body) -> None:
        entry = self.build.block([])
        self.build.add(entry, self.build.named("enter"), OpKind.ENTER)
        self.at = entry
        leave = self.build.block(entry.worlds, "exit")
        self.scopes.append(_Scope({Way.RETURN: leave, Way.RAISE: leave}))
        self.body(body)
        self.go(leave)
        self.build.add(leave, self.build.named("release.root"), OpKind.RELEASE, (0,))

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
        """`body` from the block `start` on, which something leads to already, and on to `then`."""
        self.at = start
        self.body(body)
        self.go(then)

    def resume(self, block: OpenBlock) -> None:
        self.at = block if block.entered else None

    def item(self, item: Item, at: OpenBlock) -> None:
        match item:
            case Run(step, site):
                on = self.current if item.over is None else len(at.worlds) - 1 - item.over
                op_id = self.build.name("run", ("run", site))
                marks = {"caught": item.caught, "together": item.together, "every": item.every}
                attrs: dict[str, object] = {name: True for name, value in marks.items() if value}
                attrs |= self.files.get(step, {})
                self.build.add(at, op_id, OpKind.RUN, (on,), site=site, step=step, attrs=attrs)
            case CallLlm(method, site, n):
                op_id = self.build.name("llm", ("llm", site))
                said = {"method": method} if n is None else {"method": method, "n": n}
                self.build.add(at, op_id, OpKind.CALL_LLM, site=site, attrs=said)
            case Unseen(reason, where, site):
                op_id = self.build.name("break", ("break", site))
                seen = {"seal": True, "reason": reason, "where": where}
                self.build.add(at, op_id, OpKind.BREAK, (self.current,), site=site, attrs=seen)
            case Adopt(site, up):
                place = len(at.worlds) - 1 - up
                op_id = self.build.name("merge", ("merge", site))
                fork, parent = self.forks[place - 1]
                of_fork = {"fork": fork, "settled": True} if item.settled else {"fork": fork}
                self.build.add(at, op_id, OpKind.MERGE, (parent, place), site=site, attrs=of_fork)
            case Fork():
                self.fork(item, at)
            case Enter(up, body):
                outer, self.current = self.current, len(at.worlds) - 1 - up
                self.body(body)
                self.current = outer
            case Choice(arms):
                self.choice(arms)
            case Loop():
                self.loop(item)
            case Try():
                self.try_(item)
            case Inlined(_, body):
                after = self.new()
                self.scopes.append(_Scope({Way.RETURN: after}))
                self.body(body)
                self.scopes.pop()
                self.go(after)
                self.resume(after)
            case Leave(way):
                self.leave(way)

    def leave(self, way: Way) -> None:
        for scope in reversed(self.scopes):
            target = scope.cleanup or scope.catches.get(way)
            if target is not None:
                if scope.cleanup is not None:
                    scope.pending[way] = None
                self.go(target)
                return
        raise AssertionError(f"no loop or function around {way}: Python refuses that")

    def fork(self, item: Fork, at: OpenBlock) -> None:
        op_id = self.build.name("fork", ("fork", item.site))
        self.build.add(at, op_id, OpKind.FORK, (self.current,), site=item.site)
        self.forks.append((op_id, self.current))
        scope = _Scope(cleanup=self.new())
        self.scopes.append(scope)
        self.body(item.body)
        falls = self.into_cleanup(scope)
        self.forks.pop()
        if self.at is not None:
            place, release = len(self.at.worlds) - 1, self.build.named("release" + op_id.removeprefix("fork"))
            self.build.add(self.at, release, OpKind.RELEASE, (place,), site=item.site, attrs={"fork": op_id})
        self.out_of_cleanup(scope, falls)

    def into_cleanup(self, scope: _Scope) -> bool:
        """End a region: go on in its cleanup, if any way leads there. Whether control falls out of the region."""
        assert scope.cleanup is not None
        falls = self.at is not None
        self.go(scope.cleanup)
        self.scopes.pop()
        self.resume(scope.cleanup)
        return falls

    def out_of_cleanup(self, scope: _Scope, falls: bool) -> None:
        """From the end of a cleanup, on to wherever the ways that led into it were going."""
        end, after = self.at, None
        if end is None:
            return
        if falls:
            after = self.new()
            self.go(after)
        for way in scope.pending:
            self.at = end
            self.leave(way)
        self.at = after

    def choice(self, arms: tuple[Body, ...]) -> None:
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
        self.scopes.append(_Scope({Way.BREAK: after, Way.CONTINUE: header}))
        self.arm(item.body, start, header)
        self.scopes.pop()
        if not item.endless:
            done = self.build.block(tested.worlds)
            self.build.jump(tested, done)
            self.arm(item.orelse, done, after)
        self.resume(after)

    def try_(self, item: Try) -> None:
        """An exception may come at the start of the body and at its end."""
        start, done, caught = self.here(), self.new(), self.new()
        final = _Scope(cleanup=self.new())
        if item.final:
            self.scopes.append(final)
        body = self.new()
        self.build.jump(start, body)
        self.scopes.append(_Scope({Way.RAISE: caught} if item.handlers else {}))
        self.resume(body)
        self.body(item.body)
        self.scopes.pop()
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

    def finally_(self, item: Try, scope: _Scope, start: OpenBlock) -> None:
        if not item.handlers and scope.cleanup is not None:
            scope.pending[Way.RAISE] = None
            self.build.jump(start, scope.cleanup)
        falls = self.into_cleanup(scope)
        self.body(item.final)
        self.out_of_cleanup(scope, falls)
