"""The Spec: what a front end read in a workflow, the same for every front end.

A Spec holds the operations on worlds under the control flow that leads to them. The body of a workflow function is a
tuple of `Item`s, nested as Python's statements are; that of a LangGraph graph is a `Machine` of nodes. Code that
touches neither a world nor a model is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ramify.compiler.plan import CodePart, Effect, Site

# Steps


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a node may call, and what is known of its effect."""

    name: str
    effect: Effect
    why: str
    code_digest: str = ""


@dataclass(frozen=True, slots=True)
class FileAccess:
    """What the syntax of a step shows of its world's files: the paths that it may read and write; None: any path."""

    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    always: tuple[tuple[str, str], ...] = ()  # paths whose contents are certain when it has returned, with digests
    commands: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # environment variables that it sets for the commands

    def attrs(self) -> dict[str, object]:
        """Return the attribute `files` of the step's operations. A key that allows anything is omitted."""
        every = (("reads", self.reads), ("writes", self.writes))
        found: dict[str, object] = {name: list(paths) for name, paths in every if paths is not None}
        more = (("always", dict(self.always)), ("commands", list(self.commands)), ("env", list(self.env)))
        return {**found, **{name: value for name, value in more if value}, "by": "syntax"}


@dataclass(frozen=True, slots=True)
class KnownText:
    """A message whose text stands in the code. The text itself is not kept, only where it is."""

    role: str
    module: str
    name: str  # the expression that names it; "" for a literal
    digest: str  # sha256 of the text
    chars: int

    def __str__(self) -> str:
        return self.name or "a literal"


@dataclass(frozen=True, slots=True)
class Prefix:
    """The start of a model call's prompt that is known before the run."""

    model: str
    messages: tuple[KnownText, ...]

    def attrs(self) -> dict[str, object]:
        """Return the attribute `prefix` of the call's operations."""
        said = [{"role": m.role, "module": m.module, "name": m.name, "digest": m.digest} for m in self.messages]
        return {"model": self.model, "messages": said}

    def __str__(self) -> str:
        return f", begins with {' and '.join(map(str, self.messages))}"


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A step, or a node of a graph."""

    name: str
    declared: Effect | None
    takes_sandbox: bool
    reuse: bool = False
    code_digest: str = ""
    in_fork: bool = False
    calls_llm: bool = False  # its code has a model call, which is then no stage of the workflow itself
    where: str = ""  # file:line of its code, if available
    tools: tuple[ToolSpec, ...] = ()  # only of a node that calls tools
    reads: tuple[str, ...] | None = None  # the channels that it may read; None: any
    writes: tuple[str, ...] | None = None  # the channels that it may write; None: any
    reads_by: str = ""  # how the channels are known: "schema" or "syntax"
    files: FileAccess | None = None  # None: anything
    prefix: Prefix | None = None  # of the first model call in its code
    worldless: bool = False  # it certainly leaves its world alone; pure steps have none
    parameters: tuple[str, ...] = ()  # as `step_parameters` writes them; of a node: none


# Items of a function's body


@dataclass(frozen=True, slots=True)
class Following:
    """How calls follow the order of a set: `EQUAL`, `MAYBE_EQUAL`, `PICKED`, or "" if they do not.

    given: They do only if one of these recorded values is a set.
    """

    how: str = ""
    given: tuple[str, ...] = ()


NOT_UNORDERED = Following()


@dataclass(frozen=True, slots=True)
class StepCall:
    """A call of a step, on the current world, or on every branch of the fork `over` levels up (0: the innermost)."""

    step: str
    site: Site | None
    over: int | None = None
    subgraph: bool = False
    caught: bool = False  # after a failure, a retry or the workflow may continue from the state before the call
    together: bool = False  # not awaited at once: other steps may run at the same time
    every: bool = False  # on every branch of its fork
    waits_for: tuple[str, ...] = ()  # LangGraph: starts only when all of these have finished
    source: str = ""  # identifies the call without its position
    unordered: Following = NOT_UNORDERED


@dataclass(frozen=True, slots=True)
class CallLlm:
    """A call of a model."""

    method: str
    site: Site
    n: int | None = None  # the number of answers, if the call states it as a literal
    prefix: Prefix | None = None
    source: str = ""
    unordered: Following = NOT_UNORDERED


@dataclass(frozen=True, slots=True)
class Unseen:
    """A graph break: code that the compiler cannot read."""

    reason: str
    where: str
    site: Site | None = None
    source: str = ""
    unordered: Following = NOT_UNORDERED


@dataclass(frozen=True, slots=True)
class Adopt:
    """Merge one branch of the fork `up` levels up into the world that was forked."""

    site: Site
    up: int
    conflicts_handled: bool = False  # a strategy is given for conflicts, or the caller may catch them
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches of the current world, released on every exit from `body`."""

    site: Site
    body: Body
    source: str = ""


@dataclass(frozen=True, slots=True)
class EnterBranch:
    """Inside `body`, a branch of the fork `up` levels up is the current world."""

    up: int
    body: Body


@dataclass(frozen=True, slots=True)
class Conditional:
    """One of the arms runs."""

    arms: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`test`, then `body`, any number of times; then `orelse` if the test ends it (never, if `endless`)."""

    test: Body
    body: Body
    orelse: Body = ()
    endless: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    """A `try` statement."""

    body: Body
    handlers: tuple[Body, ...]
    orelse: Body = ()
    final: Body = ()


@dataclass(frozen=True, slots=True)
class Inlined:
    """The body of a helper function, in place of its call."""

    function: str
    body: Body
    source: str = ""
    repeats: bool = False  # its caller may call it more than once


class ExitKind(StrEnum):
    """How a statement leaves the statements around it."""

    RETURN = "return"
    RAISE = "raise"
    BREAK = "break"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class Leave:
    """A statement that leaves the statements around it."""

    exit: ExitKind


# Graphs of nodes

END = ""


@dataclass(frozen=True, slots=True)
class MachineNode:
    """A node and what may follow it."""

    run: StepCall
    targets: tuple[str, ...]  # names of nodes, and END
    unseen: Unseen | None = None  # set if its targets could not be read
    routes: bool = False  # it may choose another target, by a Command or a Send

    @property
    def open(self) -> bool:
        """Whether it may lead to nodes that its targets do not name."""
        return self.unseen is not None or self.routes or self.run.subgraph


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes that run in supersteps. Several may run in one superstep, each on a branch."""

    entry: tuple[str, ...]
    nodes: tuple[MachineNode, ...]
    unseen: Unseen | None = None  # set if the entry could not be read
    together: tuple[tuple[str, ...], ...] = ()  # nodes that always run in one superstep


Item: TypeAlias = (
    StepCall | CallLlm | Unseen | Adopt | Fork | EnterBranch | Conditional | Loop | Try | Inlined | Leave
)
Body: TypeAlias = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A workflow as a front end read it."""

    workflow: str  # "path/or/module:name"
    name: str
    frontend: str  # "decorators" | "langgraph"
    code_digest: str
    steps: tuple[StepSpec, ...]
    body: Body | Machine
    deadline_s: float | None = None
    code: tuple[CodePart, ...] = ()  # the code that it was read from
    statements: tuple[tuple[int, str], ...] = ()  # for each statement: items up to its end, digest of the code so far
    patches: tuple[str, ...] = ()  # the names that the code asks `patched` for
    names_passed: frozenset[str] = frozenset()  # names that the code uses as values, and not only to call them
    files: tuple[tuple[str, str], ...] = ()  # the files read, as a `Site` names them, with digests of their text


def parts(item: Item) -> tuple[tuple[str, Body], ...]:
    """Return the bodies inside an item, each with its name."""
    match item:
        case Fork(body=body) | EnterBranch(body=body) | Inlined(body=body):
            return (("", body),)
        case Conditional(arms):
            return tuple((f"arm {i}", arm) for i, arm in enumerate(arms, 1))
        case Loop(test, body, orelse):
            return (("test", test), ("body", body), ("else", orelse))
        case Try(body, handlers, orelse, final):
            caught = tuple((f"except {i}", handler) for i, handler in enumerate(handlers, 1))
            return (("body", body), *caught, ("else", orelse), ("finally", final))
        case _:
            return ()


def walk(body: Body) -> Iterator[Item]:
    """Yield every item of a body, outer items before inner ones."""
    for item in body:
        yield item
        for _, inner in parts(item):
            yield from walk(inner)


# As text


def spec_text(spec: Spec) -> str:
    """Return the Spec as indented text, for people."""
    lines = [f"workflow {spec.name} ({spec.frontend}) {spec.workflow}"]
    for step in spec.steps:
        effect = step.declared or ("takes a Sandbox" if step.takes_sandbox else "not declared")
        known = f"{_channels(step)}{_files(step)}{'' if step.prefix is None else f'; asks{step.prefix}'}"
        lines.append(f"step {step.name}: {effect}{', reuse' if step.reuse else ''}{known}")
        lines += [f"  tool {tool.name}: {tool.effect} ({tool.why})" for tool in step.tools]
    if isinstance(spec.body, Machine):
        lines.append(f"start -> {', '.join(spec.body.entry)}")
        for node in spec.body.nodes:
            lines.append(f"{_line(node.run)} -> {', '.join(target or 'end' for target in node.targets)}")
    else:
        _add_lines(spec.body, "", lines)
    return "\n".join(lines) + "\n"


def _channels(step: StepSpec) -> str:
    found = (("reads", step.reads, step.reads_by), ("writes", step.writes, "syntax"))
    return "".join(
        f", {word} {', '.join(names) or 'nothing'}{f' ({by})' if by else ''}"
        for word, names, by in found
        if names is not None
    )


def _files(step: StepSpec) -> str:
    if step.files is None:
        return ""
    said = [
        f"{word} {'anything' if paths is None else ', '.join(paths) or 'nothing'}"
        for word, paths in (("reads", step.files.reads), ("writes", step.files.writes))
    ]
    said += [f"runs {json.dumps(command)}" for command in step.files.commands]
    said += [f"sets {', '.join(step.files.env)}"] if step.files.env else []
    return f"; files: {', '.join(said)} (syntax)"


def _add_lines(body: Body, indent: str, lines: list[str]) -> None:
    for item in body:
        lines.append(indent + _line(item))
        for name, inner in parts(item):
            if inner and name:
                lines.append(f"{indent}  {name}:")
            _add_lines(inner, indent + ("    " if name else "  "), lines)


def _line(item: Item) -> str:
    match item:
        case StepCall(step, site, over):
            on = "" if over is None else f" on the branches of fork {over} out"
            return f"run {step}{on}{' (subgraph)' if item.subgraph else ''}{_at(site)}"
        case CallLlm(method, site):
            return f"call llm.{method}{_at(site)}{item.prefix or ''}"
        case Unseen(reason, where):
            return f"unseen: {reason} ({where})"
        case Adopt(site, up):
            return f"adopt into the world of fork {up} out{_at(site)}"
        case Fork(site):
            return f"fork{_at(site)}"
        case EnterBranch(up):
            return f"enter a branch of fork {up} out"
        case Conditional():
            return "choice"
        case Loop(endless=endless):
            return "loop without end" if endless else "loop"
        case Try():
            return "try"
        case Inlined(function):
            return f"inlined {function}"
        case Leave(exit):
            return str(exit)


def _at(site: Site | None) -> str:
    return f" @ {site}" if site else ""
