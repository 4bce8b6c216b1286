"""The plan: the compiler's only output, and all that the runtime knows of the compiler.

Frozen, versioned, JSON. The runtime performs a plan's operations and names them in its journal; nothing else of
`ramify.compiler` is imported to run one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import PurePath
from typing import Any, NewType

PLAN_VERSION = 6
PREFIX = "prefix"  # the attribute of the operation whose first call is hinted at when the run begins
ADDED = "added"  # the attribute of an operation that a plan has since a change of the code was accepted
ACCEPTED = "accepted"  # its value where a person did; else the code itself is for both
STAGES = "stages"  # the pass that is nothing else than what is emitted of it

OpId = NewType("OpId", str)
ValueId = NewType("ValueId", str)


class PlanError(Exception):
    """A plan that cannot be read or run: wrong version, wrong shape, not for this workflow."""


class Effect(StrEnum):
    """What a step may do."""

    PURE = "pure"  # touches no world
    READONLY = "readonly"  # reads its world; nothing that it leaves there is kept
    REVERTIBLE = "revertible"  # changes only its world
    IRREVERSIBLE = "irreversible"  # reaches outside
    UNKNOWN = "unknown"  # unannotated: runs as written, never speculated, never reused


class OpKind(StrEnum):
    """The operations of the System State Graph. Worlds (w) are linear values: used once, except through FORK. What
    was done to the outside (e) is a second chain, in order: a graph that does nothing there has none. The versions of
    a graph's channels (c) are a third: what runs in LangGraph's nodes takes one and makes the next."""

    # () -> w, c, e. Import the workspace as the base snapshot; the root world stands on it. The channels as given.
    ENTER = "ENTER"
    # w -> w, or ws -> ws for every branch of a fork, or () -> () for a pure step. Run a step's code. One that may
    # reach outside takes the chain of effects as well, and hands it on: w, e -> w, e. A node of LangGraph reads
    # the version of the channels that it takes, and its writes make the next: w, c -> w, c; `attrs` may narrow both
    # to the channels that it `reads` and `writes`. `caught`: the workflow may go on after it failed, from where it
    # began.
    RUN = "RUN"
    # As RUN, of a node that calls tools. Which of `attrs["tools"]`, and how often, a model says while it runs.
    CALL_TOOL = "CALL_TOOL"
    # () -> (). A stage of model calls; touches no world.
    CALL_LLM = "CALL_LLM"
    # w -> w. Freeze what changed into a snapshot and record a checkpoint.
    SEAL = "SEAL"
    # e -> e. What follows is durably intended before it starts: an irreversible RUN stands behind one.
    BARRIER = "BARRIER"
    # w -> w. While the model thinks: make ready the worlds that a FORK of this one will hand out. w stays as it is.
    PREFORK = "PREFORK"
    # w -> w, ws. Many copy-on-write worlds on the snapshot where w was sealed.
    FORK = "FORK"
    # w, ws -> w, ws. Three-way merge of one branch into w; the base is the snapshot of the FORK in `attrs["fork"]`.
    # Of a superstep: every branch in turn, and the channels' reducers with it: w, ws, c -> w, ws, c.
    MERGE = "MERGE"
    # () -> (). Ask a person; the run waits. In a journal alone: it runs under a graph break or the catch-all.
    INTERRUPT = "INTERRUPT"
    # w -> w. Go back to an earlier state of the branch. In a journal alone: a person asked for it.
    RESTORE = "RESTORE"
    # () -> (). The code is another from here on: a person accepted that, or the workflow asked which version of its
    # code it is. In a journal alone.
    CHANGE = "CHANGE"
    # w -> w. A command in a step that was declared reusable. In a journal alone: its step is the operation.
    COMMAND = "COMMAND"
    # ws -> (), w -> (). End worlds: every path ends each world exactly once.
    RELEASE = "RELEASE"
    # w, c, e -> w, c, e. A graph break: what runs here was not seen ahead. Its steps run, and seal, under this name.
    BREAK = "BREAK"


STEPS = frozenset({OpKind.RUN, OpKind.CALL_TOOL})
"""The operations that run a step's code. Their rows in a journal are of kind RUN."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the user's code an operation stands: the range of the call expression. Lines from 1, columns from
    0 (UTF-8 bytes), as `ast` and `co_positions` count. `file` is the last two parts of the path."""

    file: str
    line: int
    col: int
    end_line: int
    end_col: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"

    def contains(self, line: int, col: int) -> bool:
        return (self.line, self.col) <= (line, col) < (self.end_line, self.end_col)


def text_digest(text: str) -> str:
    """Of a file's text, as `Plan.files` has it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def site_file(path: str) -> str:
    """A source path as a `Site` names it: its last two parts, so that a plan holds on another machine."""
    return "/".join(PurePath(path).parts[-2:])


@dataclass(frozen=True, slots=True)
class Origin:
    """What the code says of an operation, without its position."""

    place: int  # which of the places in the code it is, in the order in which that is read
    identity: str  # digest of the call, of what becomes of its result, and of the calls that lead to it
    first: str  # digest of the workflow's code up to the end of the statement that first leads there; "": not known
    last: str  # the same of the last one
    repeats: bool  # one run may come there several times


@dataclass(frozen=True, slots=True)
class PlanOp:
    """One operation. A call site reached over several call paths is one operation, with the values of the first
    path; a block on each path names it."""

    id: OpId
    kind: OpKind
    inputs: tuple[ValueId, ...] = ()
    outputs: tuple[ValueId, ...] = ()
    site: Site | None = None  # decorators: the call; LangGraph: None
    step: str | None = None  # RUN: the step's name (LangGraph: the node's name)
    attrs: Mapping[str, Any] = field(default_factory=dict)  # JSON values only
    origin: Origin | None = None  # decorators

    @property
    def has_world(self) -> bool:
        """Whether it takes a world, or a family of them, and not only channels or the chain of effects."""
        return any(value.startswith("w") for value in self.inputs)


@dataclass(frozen=True, slots=True)
class Block:
    """A straight line of operations; `exits` name the blocks that may follow and the worlds handed to each."""

    id: str
    params: tuple[ValueId, ...]
    ops: tuple[OpId, ...]
    exits: tuple[tuple[str, tuple[ValueId, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the compiler knows of one step."""

    name: str
    effect: Effect
    reuse: bool = False  # declared deterministic: equal state and inputs, equal result
    code_digest: str = ""
    why: str = ""  # how the effect is known: "declared", "takes a Sandbox", …
    in_fork: bool = False  # irreversible, and declared fit for a branch that may be thrown away


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage of model calls, as it is expected: from the code where that says it, else from recorded runs."""

    op: OpId
    calls: int
    prefill: float  # tokens, each call
    output: float  # tokens, the median of a call
    tools_s: float  # before it, since the stage before
    seconds: float  # from the stage's start to its last answer
    share: float  # φ: what of the deadline is over when this stage is due; the last stage's may be below 1


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place that the compiler could not see through, and what it means."""

    op: OpId
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class CodePart:
    """A function, class, constant or import of the project that the workflow or a step uses."""

    name: str
    where: str  # file:line
    digest: str
    steps: tuple[str, ...]  # those that use it, or that come after a use of it in the workflow


@dataclass(frozen=True)  # no slots: the lookup tables are cached on it
class Plan:
    """What a run performs. `breaks` begins with the catch-all: the operation under which the runtime names whatever
    has no site in the plan, so that a plan is exhaustive by construction."""

    workflow: str  # "path/or/module:name", as `ramify run` takes it
    name: str
    frontend: str  # "decorators" | "langgraph"
    code_digest: str
    steps: tuple[StepPlan, ...]
    ops: tuple[PlanOp, ...]
    blocks: tuple[Block, ...]
    breaks: tuple[GraphBreak, ...] = ()
    deadline_s: float | None = None
    stages: int | None = None  # how many stages of LLM calls a run has, where that is known
    expected: tuple[StagePlan, ...] = ()  # each of them, where recorded runs say how long they take
    passes: tuple[str, ...] = ()  # that made this plan
    code: tuple[CodePart, ...] = ()  # what it was compiled from
    places: int = 0  # how many places the code has where operations stand
    patches: tuple[str, ...] = ()  # the names that the code asks `patched` for
    files: tuple[tuple[str, str], ...] = ()  # in which its sites are, each with the digest of its text
    version: int = PLAN_VERSION

    def op(self, op_id: str) -> PlanOp:
        """Raises PlanError if the plan has no such operation."""
        try:
            return self._by_id[op_id]
        except KeyError:
            raise PlanError(f"plan of {self.name}: no operation {op_id!r}; it has {', '.join(self._by_id)}") from None

    def step(self, name: str) -> StepPlan | None:
        return self._by_step.get(name)

    @property
    def catch_all(self) -> PlanOp:
        """Raises PlanError if the plan has no graph breaks: every plan that was compiled or read has this one."""
        if not self.breaks:
            raise PlanError(
                f"plan of {self.name}: `breaks` is empty; its first must be the catch-all: compile it again"
            )
        return self.op(self.breaks[0].op)

    def at(self, kind: OpKind | tuple[OpKind, ...], file: str, line: int, col: int) -> PlanOp | None:
        """The innermost operation of that kind whose site contains the point; `file` as `site_file` gives it.

        Containment, not equality: CPython moves the position of a call in a multi-line chain to the line of its
        attribute, which is still inside the call expression.
        """
        kinds = kind if isinstance(kind, tuple) else (kind,)
        found: PlanOp | None = None
        for op in self._by_file.get(file, ()):
            if op.kind in kinds and op.site and op.site.contains(line, col) and _is_inside(op, found):
                found = op
        return found

    def on_line(self, file: str, line: int) -> list[PlanOp]:
        """The operations whose call takes up that line, or part of it; `file` as `site_file` gives it."""
        ops = self._by_file.get(file, ())
        return [op for op in ops if op.site is not None and op.site.line <= line <= op.site.end_line]

    def after(self, op: PlanOp, kind: OpKind) -> PlanOp | None:
        """The operation of that kind that consumes a world that `op` makes, in its block or in one that follows.

        Where an operation was taken out of the plan, its outputs are missing: then the next operation of the block
        that names a missing value counts as the consumer.
        """
        todo, seen = list(op.outputs), set(op.outputs)
        while todo:
            value = todo.pop(0)
            for user in self._users.get(value, ()):
                if user.kind is kind:
                    return user
            fresh = [v for v in self._handed_on.get(value, ()) if v not in seen]
            seen.update(fresh)
            todo += fresh
        if any(v in self._users or v in self._handed_on for v in op.outputs):
            return None
        orphan = self._next_orphan(op)
        return orphan if orphan is not None and orphan.kind is kind else None

    def before(self, op: PlanOp, kind: OpKind) -> PlanOp | None:
        """The operation of that kind that makes a world that `op` consumes, in the same block."""
        makers = (self._makers.get(value) for value in op.inputs)
        return next((maker for maker in makers if maker is not None and maker.kind is kind), None)

    def prefork(self, op_id: str) -> PlanOp | None:
        """The PREFORK that is performed while that operation waits for the model."""
        return self._preforks.get(op_id)

    def rest_after(self, stage: int) -> tuple[float, ...] | None:
        """The tag `plan_rest`: calls, prefill tokens, output tokens and tool seconds of each stage after this one;
        None where the stages are not known."""
        if stage >= len(self.expected):
            return None
        rest = self.expected[stage + 1 :]
        return tuple(number for s in rest for number in (s.calls, s.prefill, s.output, s.tools_s))

    def release_of(self, fork: PlanOp) -> PlanOp | None:
        """The RELEASE of the branches of that FORK."""
        ends = (op for op in self.ops if op.kind is OpKind.RELEASE)
        return next((op for op in ends if op.attrs.get("fork") == fork.id), None)

    def without(self, op: PlanOp) -> Plan:
        """The plan with an operation taken out, and its outputs replaced by its inputs. Raises PlanError for one that
        makes or ends worlds."""
        if len(op.inputs) != len(op.outputs):
            raise PlanError(f"plan of {self.name}: {op.kind} {op.id} makes or ends worlds and cannot be taken out")
        swap = dict(zip(op.outputs, op.inputs, strict=True))

        def swapped(values: tuple[ValueId, ...]) -> tuple[ValueId, ...]:
            return tuple(swap.get(value, value) for value in values)

        ops = tuple(replace(o, inputs=swapped(o.inputs)) for o in self.ops if o.id != op.id)
        blocks = tuple(
            replace(
                block,
                ops=tuple(op_id for op_id in block.ops if op_id != op.id),
                exits=tuple((to, swapped(worlds)) for to, worlds in block.exits),
            )
            for block in self.blocks
        )
        return replace(self, ops=ops, blocks=blocks)

    def to_json(self) -> str:
        return self._text

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Raises PlanError, which names the key that is wrong.

        A plan that people have edited is read as it is: an operation taken out of `ops` may still stand in a block,
        and the values that it made may still be named.
        """
        from ramify.compiler.plan_json import read_plan

        return read_plan(text)

    @cached_property
    def _text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @cached_property
    def _by_id(self) -> dict[str, PlanOp]:
        return {op.id: op for op in self.ops}

    @cached_property
    def _preforks(self) -> dict[str, PlanOp]:
        return {str(op.attrs["during"]): op for op in self.ops if op.kind is OpKind.PREFORK}

    @cached_property
    def _by_step(self) -> dict[str, StepPlan]:
        return {step.name: step for step in self.steps}

    @cached_property
    def _by_file(self) -> dict[str, list[PlanOp]]:
        table: dict[str, list[PlanOp]] = {}
        for op in self.ops:
            if op.site is not None:
                table.setdefault(op.site.file, []).append(op)
        return table

    @cached_property
    def _makers(self) -> dict[ValueId, PlanOp]:
        return {value: op for op in self.ops for value in op.outputs}

    @cached_property
    def _users(self) -> dict[ValueId, list[PlanOp]]:
        table: dict[ValueId, list[PlanOp]] = {}
        for op in self.ops:
            for value in op.inputs:
                table.setdefault(value, []).append(op)
        return table

    @cached_property
    def _handed_on(self) -> dict[ValueId, list[ValueId]]:
        """World to the block parameters that it becomes."""
        params = {block.id: block.params for block in self.blocks}
        table: dict[ValueId, list[ValueId]] = {}
        for block in self.blocks:
            for to, worlds in block.exits:
                for value, param in zip(worlds, params[to], strict=False):
                    table.setdefault(value, []).append(param)
        return table

    def _next_orphan(self, op: PlanOp) -> PlanOp | None:
        known = set(self._makers) | {param for block in self.blocks for param in block.params}
        for block in self.blocks:
            if op.id in block.ops:
                for op_id in block.ops[block.ops.index(op.id) + 1 :]:
                    later = self._by_id.get(op_id)
                    if later is not None and any(value not in known for value in later.inputs):
                        return later
        return None


def _is_inside(op: PlanOp, other: PlanOp | None) -> bool:
    if other is None or op.site is None or other.site is None:
        return other is None
    start, other_start = (op.site.line, op.site.col), (other.site.line, other.site.col)
    end, other_end = (op.site.end_line, op.site.end_col), (other.site.end_line, other.site.end_col)
    return start > other_start or (start == other_start and end < other_end)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a decorated function says of itself, for the compiler to read as `function.__ramify_step__`."""

    name: str  # the function's qualified name
    module: str
    effect: Effect | None  # None: not declared
    takes_sandbox: bool
    reuse: bool = False
    in_fork: bool = False
    retried: bool = False  # a failed attempt is followed by another


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """The same for a workflow, as `function.__ramify_workflow__`."""

    name: str
    ref: str  # how to find it again: "path/to/file.py:name" or "module:name"
    deadline_s: float | None = None
