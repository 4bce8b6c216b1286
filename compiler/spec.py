"""What a front end saw in a workflow: the operations on worlds, under the control flow that reaches them.

Structured, and the same for every front end: `Item`s nest as Python's statements do, and a `Machine` holds what is a
graph already. A body that touches no world and no model is not in a Spec.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ramify.compiler.plan import CodePart, Effect, Site


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that a node may call, and what is known of its effect."""

    name: str
    effect: Effect
    why: str
    code_digest: str = ""


@dataclass(frozen=True, slots=True)
class Files:
    """What the syntax of a step shows of its world's files: paths that it may read, and may write; None: any."""

    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    always: tuple[tuple[str, str], ...] = ()  # path and digest of contents that stand there whenever it has ended
    commands: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # variables that it sets for them

    def attrs(self) -> dict[str, object]:
        """As operations carry it; any is left out."""
        every = (("reads", self.reads), ("writes", self.writes))
        found: dict[str, object] = {name: list(paths) for name, paths in every if paths is not None}
        more = (("always", dict(self.always)), ("commands", list(self.commands)), ("env", list(self.env)))
        return {**found, **{name: value for name, value in more if value}, "by": "syntax"}


@dataclass(frozen=True, slots=True)
class KnownText:
    """A message whose text stands in the code, and where: the text itself is left there."""

    role: str
    module: str
    name: str  # as the code says it; "" for a literal
    digest: str  # sha256 of the text
    chars: int

    def __str__(self) -> str:
        return self.name or "a literal"


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a model call begins with, known before it runs."""

    model: str
    messages: tuple[KnownText, ...]

    def attrs(self) -> dict[str, object]:
        """As operations carry it."""
        said = [{"role": m.role, "module": m.module, "name": m.name, "digest": m.digest} for m in self.messages]
        return {"model": self.model, "messages": said}

    def __str__(self) -> str:
        return f", begins with {' and '.join(map(str, self.messages))}"


@dataclass(frozen=True, slots=True)
class StepSpec:
    name: str
    declared: Effect | None
    takes_sandbox: bool
    reuse: bool = False
    code_digest: str = ""
    in_fork: bool = False
    calls_llm: bool = False  # a model call was seen in its code: its stages are not those of the workflow
    where: str = ""  # file:line of its code, where that is to be had
    tools: tuple[ToolSpec, ...] = ()  # a node that calls tools has some
    reads: tuple[str, ...] | None = None  # the channels that it may read, and may write; None: any
    writes: tuple[str, ...] | None = None
    reads_by: str = ""  # how the channels are known: "schema", or "syntax"
    files: Files | None = None  # None: anything
    prefix: Prefix | None = None  # of the first model call in its code


@dataclass(frozen=True, slots=True)
class Run:
    """A step, on the current world, or on every branch of the fork `over` levels outwards (0: the innermost)."""

    step: str
    site: Site | None
    over: int | None = None
    subgraph: bool = False
    caught: bool = False  # a retry or the workflow may go on after it failed, from the state in which it began
    together: bool = False  # not awaited at once: other steps may run in the meantime
    every: bool = False  # on every branch of its fork
    waits_for: tuple[str, ...] = ()  # LangGraph: starts only when all of these have finished
    source: str = ""  # the call as the code has it, without its place


@dataclass(frozen=True, slots=True)
class CallLlm:
    method: str
    site: Site
    n: int | None = None  # answers asked for, where the call says it as a number
    prefix: Prefix | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A graph break: what the compiler cannot see into."""

    reason: str
    where: str
    site: Site | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Adopt:
    """Merge one branch of the fork `up` levels outwards into the world that was forked."""

    site: Site
    up: int
    settled: bool = False  # a strategy is given for conflicts, or who adopts may catch them
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches of the current world, released on every way out of `body`."""

    site: Site
    body: Body
    source: str = ""


@dataclass(frozen=True, slots=True)
class Enter:
    """Inside `body` a branch of the fork `up` levels outwards is the current world."""

    up: int
    body: Body


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the arms."""

    arms: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`test`, then `body` and again, any number of times; `orelse` when the test ends it (`endless`: never)."""

    test: Body
    body: Body
    orelse: Body = ()
    endless: bool = False


@dataclass(frozen=True, slots=True)
class Try:
    body: Body
    handlers: tuple[Body, ...]
    orelse: Body = ()
    final: Body = ()


@dataclass(frozen=True, slots=True)
class Inlined:
    """The body of a helper function, at its call."""

    function: str
    body: Body
    source: str = ""
    again: bool = False  # whoever calls it may do so more than once


class Way(StrEnum):
    """How a statement leaves the ones around it."""

    RETURN = "return"
    RAISE = "raise"
    BREAK = "break"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True)
class Leave:
    way: Way


END = ""


@dataclass(frozen=True, slots=True)
class Node:
    run: Run
    targets: tuple[str, ...]  # names of nodes, and END
    unseen: Unseen | None = None  # its targets could not be read
    routes: bool = False  # it may send elsewhere, by a Command or a Send of its own

    @property
    def open(self) -> bool:
        """Whether it may lead to nodes that its targets do not name."""
        return self.unseen is not None or self.routes or self.run.subgraph


@dataclass(frozen=True, slots=True)
class Machine:
    """Nodes that hand control to each other in supersteps. Several may run in one superstep, each in a branch."""

    entry: tuple[str, ...]
    nodes: tuple[Node, ...]
    unseen: Unseen | None = None  # the entry could not be read
    together: tuple[tuple[str, ...], ...] = ()  # nodes that always run in one superstep


Item: TypeAlias = Run | CallLlm | Unseen | Adopt | Fork | Enter | Choice | Loop | Try | Inlined | Leave
Body: TypeAlias = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Spec:
    workflow: str
    name: str
    frontend: str
    code_digest: str
    steps: tuple[StepSpec, ...]
    body: Body | Machine
    deadline_s: float | None = None
    code: tuple[CodePart, ...] = ()  # what it was read from
    # of each statement of the workflow: how many items there are up to its end, and the digest of the code till then
    statements: tuple[tuple[int, str], ...] = ()
    patches: tuple[str, ...] = ()  # the names that the code asks `patched` for
    handed: frozenset[str] = frozenset()  # names that the code uses otherwise than to call them
    files: tuple[tuple[str, str], ...] = ()  # those that were read, as a `Site` names them, and digests of their text


def parts(item: Item) -> tuple[tuple[str, Body], ...]:
    """The bodies inside an item, each with its name."""
    match item:
        case Fork(body=body) | Enter(body=body) | Inlined(body=body):
            return (("", body),)
        case Choice(arms):
            return tuple((f"arm {i}", arm) for i, arm in enumerate(arms, 1))
        case Loop(test, body, orelse):
            return (("test", test), ("body", body), ("else", orelse))
        case Try(body, handlers, orelse, final):
            caught = tuple((f"except {i}", handler) for i, handler in enumerate(handlers, 1))
            return (("body", body), *caught, ("else", orelse), ("finally", final))
        case _:
            return ()


def walk(body: Body) -> Iterator[Item]:
    """Every item of a body, outer before inner."""
    for item in body:
        yield item
        for _, inner in parts(item):
            yield from walk(inner)


def spec_text(spec: Spec) -> str:
    """The Spec for people, indented."""
    lines = [f"workflow {spec.name} ({spec.frontend}) {spec.workflow}"]
    for step in spec.steps:
        effect = step.declared or ("takes a Sandbox" if step.takes_sandbox else "not declared")
        known = f"{_channels(step)}{_files(step)}{_asks(step)}"
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


def _asks(step: StepSpec) -> str:
    return "" if step.prefix is None else f"; asks{step.prefix}"


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
        case Run(step, site, over):
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
        case Enter(up):
            return f"enter a branch of fork {up} out"
        case Loop(endless=endless):
            return "loop without end" if endless else "loop"
        case Inlined(function):
            return f"inlined {function}"
        case Leave(way):
            return str(way)
        case _:
            return type(item).__name__.lower()


def _at(site: Site | None) -> str:
    return f" @ {site}" if site else ""
