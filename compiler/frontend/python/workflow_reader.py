"""Front end for `@workflow` and `@step`: reads the function's syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ramify.compiler.frontend.python.calls import Calls
from ramify.compiler.frontend.python.canonical_text import statements_of
from ramify.compiler.frontend.python.code_parts import CodeIndex, Key, codes_of, digest_of
from ramify.compiler.frontend.python.file_access import files_of
from ramify.compiler.frontend.python.modules import dependencies, digest, used_names
from ramify.compiler.frontend.python.name_resolution import is_llm, is_wrapped, workflow_info
from ramify.compiler.frontend.python.names import Place
from ramify.compiler.frontend.python.prompt_prefixes import first_prefix
from ramify.compiler.frontend.python.sources import Definition, Function, Sources
from ramify.compiler.frontend.python.step_checks import refuse_nondeterministic, refuse_unstorable, refuse_workflows
from ramify.compiler.frontend.python.world_access import refuse_held_worlds
from ramify.compiler.plan import PLAN_VERSION, StepInfo
from ramify.compiler.spec import Spec, StepSpec


def follow(codes: CodeIndex, workflow: Function, helpers: Mapping[Definition, Function]) -> str:
    """The digest of a workflow and of all that it uses but its steps. Its parts are marked with what may follow."""
    root = codes.part(workflow)
    named = codes.closure([root], into_steps=False)
    apart = [each for each in helpers.values() if not _is_within(each, codes, named)]  # only an object leads there
    starts = [root, *map(codes.part, apart)]
    keys = codes.closure(starts, into_steps=False)
    uses = {key: codes.closure([key], into_steps=False) for key in keys}
    steps = {key: _steps(codes, uses[key]) for key in keys}
    for part in keys:
        found = set(steps[part]) if part in starts else set[str]()
        for key in keys:
            found |= _after(codes, key, part, uses, steps)
        codes.used_by.setdefault(part, set()).update(found)
    return codes.digest(starts, into_steps=False)


def statement_digests(codes: CodeIndex, workflow: Function) -> tuple[str, ...]:
    """Of each statement of a workflow: the digest of the code up to its end, with all that it uses but steps."""
    if isinstance(workflow.node, ast.Lambda):
        return ()
    root = codes.part(workflow)
    written = codes.written([root], into_steps=False)
    head, *statements = statements_of(workflow.node)
    written.write(root, head)
    found = []
    for pieces in statements:
        written.write(root, pieces)
        found.append(written.digest()[:32])
    return tuple(found)


def _after(
    codes: CodeIndex, key: Key, part: Key, uses: Mapping[Key, set[Key]], steps: Mapping[Key, set[str]]
) -> set[str]:
    """The steps that may come after `key` uses `part`. Where a function of its own does, that one says what follows
    inside it."""
    named = codes.uses(key)
    there = [(use, to) for use, to in named if part in uses.get(to, ())]
    if not there:
        return set()
    first = min(use.first for use, _ in there)
    loops = frozenset[Place]().union(*(use.loops for use, _ in there))
    (use, to), *others = [each for each in there if each[0].first == first]
    skipped = None if others or to == part or use.loops else use
    found = set[str]()
    for use, to in named:
        if use is not skipped and (use.last >= first or not loops.isdisjoint(use.loops)):
            found |= {codes.steps[to]} if to in codes.steps else steps[to]
    return found


def _steps(codes: CodeIndex, parts: Iterable[Key]) -> set[str]:
    return {codes.steps[to] for part in parts for _, to in codes.uses(part) if to in codes.steps}


def _is_within(helper: Function, codes: CodeIndex, keys: Iterable[Key]) -> bool:
    """Whether its text is that of a part, or inside it."""
    first, last = helper.node.lineno, helper.node.end_lineno or helper.node.lineno
    return any(
        part.module.path == helper.path and node.lineno <= first and last <= (node.end_lineno or 0)
        for part in (codes.parts[key] for key in keys)
        for node in part.nodes
        if isinstance(node, ast.stmt | ast.Lambda)
    )


def read_workflow(
    function: Callable[..., Any],
    *,
    ref: str,
    deadline_s: float | None = None,
    name: str | None = None,
    version: int = PLAN_VERSION,
    minor: int | None = None,
    without: frozenset[str] = frozenset(),
) -> Spec:
    """`version`, and `minor` of Python: of the plan with which its code is to be compared. `without`: the names of
    the patches to read as not there. Raises SourceError or WorkflowError."""
    sources, info = Sources(version=version, minor=minor, without=without), workflow_info(function)
    workflow = sources.function(function)
    calls = Calls(workflow, sources, caught=is_wrapped(function))
    body, counts = calls.read()
    steps = tuple(_step(step, of, calls.codes[step.name], sources) for step, of in calls.steps.values())
    code_digest = follow(codes_of(sources), workflow, calls.helpers)
    prefixes = statement_digests(codes_of(sources), workflow) if version > 5 and not calls.caught else ()
    return Spec(
        workflow=ref,
        name=name or (info.name if info is not None else workflow.name),
        frontend="decorators",
        code_digest=code_digest,
        steps=steps,
        body=body,
        deadline_s=deadline_s if deadline_s is not None or info is None else info.deadline_s,
        code=codes_of(sources).told(),
        statements=tuple(zip(counts, prefixes, strict=True)) if prefixes else (),
        patches=codes_of(sources).patches(),
        handed=codes_of(sources).handed(),
        files=sources.texts,
    )


def format_3_digests(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The digests of a workflow and its steps as plans of format 3 have them: of its own text and that of helpers
    with steps in them, and of what its steps use of their own modules."""
    sources = Sources(version=3)
    workflow = sources.function(function)
    calls = Calls(workflow, sources, caught=is_wrapped(function))
    calls.read()
    steps = {info.name: digest(dependencies(of, sources)) for info, of in calls.steps.values()}
    return digest({workflow.node, *calls.helpers}), steps


def _step(info: StepInfo, function: Function, code: Callable[..., Any], sources: Sources) -> StepSpec:
    nodes = dependencies(function, sources)
    refuse_workflows(info.name, function, nodes)
    refuse_held_worlds(f"step {info.name}", function, nodes)
    refuse_unstorable(info.name, function, code)
    if info.reuse:
        refuse_nondeterministic(info.name, function, sources)
    calls_llm = any(is_llm(function.outer.get(name)) for node in nodes for name in used_names(node))
    return StepSpec(
        info.name,
        info.effect,
        info.takes_sandbox,
        info.reuse,
        digest_of([function], sources, [info.name]),
        info.in_fork,
        calls_llm,
        function.where(),
        files=files_of(function, nodes, sources),
        prefix=first_prefix(function, sources.rebound(function.path)) if calls_llm else None,
    )
