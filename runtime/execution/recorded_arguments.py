"""The digest by which a run's journal knows a call of a step, also if the step's parameters have changed since.

A call is known by its arguments and by the names of its parameters. Those are the names that the run's plan states
(`StepPlan.parameters`), whatever the code calls them now. So a call is found again after each renaming, and a call
that is new in the renamed code is recorded in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import Any

from ramify.compiler.plan import PlanOp
from ramify.runtime.codec.digests import digest_in_journal
from ramify.runtime.codec.encoded_value import Encoded
from ramify.runtime.execution.run import RunScope
from ramify.runtime.execution.step_call import StepDef, names_by_position

_MOST_ADDED_PARAMETERS = 5  # how many parameters with defaults are tried as parameters that were added later


def recorded_digest(
    scope: RunScope,
    step: StepDef,
    op: PlanOp,
    bound: Mapping[str, Any],
    defaults: Collection[str],
    arguments: Encoded,
) -> str:
    """Return the digest of the arguments by which the journal knows the call.

    Parameters that were added to the step later are left out if they have their defaults. The names of now are tried
    before those of the plan: a call may have been recorded by them.
    """
    journal, path = scope.run.journal, scope.branch.path
    recorded = digest_in_journal(journal, bound, arguments)
    tried = [(bound, defaults, recorded)]
    if names := _renamed(scope, step):
        before = {names.get(name, name): value for name, value in bound.items()}
        recorded = digest_in_journal(journal, before, Encoded(before))
        tried.append((before, {names.get(name, name) for name in defaults}, recorded))
    if not journal.has_digests:
        return recorded
    for given, having_defaults, whole in tried:
        if journal.has_place(path, op.id, whole[:16]):
            return whole
        for less in _without_added(given, having_defaults):
            digest = digest_in_journal(journal, less, Encoded(less))
            if journal.has_place(path, op.id, digest[:16]):
                return digest
    return recorded


def _renamed(scope: RunScope, step: StepDef) -> Mapping[str, str]:
    """Return the names in the plan of the parameters that have other names now; none if it is uncertain which is
    which, since a name of the plan is that of another parameter now."""
    planned = scope.run.plan.step(step.name)
    then = () if planned is None else planned.parameters
    if not then:
        return {}
    by_position, names = names_by_position(step.function, step.sandbox_parameter)
    if by_position[: len(then)] == then or len(by_position) < len(then):
        return {}
    names_of_then = {now: old for now, old in zip(by_position, then, strict=False) if now != old}
    return {} if names.intersection(names_of_then.values()) else names_of_then


def _without_added(bound: Mapping[str, Any], defaults: Collection[str]) -> Iterator[dict[str, Any]]:
    newest = sorted(defaults, key=list(bound).index, reverse=True)[:_MOST_ADDED_PARAMETERS]
    for count in range(1, len(newest) + 1):
        for names in combinations(newest, count):
            yield {name: value for name, value in bound.items() if name not in names}
