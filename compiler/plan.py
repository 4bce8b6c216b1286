"""The plan: the compiler's only output, and all that the runtime knows of the compiler.

Frozen, versioned, JSON. The runtime performs a plan's operations and names them in its journal; nothing else of
`ramify.compiler` is imported to run one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

PLAN_VERSION = 1

OpId = NewType("OpId", str)
ValueId = NewType("ValueId", str)


class PlanError(Exception):
    """A plan that cannot be read or run: wrong version, wrong shape, not for this workflow."""


class Effect(StrEnum):
    """What a step may do."""

    PURE = "pure"  # touches no world
    REVERTIBLE = "revertible"  # changes only its world
    IRREVERSIBLE = "irreversible"  # reaches outside
    UNKNOWN = "unknown"  # unannotated: runs as written, never speculated, never reused


class OpKind(StrEnum):
    """The operations of the System State Graph. Worlds (w) are linear values: used once, except through FORK."""

    # () -> w. Import the workspace as the base snapshot; the root world stands on it.
    ENTER = "ENTER"
    # w -> w, or ws -> ws for every branch of a fork, or () -> () for a pure step. Run a step's code.
    RUN = "RUN"
    # () -> (). A stage of model calls; touches no world.
    CALL_LLM = "CALL_LLM"
    # w -> w. Freeze what changed into a snapshot and record a checkpoint.
    SEAL = "SEAL"
    # w -> w, ws. Many copy-on-write worlds on the snapshot where w was sealed.
    FORK = "FORK"
    # w, ws -> w, ws. Three-way merge of one branch into w; the base is the snapshot of the FORK in `attrs["fork"]`.
    MERGE = "MERGE"
    # ws -> (), w -> (). End worlds: every path ends each world exactly once.
    RELEASE = "RELEASE"
    # w -> w. A graph break: what runs here was not seen ahead. Its steps run and seal under this operation's name.
    BREAK = "BREAK"


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


@dataclass(frozen=True, slots=True)
class PlanOp:
    id: OpId
    kind: OpKind
    inputs: tuple[ValueId, ...] = ()
    outputs: tuple[ValueId, ...] = ()
    site: Site | None = None  # decorators: the call; LangGraph: None
    step: str | None = None  # RUN: the step's name (LangGraph: the node's name)
    attrs: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place that the compiler could not see through, and what it means."""

    op: OpId
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
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
    version: int = PLAN_VERSION

    def to_json(self) -> str:
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Plan:
        json.loads(text)
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What a decorated function says of itself, for the compiler to read as `function.__ramify_step__`."""

    name: str  # the function's qualified name
    module: str
    effect: Effect | None  # None: not declared
    takes_sandbox: bool
    reuse: bool = False


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """The same for a workflow, as `function.__ramify_workflow__`."""

    name: str
    ref: str  # how to find it again: "path/to/file.py:name" or "module:name"
    deadline_s: float | None = None
