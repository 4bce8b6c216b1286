"""The digest by which a run's journal knows a call of a step, also if the step's parameters have changed since.

A call is known by its arguments and by the names of its parameters. Those are the names that the run's plan states
(`StepPlan.parameters`), whatever the code calls them now. So a call is found again after each renaming, and a call
that is new in the renamed code is recorded in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ramify.compiler.plan import PlanOp
from ramify.runtime.codec.digests import digest_in_journal
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.effects.argument_names import without_added
from ramify.runtime.execution.run import RunScope


def recorded_digest(
    scope: RunScope,
    op: PlanOp,
    bound: Mapping[str, Any],
    defaults: Collection[str],
    arguments: Encoded,
    names: Mapping[str, str],
) -> str:
    """Return the digest of the arguments by which the journal knows the call. `names`: as `names_in_plan` returns.

    Parameters that were added to the step later are left out if they have their defaults. The names of now are tried
    after those of the plan: a call may have been recorded by them under an earlier plan of the run.
    """
    journal, path = scope.run.journal, scope.branch.path
    tried = [(bound, defaults, digest_in_journal(journal, bound, arguments))]
    if names:
        then = {names.get(name, name): value for name, value in bound.items()}
        digest = digest_in_journal(journal, then, Encoded(then))
        tried.insert(0, (then, {names.get(name, name) for name in defaults}, digest))
    recorded = tried[0][2]
    if not journal.has_digests:
        return recorded
    for given, having_defaults, whole in tried:
        if journal.has_place(path, op.id, whole[:16]):
            return whole
        for less in without_added(given, having_defaults):
            digest = digest_in_journal(journal, less, Encoded(less))
            if journal.has_place(path, op.id, digest[:16]):
                return digest
    return recorded
