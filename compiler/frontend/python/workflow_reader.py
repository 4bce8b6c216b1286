"""Front end for `@workflow` and `@step`: reads a workflow function into a Spec. Start at `read_workflow`.

The Spec also states which steps a change of the workflow's own code may affect: the steps that come after a use of
the changed code, in the text or in a loop around it. Different arms of a conditional are not told apart.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ramify.compiler.declarations import StepInfo
from ramify.compiler.frontend.python.calls import CallReader
from ramify.compiler.frontend.python.canonical_text import statements_of
from ramify.compiler.frontend.python.code_parts import CodeIndex, Key
from ramify.compiler.frontend.python.file_access import files_of
from ramify.compiler.frontend.python.modules import dependencies, digest, used_names
from ramify.compiler.frontend.python.name_resolution import is_llm, is_wrapped, workflow_info
from ramify.compiler.frontend.python.names import Position, Use, names_passed, nodes_in
from ramify.compiler.frontend.python.part_digests import digest_of, digest_of_parts, writer_for
from ramify.compiler.frontend.python.prompt_prefixes import first_prefix
from ramify.compiler.frontend.python.sources import (
    Definition,
    Function,
    Sources,
    may_ask_for_patches,
    patch_names_in,
    patched_aliases,
)
from ramify.compiler.frontend.python.step_checks import (
    refuse_nondeterministic,
    refuse_unstorable,
    refuse_workflow_calls,
)
from ramify.compiler.frontend.python.world_access import may_use_a_world, refuse_held_worlds
from ramify.compiler.plan import PLAN_VERSION, Effect
from ramify.compiler.spec import Spec, StepSpec
from ramify.compiler.step_parameters import parameters_of


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
    """Read a function under `@workflow`.

    Args:
        function: The workflow.
        ref: How `ramify run` finds it: "path/to/file.py:name" or "module:name".
        deadline_s: The deadline in seconds; by default that of the decorator.
        name: The workflow's name; by default that of the decorator.
        version: Read the code as for plans of this format, to compare it with a stored plan.
        minor: The minor version of Python that made the stored plan.
        without: Names of patches to read as if they did not exist.

    Raises:
        SourceError: The source text of a function is not available.
        WorkflowError: The workflow is written in a way that cannot work.
    """
    sources, info = Sources(version=version, minor=minor, without=without), workflow_info(function)
    workflow = sources.function(function)
    sources.analysis(CodeIndex).start_from(workflow)
    calls = CallReader(workflow, sources, caught=is_wrapped(function))
    body, counts = calls.read()
    index = sources.analysis(CodeIndex)
    if sources.since_format_9:
        index.returned.find(_starts(index, workflow, calls.helpers))
    steps = tuple(_step(step, of, calls.codes[step.name], sources) for step, of in calls.steps.values())
    code_digest = workflow_digest(index, workflow, calls.helpers)
    prefixes = statement_digests(index, workflow) if version > 5 and not calls.caught else ()
    return Spec(
        workflow=ref,
        name=name or (info.name if info is not None else workflow.name),
        frontend="decorators",
        code_digest=code_digest,
        steps=steps,
        body=body,
        deadline_s=deadline_s if deadline_s is not None or info is None else info.deadline_s,
        code=index.for_plan(),
        statements=tuple(zip(counts, prefixes, strict=True)) if prefixes else (),
        patches=_patches(index, sources),
        names_passed=_names_passed(index),
        files=sources.texts,
    )


def format_3_digests(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the digests of a workflow and of its steps by name, as plans of format 3 have them.

    The workflow's digest covers its own text and that of helpers with steps in them. A step's digest covers what it
    uses of its own module.
    """
    sources = Sources(version=3)
    workflow = sources.function(function)
    calls = CallReader(workflow, sources, caught=is_wrapped(function))
    calls.read()
    steps = {info.name: digest(dependencies(of, sources)) for info, of in calls.steps.values()}
    return digest({workflow.node, *calls.helpers}), steps


def _step(info: StepInfo, function: Function, code: Callable[..., Any], sources: Sources) -> StepSpec:
    nodes = dependencies(function, sources)
    refuse_workflow_calls(info.name, function, nodes)
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
        prefix=first_prefix(function, sources.rebound_globals(function.path)) if calls_llm else None,
        worldless=not (info.takes_sandbox or info.effect is Effect.PURE or may_use_a_world(function, nodes, sources)),
        parameters=_parameters(code, info.sandbox),
    )


def _parameters(code: Callable[..., Any], sandbox: str | None) -> tuple[str, ...]:
    try:
        return parameters_of(code, sandbox)
    except (NameError, TypeError, ValueError):  # an object that replaces the signature may raise them
        return ()


# Which steps a change of the workflow's own code may affect


def workflow_digest(index: CodeIndex, workflow: Function, helpers: Mapping[Definition, Function]) -> str:
    """Return the digest of a workflow and all that it uses except its steps.

    In the index, each part that it uses is marked with the steps that a change of the part may affect.
    """
    starts = _starts(index, workflow, helpers)
    keys = index.closure(starts, into_steps=False)
    for part, steps in _affected_steps(index, starts, keys).items():
        index.used_by.setdefault(part, set()).update(steps)
    return digest_of_parts(index, starts, into_steps=False)


def _starts(index: CodeIndex, workflow: Function, helpers: Mapping[Definition, Function]) -> list[Key]:
    """Return the workflow, and the helpers that only an object leads to: no name does."""
    root = index.part(workflow)
    named = index.closure([root], into_steps=False)
    return [root, *(index.part(each) for each in helpers.values() if not _is_inside(each, index, named))]


def _names_passed(index: CodeIndex) -> frozenset[str]:
    """Return the names that the parts use as values: what they name may be called by code that is not read."""
    return frozenset(name for part in index.parts.values() for node in part.nodes for name in names_passed(node))


def _patches(index: CodeIndex, sources: Sources) -> tuple[str, ...]:
    """Return the names of the patches that the parts ask for by `patched(name)`."""
    found, aliases = set[str](), dict[str, frozenset[str]]()
    for part in index.parts.values():
        path = part.module.path
        for node in filter(may_ask_for_patches, part.nodes):
            if path not in aliases:
                aliases[path] = patched_aliases(nodes_in(sources.tree(path)))
            found.update(patch_names_in(node, aliases[path]))
    return tuple(sorted(found))


def statement_digests(index: CodeIndex, workflow: Function) -> tuple[str, ...]:
    """Return, for each statement of a workflow, the digest of the code up to its end, without the code of steps."""
    if isinstance(workflow.node, ast.Lambda):
        return ()
    root = index.part(workflow)
    writer = writer_for(index, [root], into_steps=False)
    head, *statements = statements_of(workflow.node)
    writer.write(root, head)
    writer.write_implied(root)
    found = []
    for pieces in statements:
        writer.write(root, pieces)
        found.append(writer.digest()[:32])
    return tuple(found)


def _affected_steps(index: CodeIndex, starts: Iterable[Key], keys: set[Key]) -> dict[Key, set[str]]:
    """Return, for each part of a workflow's code, the steps that a change of the part may affect."""
    steps = _steps_below(index, keys)
    closures: dict[Key, set[Key]] = {}
    found = {key: set(steps.get(key, ())) if key in starts else set[str]() for key in keys}
    for key in steps:  # other parts lead to no step, so none comes after their uses
        named = index.uses(key)
        leading: dict[Key, list[int]] = {}  # for each part, the uses through which the key uses it
        for number, (_, to) in enumerate(named):
            if to in keys and to not in closures:
                closures[to] = index.closure([to], into_steps=False)
            for part in closures.get(to, ()):
                leading.setdefault(part, []).append(number)
        targets, known = {to for _, to in named}, dict[tuple[tuple[int, ...], Key | None], set[str]]()
        for part, numbers in leading.items():
            alike = tuple(numbers), part if part in targets else None
            if alike not in known:
                known[alike] = _steps_after(index, named, [named[each] for each in numbers], part, steps)
            found[part] |= known[alike]
    return found


def _steps_after(
    index: CodeIndex,
    named: Iterable[tuple[Use, Key]],
    using: list[tuple[Use, Key]],
    part: Key,
    steps: Mapping[Key, set[str]],
) -> set[str]:
    """Return the steps that may run after code uses `part`, by one of the uses `using`. `named`: all its uses.

    If it uses the part through one function that it calls, the steps inside that function are left to the function.
    """
    first = min(use.first for use, _ in using)
    loops = frozenset[Position]().union(*(use.loops for use, _ in using))
    (use, to), *others = [each for each in using if each[0].first == first]
    skipped = None if others or to == part or use.loops else use
    found = set[str]()
    for use, to in named:
        if use is not skipped and (use.last >= first or not loops.isdisjoint(use.loops)):
            found |= {index.steps[to]} if to in index.steps else steps.get(to, set())
    return found


def _steps_below(index: CodeIndex, keys: set[Key]) -> dict[Key, set[str]]:
    """Return the steps that each of these parts uses, directly or not. Parts that use none are left out."""
    users: dict[Key, list[Key]] = {}
    direct: dict[Key, set[str]] = {}
    for key in keys:
        for to in index.used(key):
            if to in index.steps:
                direct.setdefault(key, set()).add(index.steps[to])
            if to in keys:
                users.setdefault(to, []).append(key)
    leading, todo = set[Key](), list(direct)
    while todo:
        key = todo.pop()
        if key not in leading:
            leading.add(key)
            todo += users.get(key, ())
    below = {key: index.closure([key], into_steps=False) & direct.keys() for key in leading}
    return {key: set[str]().union(*(direct[part] for part in parts)) for key, parts in below.items()}


def _is_inside(helper: Function, index: CodeIndex, keys: Iterable[Key]) -> bool:
    """Return whether the text of a helper is that of a part, or inside it."""
    first, last = helper.node.lineno, helper.node.end_lineno or helper.node.lineno
    return any(
        part.module.path == helper.path and node.lineno <= first and last <= (node.end_lineno or 0)
        for part in (index.parts[key] for key in keys)
        for node in part.nodes
        if isinstance(node, ast.stmt | ast.Lambda)
    )
