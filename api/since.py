"""What a workflow's code differs in from that of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramify.compiler.plan import PLAN_VERSION, Plan

if TYPE_CHECKING:
    from ramify.compiler.spec import Spec
    from ramify.decorators import Workflow

_MINORS = (11, 12, 13)
"""Of Python 3: plans of format 5 and before have digests that differ between them."""


@dataclass(frozen=True, slots=True)
class Since:
    """`parts` that changed, as `name (file:line)`, and the steps that they may affect; whether the `workflow`'s own
    are among them; the `steps` of other code; and the `digests` of all steps now. `spec`: the code as it was read;
    `unpatched`: the same without patches that the plan does not know, where it is the plan's code then."""

    parts: tuple[str, ...]
    affected: tuple[str, ...]
    workflow: bool
    steps: tuple[str, ...]
    digests: dict[str, str]
    spec: Spec
    unpatched: Spec | None = None

    def told(self) -> str | None:
        """Of a plan that is to be run; None where nothing has changed."""
        if not self.workflow and not self.steps:
            return None
        named = f": {', '.join(self.parts)}" if self.parts else ""
        affected = ", ".join(sorted({*self.affected, *self.steps})) or "none"
        return (
            f"the plan was compiled from other code{named}; steps that may be affected: {affected}. What it does not "
            "foresee runs all the same, under its catch-all; `ramify compile` makes one of the code as it is"
        )


def since(plan: Plan, workflow: Workflow[..., Any]) -> Since:
    """Reads the code, and imports the compiler's front end for it. Raises `CompileError` for code that it refuses."""
    from ramify.compiler.affected import changed_parts
    from ramify.compiler.frontend.decorators import digests_before

    now = _read_as_then(workflow, plan)
    parts = changed_parts(plan.code, now.code) if plan.code else ()
    digests = {step.name: step.code_digest for step in now.steps}
    whole, each = (now.code_digest, digests) if plan.code else digests_before(workflow)
    changed = whole != plan.code_digest
    return Since(
        tuple(f"{part.name} ({part.where})" for part in parts),
        tuple(sorted({step for part in parts for step in part.steps})),
        changed,
        tuple(step.name for step in plan.steps if each.get(step.name, "") != step.code_digest),
        digests,
        now,
        _unpatched(workflow, plan, now) if changed else None,
    )


def _read_as_then(workflow: Workflow[..., Any], plan: Plan) -> Spec:
    """The code, digested as that of the plan was."""
    now = read_code(workflow, plan)
    if plan.version == PLAN_VERSION or now.code_digest == plan.code_digest:
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
    """A workflow as its code stands now, to be compared with that of a plan; of what it runs on nothing is asked,
    which may have changed since."""
    from ramify.compiler.frontend.decorators import read_workflow

    ref = workflow.__ramify_workflow__.ref
    return read_workflow(workflow, ref=ref, version=plan.version, minor=minor, without=without)
