"""Resuming a run whose code has changed: what changed, which plan fits the code now, and what happens to its journal.

`since` compares the code with a plan. `standing` chooses the plan to resume with. `preview` says what a resume would
do.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ramify.compiler.plan import CHANGED, PLACES_VERSION, PLAN_VERSION, Plan, site_file, text_digest
from ramify.recorded_runs import ids_of, recorded_results
from ramify.runtime.errors import WorkflowChanged
from ramify.runtime.execution.driver import Adopt, Adoption, was_changed
from ramify.runtime.records import (
    EffectRecord,
    LLMRecord,
    OpRecord,
    RunRecord,
)

if TYPE_CHECKING:
    from ramify.compiler.result_matching import Matching, OperationLine
    from ramify.compiler.spec import Spec
    from ramify.decorators import Workflow

_MINORS = (11, 12, 13)
"""Of Python 3: plans of format 5 and before have digests that differ between them."""


@dataclass(frozen=True, slots=True)
class CodeDiff:
    """What differs between the code of a plan and the code as it is now.

    `parts` that changed, as `name (file:line)`, and the steps that they may affect; whether the `workflow` itself is
    among them; the `steps` whose code changed; the `digests` of all steps now. `spec`: the code as it was read.
    `unpatched`: the same without the patches that are new to the plan, if that is the plan's code.
    """

    parts: tuple[str, ...]
    affected: tuple[str, ...]
    workflow: bool
    steps: tuple[str, ...]
    digests: dict[str, str]
    spec: Spec
    unpatched: Spec | None = None

    def told(self) -> str | None:
        """A warning for a plan that is about to run; None if nothing has changed."""
        if not self.workflow and not self.steps:
            return None
        named = f": {', '.join(self.parts)}" if self.parts else ""
        affected = ", ".join(sorted({*self.affected, *self.steps})) or "none"
        return (
            f"the plan was compiled from other code{named}; steps that may be affected: {affected}. Calls that "
            "it does not contain run all the same, under its catch-all; `ramify compile` makes a new plan"
        )


def since(plan: Plan, workflow: Workflow[..., Any]) -> CodeDiff:
    """Compare the code with a plan. Imports the compiler's front end. Raises `CompileError` for code that it
    refuses.
    """
    from ramify.compiler.change_impact import changed_parts
    from ramify.compiler.frontend.python.workflow_reader import format_3_digests

    now = _read_as_then(workflow, plan)
    parts = changed_parts(plan.code, now.code) if plan.code else ()
    digests = {step.name: step.code_digest for step in now.steps}
    whole, each = (now.code_digest, digests) if plan.code else format_3_digests(workflow)
    changed = whole != plan.code_digest
    return CodeDiff(
        tuple(f"{part.name} ({part.where})" for part in parts),
        tuple(sorted({step for part in parts for step in part.steps})),
        changed,
        tuple(step.name for step in plan.steps if each.get(step.name, "") != step.code_digest),
        digests,
        now,
        _unpatched(workflow, plan, now) if changed else None,
    )


def _read_as_then(workflow: Workflow[..., Any], plan: Plan) -> Spec:
    """The code, with digests computed as those of the plan were."""
    now = read_code(workflow, plan)
    if plan.version >= PLACES_VERSION or now.code_digest == plan.code_digest:
        return now
    others = (read_code(workflow, plan, minor=minor) for minor in _MINORS)
    return next((one for one in others if one.code_digest == plan.code_digest), now)


def _unpatched(workflow: Workflow[..., Any], plan: Plan, now: Spec) -> Spec | None:
    fresh = frozenset(now.patches) - frozenset(plan.patches)
    if not fresh:
        return None
    before = read_code(workflow, plan, without=fresh)
    return before if before.code_digest == plan.code_digest else None


def read_code(
    workflow: Workflow[..., Any],
    plan: Plan,
    *,
    minor: int | None = None,
    without: frozenset[str] = frozenset(),
) -> Spec:
    """A workflow as its code is now, to be compared with that of a plan.

    Durations and other measurements are left out: they may have changed since.
    """
    info = workflow.__ramify_workflow__
    return workflow.plans().spec(
        workflow, ref=info.ref, deadline_s=info.deadline_s, version=plan.version, minor=minor, without=without
    )


_MANY = 12  # lines that an error names


@dataclass(frozen=True, slots=True)
class Changes:
    """What happens to a run's recorded results under the code as it is now. Each line: a step, where it stood, and
    how many results.

    A line that says "refused if": in that case the run stops at that call, and does nothing twice. "runs again if":
    in that case the step, which may safely run again, does so. A line without a case stays as it is.
    `refused`: results that cannot be assigned to a call with certainty, so the run cannot continue.
    """

    parts: tuple[str, ...]  # functions, classes and constants that changed
    kept: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = (
            ("changed", self.parts),
            ("stays", self.kept),
            ("runs again", self.again),
            ("left aside", self.aside),
            ("new", self.added),
            ("uncertain", self.refused),
        )
        return "\n".join(f"{name}: {line}" for name, lines in said for line in lines) or "nothing has changed"


@dataclass(frozen=True, slots=True)
class PlanForCode:
    """A run's plan for the code as it is now."""

    plan: Plan
    digests: dict[str, str]  # of the steps
    found: CodeDiff
    adopt: Adopt | None = None  # set if the plan is not the run's own
    is_stored: bool = False  # as the run's row has it: nothing has moved since
    amended: Plan | None = None  # what the run's row is to have, if its steps have other parameters now


def standing(record: RunRecord, workflow: Workflow[..., Any], *, accept: bool = False) -> PlanForCode:
    """The plan to resume a run with. Raises `WorkflowChanged` if the code has changed and nobody accepted that."""
    from ramify.compiler.plan_matching import with_current_parameters

    plan = Plan.from_json(record.plan_json)
    found = since(plan, workflow)
    if not found.workflow:
        amended = with_current_parameters(plan, found.spec)
        now = _where_it_stands(amended, found, record)
        differs = None if amended is plan else amended
        return PlanForCode(now, found.digests, found, is_stored=now is plan, amended=differs)
    if found.unpatched is not None:
        return _patched(record, plan, workflow, found)
    if not accept:
        raise changed(record, plan, found)
    now = _compiled_as_then(workflow, plan)

    def adopt(ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]) -> Adoption:
        matched, taken = matched_with(record, plan, now, ops, llm, effects)
        if matched.refused:
            raise _not_certain(record, found, matched)
        return _adoption(plan, now, matched, taken)

    return PlanForCode(now, {step.name: step.code_digest for step in now.steps}, found, adopt)


def preview(
    record: RunRecord,
    workflow: Workflow[..., Any],
    ops: Sequence[OpRecord],
    llm: Sequence[LLMRecord],
    effects: Sequence[EffectRecord],
) -> Changes:
    """What a resume with the plan of `standing(..., accept=True)` does. Changes nothing. Raises what that raises."""
    plan = Plan.from_json(record.plan_json)
    stands = standing(record, workflow, accept=True)
    found, now = stands.found, stands.plan
    if found.unpatched is not None:
        return Changes(found.parts)
    if not found.workflow:
        accepted = was_changed(plan, ops)
        if plan.version < PLACES_VERSION or not (found.steps or accepted):
            return Changes(())
        # the plan of now has the ids and places of the stored one, and its steps may have other code
        now = replace(now, steps=tuple(replace(s, code_digest=found.digests.get(s.name, "")) for s in now.steps))
        matched, _ = matched_with(record, plan, now, ops, llm, effects, accepted=accepted)
        kept, aside = (tuple(str(line) for line in lines if line.why) for lines in (matched.kept, matched.aside))
        return Changes((), kept, (), aside)
    matched, _ = matched_with(record, plan, now, ops, llm, effects)
    lines = (matched.kept, matched.again, matched.aside, matched.added, matched.refused)
    return Changes(found.parts, *(tuple(map(str, each)) for each in lines))


def placed(plan: Plan, workflow: Workflow[..., Any]) -> tuple[Plan, CodeDiff]:
    """A plan that was made earlier, for a run that starts now: its operations at their lines in the code as it is."""
    from ramify.compiler.plan_matching import adapted_to_new_code, certain_pairs, current_sites, relocated

    found = since(plan, workflow)
    sites = None if found.workflow else current_sites(plan, found.spec)
    if sites is not None:
        return relocated(plan, sites), found
    now = _compiled(workflow)
    return adapted_to_new_code(plan, certain_pairs(plan, now), now), found


def is_from_current_files(plan: Plan) -> bool:
    """Whether the files of a plan's operations are unchanged, so that no code has to be read."""
    loaded = dict[str, set[str]]()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str):
            loaded.setdefault(site_file(path), set()).add(path)
    for file, digest in plan.files:
        paths = list(loaded.get(file, ()))
        if len(paths) != 1 or text_digest("".join(linecache.getlines(paths[0]))) != digest:
            return False
    return bool(plan.files) or not any(op.site for op in plan.ops)


def changed(record: RunRecord, plan: Plan, found: CodeDiff) -> WorkflowChanged:
    parts = found.parts or _steps_that_differ(plan, found.spec)
    named = f": {', '.join(parts)}" if parts else ""
    may_be = ", ".join(found.affected) or ("none" if plan.code else "unknown")
    return WorkflowChanged(
        f"{record.workflow} has changed since run {record.id} started{named}. Its journal no longer fits; "
        f"steps that may be affected: {may_be}. {_advice(record, plan)}",
        parts=found.parts,
        steps=found.affected,
    )


def _steps_that_differ(plan: Plan, now: Spec) -> tuple[str, ...]:
    """Return what to tell of a change that no part of the code shows: steps of other names, made at run time."""
    before, after = {step.name for step in plan.steps}, {step.name: step.where for step in now.steps}
    gone = [f"step {name} was removed" for name in sorted(before - after.keys())]
    return (*gone, *(f"step {name} is new ({after[name]})" for name in sorted(after.keys() - before)))


def _advice(record: RunRecord, plan: Plan) -> str:
    if plan.version < PLACES_VERSION:
        return (
            "An earlier version of Ramify started the run and recorded too little to continue it with changed code. "
            "Restore the code, or start a new run with `ramify run`. If only the Python version changed, to one that "
            f"this Ramify does not know: `ramify resume {record.id}` under the old one"
        )
    return (
        f"Restore the code; or see with `ramify resume {record.id} --show-changes` which recorded results stay and "
        "which steps run again, and continue with `--accept-changes`; or start a new run with `ramify run`"
    )


def _where_it_stands(plan: Plan, found: CodeDiff, record: RunRecord) -> Plan:
    from ramify.compiler.plan_matching import current_sites, relocated

    sites = current_sites(plan, found.spec)
    if sites is None:
        raise WorkflowChanged(
            f"run {record.id} was started by another version of Ramify, which read {record.workflow} differently, "
            "and lines of the code have moved since: its calls cannot be identified. Restore the file as it was when "
            "the run started, or start a new run with `ramify run`"
        )
    return relocated(plan, sites)


def _compiled(workflow: Workflow[..., Any]) -> Plan:
    from ramify.compiler.pipeline import compile_workflow

    info = workflow.__ramify_workflow__
    return compile_workflow(workflow, ref=info.ref, deadline_s=info.deadline_s).plan


def _compiled_as_then(workflow: Workflow[..., Any], plan: Plan) -> Plan:
    """The plan of the code as it is now. Its digests can be compared with those of an earlier plan, if that has
    enough of them."""
    from ramify.compiler.pipeline import compile_workflow

    info = workflow.__ramify_workflow__
    version = plan.version if plan.version >= PLACES_VERSION else PLAN_VERSION
    found = compile_workflow(workflow, ref=info.ref, deadline_s=info.deadline_s, version=version).plan
    return replace(found, version=version)


def _patched(record: RunRecord, plan: Plan, workflow: Workflow[..., Any], found: CodeDiff) -> PlanForCode:
    """The code differs only by blocks under `patched`: everything outside them is unchanged."""
    from ramify.compiler.plan_matching import current_sites, with_recorded_parameters, with_stored_ids

    assert found.unpatched is not None
    before = current_sites(plan, found.unpatched)
    if before is None:
        raise changed(record, plan, found)
    old = {(op.kind, before[op.id]): op.id for op in plan.ops if op.id in before}
    now = with_recorded_parameters(_compiled_as_then(workflow, plan), plan)
    same = {op.id: old[op.kind, op.site] for op in now.ops if op.site is not None and (op.kind, op.site) in old}
    fresh = ", ".join(sorted(set(now.patches) - set(plan.patches)))

    def adopt(ops: Sequence[OpRecord], llm: Sequence[LLMRecord], effects: Sequence[EffectRecord]) -> Adoption:
        taken = {op.id for op in plan.ops} | ids_of(ops, llm, effects)
        made = with_stored_ids(now, same, taken, plan.catch_all.id, how="patched")
        return Adoption(made, f"patched: {fresh}", {"patches": fresh})

    return PlanForCode(now, {step.name: step.code_digest for step in now.steps}, found, adopt)


def matched_with(
    record: RunRecord,
    plan: Plan,
    now: Plan,
    ops: Sequence[OpRecord],
    llm: Sequence[LLMRecord],
    effects: Sequence[EffectRecord],
    *,
    accepted: bool = True,
) -> tuple[Matching, set[str]]:
    """The calls to which recorded results certainly belong; and the ids of operations that are in use."""
    from ramify.compiler.result_matching import matching

    there = recorded_results(ops, llm, effects)
    if plan.version < PLACES_VERSION and there:
        raise WorkflowChanged(f"{record.workflow} has changed since run {record.id} started. {_advice(record, plan)}")
    return matching(plan, now, there, accepted=accepted), {op.id for op in plan.ops} | ids_of(ops, llm, effects)


def _adoption(plan: Plan, now: Plan, matched: Matching, taken: Iterable[str]) -> Adoption:
    from ramify.compiler.plan_matching import is_behind_change, with_recorded_parameters, with_stored_ids

    same = {new.id: old.id for old, new in matched.pairs}
    changed_ids = {new.id for old, new in matched.pairs if CHANGED in old.attrs or is_behind_change(old, new)}
    catch_all = plan.catch_all.id if matched.catch_all_goes_on else None
    now = with_recorded_parameters(now, plan)
    made = with_stored_ids(now, same, taken, catch_all, changed=changed_ids)
    counts = (("kept", matched.kept), ("again", matched.again), ("aside", matched.aside), ("added", matched.added))
    attrs = {name: "; ".join(map(str, lines)) for name, lines in counts}
    again = f"; again: {_short(matched.again)}" if matched.again else ""
    return Adoption(made, f"changed code accepted: {len(matched.kept)} places stay{again}", attrs)


def _short(lines: Sequence[OperationLine]) -> str:
    more = f" and {len(lines) - _MANY} more" if len(lines) > _MANY else ""
    return "; ".join(map(str, lines[:_MANY])) + more


def _not_certain(record: RunRecord, found: CodeDiff, matched: Matching) -> WorkflowChanged:
    return WorkflowChanged(
        f"{record.workflow} has changed since run {record.id} started, and it is uncertain to which calls of the "
        f"changed code these recorded results belong: {_short(matched.refused)}. Their steps may have effects "
        "outside, so they are neither reused nor run again. Restore that part of the code, keep it for runs in "
        "flight under `if not ramify.patched(...)`, or start a new run with `ramify run`",
        parts=found.parts,
        steps=tuple(line.what for line in matched.refused),
    )
