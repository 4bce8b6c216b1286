"""The plan: the compiler's only output, and all that the runtime knows of the compiler.

A plan is frozen, versioned, and stored as JSON. The runtime performs its operations and names them in the journal.
Running a plan imports nothing else of `ramify.compiler`. Start at `Plan` and `OpKind`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import PurePath
from typing import Any, NewType

PLAN_VERSION = 10
PLACES_VERSION = 6  # since this version, plans state the places of operations, and digests fit each version of Python
PARAMETERS_VERSION = 10  # since this version, plans state the parameters of steps
PREFIX = "prefix"  # attribute of the operation whose first model call is hinted at when the run begins
ADDED = "added"  # attribute of an operation that was added to the plan when a change of the code was accepted
CHANGED = "changed"  # attribute of an operation that is reached through code that was changed since it was recorded
ACCEPTED = "accepted"  # its value if a person accepted the change; otherwise the code supports both versions
UNORDERED = "unordered"  # attribute of an operation whose calls follow the order of a set
EQUAL, MAYBE_EQUAL = "equal", "maybe equal"  # its values: whether the arguments leave open which call is which
PICKED = "picked"  # its value if an argument is one item of a set, or a list of its items
IF_SET = "if_set"  # attribute beside it: the recorded values of which one is a set if the calls follow such an order
WORLDLESS = "worldless"  # attribute of a call of a step that certainly leaves its world alone
STAGES = "stages"  # the pass that changes no operation, only `Plan.stages` and `Plan.expected`

OpId = NewType("OpId", str)
ValueId = NewType("ValueId", str)


class PlanError(Exception):
    """A plan cannot be read or run: it has another version or shape, or is for another workflow."""


class Effect(StrEnum):
    """What a step may do."""

    PURE = "pure"  # uses no world
    READONLY = "readonly"  # reads its world; its changes there are dropped
    REVERTIBLE = "revertible"  # changes only its world
    IRREVERSIBLE = "irreversible"  # acts on the outside world
    UNKNOWN = "unknown"  # not annotated: runs as written, never ahead of time, never reused


HARMLESS = frozenset({Effect.PURE, Effect.READONLY, Effect.REVERTIBLE})
"""Effects of steps that change only their world, so that they may safely run again."""


class OpKind(StrEnum):
    """The operations of the System State Graph.

    Values are of three kinds. Worlds (w, and ws for all branches of a fork) are linear: each is used once, except
    through FORK. Effects on the outside (e) form a second chain, in order; a graph without such effects has none.
    Versions of a LangGraph graph's channels (c) form a third: each node takes one and makes the next.
    """

    # () -> w, c, e. Import the workspace as the base snapshot, and make the root world on it. Take the channels
    # given.
    ENTER = "ENTER"
    # w -> w; ws -> ws for every branch of a fork; () -> () for a pure step. Run a step's code. A step that may act on
    # the outside also takes the chain of effects: w, e -> w, e. A LangGraph node takes a version of the channels, and
    # its writes make the next: w, c -> w, c; `attrs` may narrow both to the channels that it `reads` and `writes`.
    # `caught`: after a failure the workflow may continue from the state before it.
    RUN = "RUN"
    # As RUN, for a node that calls tools. The model decides at run time which of `attrs["tools"]` to call, how often.
    CALL_TOOL = "CALL_TOOL"
    # () -> (). A stage of model calls. Uses no world.
    CALL_LLM = "CALL_LLM"
    # w -> w. Freeze the changes into a snapshot and record a checkpoint.
    SEAL = "SEAL"
    # e -> e. Store the intent durably before the next operation starts. Stands in front of each irreversible RUN.
    BARRIER = "BARRIER"
    # w -> w. While the model thinks, prepare the worlds that a FORK of this one will hand out. w does not change.
    PREFORK = "PREFORK"
    # w -> w, ws. Make many copy-on-write worlds on the snapshot at which w was sealed.
    FORK = "FORK"
    # w, ws -> w, ws. Merge one branch into w, three-way; the base is the snapshot of the FORK in `attrs["fork"]`.
    # In a superstep: merge every branch in turn, and reduce the channels: w, ws, c -> w, ws, c.
    MERGE = "MERGE"
    # () -> (). Ask a person; the run waits. Only in a journal: it runs under a graph break or the catch-all.
    INTERRUPT = "INTERRUPT"
    # () -> (). Wait for a time, by `ramify.sleep`. Only in a journal.
    SLEEP = "SLEEP"
    # w -> w. Go back to an earlier state of the branch. Only in a journal: a person asked for it.
    RESTORE = "RESTORE"
    # () -> (). From here on the code is another: a person accepted that, or the workflow asked for its version by
    # `patched`. Only in a journal.
    CHANGE = "CHANGE"
    # w -> w. A command in a step that was declared reusable. Only in a journal: the plan has its step.
    COMMAND = "COMMAND"
    # ws -> (), w -> (). End worlds. Every path ends each world exactly once.
    RELEASE = "RELEASE"
    # w, c, e -> w, c, e. A graph break: code that could not be read. Its steps run, and seal, under this name.
    BREAK = "BREAK"


STEPS = frozenset({OpKind.RUN, OpKind.CALL_TOOL})
"""The operations that run a step's code. A journal records both as RUN."""


@dataclass(frozen=True, slots=True)
class Site:
    """The place of an operation in the user's code: the range of the call expression.

    Lines count from 1, columns from 0 in UTF-8 bytes, as in `ast` and `co_positions`. `file` is the last two parts of
    the path.
    """

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
    """Return the digest of a file's text, as in `Plan.files`."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def site_file(path: str) -> str:
    """Return the last two parts of a source path, as in `Site.file`, so that a plan is valid on another machine."""
    return "/".join(PurePath(path).parts[-2:])


@dataclass(frozen=True, slots=True)
class Origin:
    """What identifies an operation in the code, besides its position."""

    place: int  # its number among the operations in the code, in reading order
    identity: str  # digest of the call, of how its result is used, and of the calls that lead to it
    first: str  # digest of the workflow's code up to the end of the first statement that leads to it; "": unknown
    last: str  # the same for the last statement
    repeats: bool  # one run may reach it several times


@dataclass(frozen=True, slots=True)
class PlanOp:
    """One operation.

    A call site that several call paths reach is one operation, with the values of the first path. A block on each
    path names it.
    """

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
        """Whether it takes a world, or all branches of a fork, and not only channels or the chain of effects."""
        return any(value.startswith("w") for value in self.inputs)


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """A sequence of operations. `exits` name the blocks that may follow, and the worlds passed to each."""

    id: str
    params: tuple[ValueId, ...]
    ops: tuple[OpId, ...]
    exits: tuple[tuple[str, tuple[ValueId, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the compiler knows of one step."""

    name: str
    effect: Effect
    reuse: bool = False  # declared deterministic: equal state and inputs give an equal result
    code_digest: str = ""
    why: str = ""  # how the effect is known: "declared", "takes a Sandbox", …
    in_fork: bool = False  # irreversible, and declared allowed in a branch that may be dropped
    parameters: tuple[str, ...] = ()  # by the names that a journal knows (`step_parameters`); in older plans: unknown


@dataclass(frozen=True, slots=True)
class StagePlan:
    """An expected stage of model calls, according to the code or else to recorded runs."""

    op: OpId
    calls: int
    prefill: float  # tokens, each call
    output: float  # tokens, the median of a call
    tools_s: float  # seconds between the stage before and this one
    seconds: float  # from the stage's start to its last answer
    share: float  # φ: the part of the deadline that is over when this stage is due; the last may be below 1


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place in the code that the compiler could not read, and why."""

    op: OpId
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class CodePart:
    """A function, class, constant or import of the project that the workflow or a step uses."""

    name: str
    where: str  # file:line
    digest: str
    steps: tuple[str, ...]  # the steps that use it, or that run after a use of it in the workflow


@dataclass(frozen=True)  # no slots: the lookup tables are cached on it
class Plan:
    """What a run performs. Its first graph break is the catch-all: all that has no site runs under this operation."""

    workflow: str  # "path/or/module:name", as `ramify run` takes it
    name: str
    frontend: str  # "decorators" | "langgraph"
    code_digest: str
    steps: tuple[StepPlan, ...]
    ops: tuple[PlanOp, ...]
    blocks: tuple[PlanBlock, ...]
    breaks: tuple[GraphBreak, ...] = ()
    deadline_s: float | None = None
    stages: int | None = None  # the number of stages of model calls in a run, if known
    expected: tuple[StagePlan, ...] = ()  # the stages, if recorded runs show how long they take
    passes: tuple[str, ...] = ()  # the passes that made this plan
    code: tuple[CodePart, ...] = ()  # the code that it was compiled from
    places: int = 0  # the number of operations in the code
    patches: tuple[str, ...] = ()  # the names that the code asks `patched` for
    files: tuple[tuple[str, str], ...] = ()  # the files of its sites, each with the digest of its text
    version: int = PLAN_VERSION

    def op(self, op_id: str) -> PlanOp:
        """Return an operation by its id.

        Raises:
            PlanError: The plan has no such operation.
        """
        try:
            return self._by_id[op_id]
        except KeyError:
            raise PlanError(f"plan of {self.name}: no operation {op_id!r}; it has {', '.join(self._by_id)}") from None

    def step(self, name: str) -> StepPlan | None:
        return self._by_step.get(name)

    @property
    def catch_all(self) -> PlanOp:
        """The operation for all that has no site in the plan. Every plan that was compiled or read has it.

        Raises:
            PlanError: The plan has no graph breaks.
        """
        if not self.breaks:
            raise PlanError(f"plan of {self.name}: `breaks` is empty, without the catch-all: compile it again")
        return self.op(self.breaks[0].op)

    def at(self, kind: OpKind | tuple[OpKind, ...], file: str, line: int, col: int) -> PlanOp | None:
        """Return the innermost operation of that kind whose site contains a position; `file` as by `site_file`.

        The site need not begin there: for a call in a chain over several lines, CPython reports the line of the
        attribute, which is inside the call expression.
        """
        kinds = kind if isinstance(kind, tuple) else (kind,)
        found: PlanOp | None = None
        for op in self._by_file.get(file, ()):
            if op.kind in kinds and op.site and op.site.contains(line, col) and _is_inside(op, found):
                found = op
        return found

    def on_line(self, file: str, line: int) -> list[PlanOp]:
        """Return the operations whose call covers that line, or a part of it; `file` as by `site_file`."""
        ops = self._by_file.get(file, ())
        return [op for op in ops if op.site is not None and op.site.line <= line <= op.site.end_line]

    def after(self, op: PlanOp, kind: OpKind) -> PlanOp | None:
        """Return the operation of that kind that takes a world made by `op`, in its block or a later one.

        If an operation was removed from the plan, its outputs are missing. Then the next operation of the block that
        names a missing value counts.
        """
        todo, seen = list(op.outputs), set(op.outputs)
        while todo:
            value = todo.pop(0)
            for user in self._users.get(value, ()):
                if user.kind is kind:
                    return user
            fresh = [v for v in self._passed_to.get(value, ()) if v not in seen]
            seen.update(fresh)
            todo += fresh
        if any(v in self._users or v in self._passed_to for v in op.outputs):
            return None
        orphan = self._next_orphan(op)
        return orphan if orphan is not None and orphan.kind is kind else None

    def before(self, op: PlanOp, kind: OpKind) -> PlanOp | None:
        """Return the operation of that kind that makes a world taken by `op`, in the same block."""
        makers = (self._makers.get(value) for value in op.inputs)
        return next((maker for maker in makers if maker is not None and maker.kind is kind), None)

    def prefork(self, op_id: str) -> PlanOp | None:
        """Return the PREFORK that is performed while an operation waits for the model."""
        return self._preforks.get(op_id)

    def rest_after(self, stage: int) -> tuple[float, ...] | None:
        """Return the tag `plan_rest`: calls, prefill tokens, output tokens and tool seconds of each later stage.

        None if the stages are not known.
        """
        if stage >= len(self.expected):
            return None
        rest = self.expected[stage + 1 :]
        return tuple(number for s in rest for number in (s.calls, s.prefill, s.output, s.tools_s))

    def release_of(self, fork: PlanOp) -> PlanOp | None:
        """Return the RELEASE of the branches of a FORK."""
        ends = (op for op in self.ops if op.kind is OpKind.RELEASE)
        return next((op for op in ends if op.attrs.get("fork") == fork.id), None)

    def to_json(self) -> str:
        return self._json

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan.

        A plan may have been edited by hand: an operation that was removed from `ops` may still be named in a block,
        and so may its values.

        Raises:
            PlanError: The text is no valid plan. The message names the key.
        """
        from ramify.compiler.plan_json import read_plan

        return read_plan(text)

    @cached_property
    def _json(self) -> str:
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
    def _passed_to(self) -> dict[ValueId, list[ValueId]]:
        """The block parameters that each world is passed to."""
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
