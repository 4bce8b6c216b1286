"""Front end for `@workflow` and `@step`: reads the function's syntax tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ramify.compiler.frontend.calls import Calls
from ramify.compiler.frontend.code import codes_of, digest_of
from ramify.compiler.frontend.digest import dependencies, digest, used_names
from ramify.compiler.frontend.files import files_of
from ramify.compiler.frontend.following import digests_through, follow
from ramify.compiler.frontend.held_worlds import refuse_worlds
from ramify.compiler.frontend.misplaced import refuse_workflows
from ramify.compiler.frontend.prefixes import first_prefix
from ramify.compiler.frontend.resolve import is_llm, is_wrapped, workflow_info
from ramify.compiler.frontend.sources import Function, Sources
from ramify.compiler.frontend.unkept import refuse_unkept
from ramify.compiler.frontend.varying import refuse_varying
from ramify.compiler.plan import PLAN_VERSION, StepInfo
from ramify.compiler.spec import Spec, StepSpec


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
    prefixes = digests_through(codes_of(sources), workflow) if version > 5 and not calls.caught else ()
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


def digests_before(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
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
    refuse_worlds(f"step {info.name}", function, nodes)
    refuse_unkept(info.name, function, code)
    if info.reuse:
        refuse_varying(info.name, function, sources)
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
