"""What happens to a run's recorded results when its code has changed.

`matching` decides it from the stored plan, the plan of the code as it is now, and what the journal holds.
`--show-changes` shows this decision, and `--accept-changes` follows it. What only the run itself can find out, such
as the arguments of a call, is told as a case: "refused if …", "runs again if …".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ramify.compiler.plan import CHANGED, HARMLESS, Effect, OpId, OpKind, Plan, PlanOp
from ramify.compiler.plan_matching import certain_pairs, is_behind_change, origin_of, placed_operations


@dataclass(frozen=True, slots=True)
class RecordedResults:
    """What a journal holds of one operation."""

    steps: Mapping[str, int] = field(default_factory=dict)  # by step name: the number of results or intents
    others: int = 0  # results of model calls, answers and forks
    repeated: bool = False  # two results have equal arguments and are on one branch
    under: Mapping[str, int] = field(default_factory=dict)  # of a fork: the steps on its branches


@dataclass(frozen=True, slots=True)
class OperationLine:
    """One operation, as a line of text for people."""

    what: str
    where: str
    results: int
    why: str = ""

    def __str__(self) -> str:
        many = f" ({self.results} results)" if self.results > 1 else ""
        return f"{self.what} at {self.where}{many}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True, slots=True)
class Matching:
    """How the operations of a stored plan and of the current one correspond."""

    pairs: tuple[tuple[PlanOp, PlanOp], ...]  # certainly the same: (stored, current)
    kept: tuple[OperationLine, ...]  # recorded, and the results are used; `why`: in which case they are not
    again: tuple[OperationLine, ...]  # recorded, and run again, which is safe
    aside: tuple[OperationLine, ...]  # recorded, and no longer called; `why`: in which case the run is refused
    added: tuple[OperationLine, ...]  # not in the stored plan
    refused: tuple[OperationLine, ...]  # recorded, and it is not certain whether it is the same
    catch_all_goes_on: bool = True  # nothing is recorded under the catch-all, or nothing of it may be reached again


def matching(stored: Plan, now: Plan, recorded: Mapping[str, RecordedResults], *, accepted: bool = True) -> Matching:
    """Match two plans of one workflow, and decide what happens to the recorded results.

    Args:
        stored: The plan of the run.
        now: The plan of the code as it is now.
        recorded: What the run's journal holds, by operation of the stored plan.
        accepted: The run goes on with changed code: a person accepts the change, or accepted one before.
    """
    pairs, uncertain = [], dict[OpId, str]()
    for one, other in certain_pairs(stored, now):
        results = recorded.get(one.id)
        if results is not None and results.repeated and is_behind_change(one, other):
            uncertain[one.id] = "it was called several times"
        else:
            pairs.append((one, other))
    same = {one.id: other for one, other in pairs}
    cases = _Cases(stored, now, accepted)
    added = [op for op in placed_operations(now) if op.id not in {other.id for other in same.values()}]
    lines = _Lines(stored, now, added, uncertain)
    for op in stored.ops:
        results = recorded.get(op.id)
        if results is None or (op.origin is None and op.id != stored.catch_all.id):
            continue
        line = OperationLine(
            _what(op, results), str(op.site or "no known place"), sum(results.steps.values()) + results.others
        )
        if op.id in same:
            lines.kept.append(replace(line, why=cases.of_kept(op, same[op.id], results)))
        else:
            lines.place(op, results, line, cases)
    known = {op.id for op in stored.ops}
    lost = [results for id, results in recorded.items() if id not in known and (results.steps or results.under)]
    lines.aside += [
        OperationLine(_named(gone.steps), "code that is gone", sum(gone.steps.values()), cases.of_aside(gone))
        for gone in lost
    ]
    return Matching(
        tuple(pairs),
        tuple(lines.kept),
        tuple(lines.again),
        tuple(lines.aside),
        tuple(OperationLine(op.step or op.kind.lower(), str(op.site), 0) for op in added),
        tuple(lines.refused),
        catch_all_goes_on=stored.catch_all.id not in recorded,
    )


@dataclass(slots=True)
class _Lines:
    """The operations with recorded results, by what happens to these."""

    stored: Plan
    now: Plan
    added: list[PlanOp]  # operations of `now` that are not certainly one of `stored`
    uncertain: Mapping[OpId, str]
    kept: list[OperationLine] = field(default_factory=list)
    again: list[OperationLine] = field(default_factory=list)
    aside: list[OperationLine] = field(default_factory=list)
    refused: list[OperationLine] = field(default_factory=list)

    def place(self, op: PlanOp, results: RecordedResults, line: OperationLine, cases: _Cases) -> None:
        """Place an operation that is not certainly one of the current plan."""
        steps = {*results.steps, *results.under}
        risky = [name for name in steps if _effect(name, self.stored, self.now) not in HARMLESS]
        if not self._may_be_called(op, steps):
            others = self._new_risky_steps() if op.step is not None and self.now.step(op.step) is None else []
            if risky and others:
                self.refused.append(replace(line, why=_renamed(op.step, others)))
            else:
                self.aside.append(replace(line, why=cases.of_aside(results)))
        elif risky:
            self.refused.append(replace(line, why=self.uncertain.get(op.id) or _why(op, risky)))
        else:
            self.again.append(line)

    def _may_be_called(self, op: PlanOp, steps: set[str]) -> bool:
        if op.kind is OpKind.BREAK:  # what runs here is not known ahead
            return True
        if any(other.kind is OpKind.BREAK for other in self.added):  # unseen code may call any step
            return True
        if op.kind is OpKind.FORK:
            return any(other.step in steps for other in placed_operations(self.now))
        if op.step is not None and any(other.step == op.step for other in self.added):
            return True
        return op.origin is not None and any(origin_of(one).identity == op.origin.identity for one in self.added)

    def _new_risky_steps(self) -> list[str]:
        fresh = {s.name for s in self.now.steps if self.stored.step(s.name) is None and s.effect not in HARMLESS}
        return sorted(fresh & {op.step for op in self.added if op.step is not None})


@dataclass(frozen=True, slots=True)
class _Cases:
    """In which cases recorded results are not used after all. Only the run itself finds out whether one applies."""

    stored: Plan
    now: Plan
    accepted: bool

    def of_kept(self, op: PlanOp, now_op: PlanOp, results: RecordedResults) -> str:
        moved = CHANGED in op.attrs or is_behind_change(op, now_op)
        effects = {_effect_now(name, self.stored, self.now) for name in results.steps}
        cases = []
        if moved:
            other = "arguments" if effects <= {Effect.PURE} else "arguments, or its world another state"
            cases.append(f"the changed code gives it other {other}")
        if moved and Effect.IRREVERSIBLE in effects:
            cases.append("another call gets its arguments first")
        if any(_is_other_code(name, self.stored, self.now) for name in results.steps):
            cases.append("its parameters have changed, apart from new ones with defaults")
        refused = Effect.IRREVERSIBLE in effects or (
            Effect.UNKNOWN in effects and self.accepted and op.kind is OpKind.RUN and not origin_of(now_op).repeats
        )
        return _told("refused" if refused else "runs again", cases)

    def of_aside(self, results: RecordedResults) -> str:
        steps = {*results.steps, *results.under}
        irreversible = any(_effect_now(name, self.stored, self.now) is Effect.IRREVERSIBLE for name in steps)
        return _told("refused", ["another call of the step gets its arguments"] if irreversible else [])


def _told(what: str, cases: list[str]) -> str:
    return f"{what} if {', or if '.join(cases)}" if cases else ""


def _effect_now(step: str, stored: Plan, now: Plan) -> Effect:
    found = now.step(step) or stored.step(step)
    return Effect.UNKNOWN if found is None else found.effect


def _is_other_code(step: str, stored: Plan, now: Plan) -> bool:
    before, after = stored.step(step), now.step(step)
    return before is None or after is None or before.code_digest != after.code_digest


def _what(op: PlanOp, results: RecordedResults) -> str:
    if op.step is not None:
        return op.step
    named = _named({**results.steps, **results.under})
    return f"{op.kind.lower()}{f' of {named}' if named else ''}"


def _named(steps: Mapping[str, int]) -> str:
    return ", ".join(sorted(steps))


def _why(op: PlanOp, risky: list[str]) -> str:
    steps = ", ".join(sorted(risky))
    if op.kind is OpKind.BREAK:
        return f"{steps} ran in code that the compiler did not see"
    if op.kind is OpKind.FORK:
        return f"{steps} ran on its branches, and it is not certain whether they are the same"
    if op.origin is not None and op.origin.repeats:
        return "it may be called several times, and the calls cannot be told apart"
    return "the code has a call like it, and it is not certain whether it is the same"


def _renamed(step: str | None, others: list[str]) -> str:
    return (
        f"no step has this name now, and {', '.join(others)} is new: it may be the same step, renamed. "
        f"If it is, keep the old name: `@step(name={step!r})`"
    )


def _effect(step: str, stored: Plan, now: Plan) -> Effect:
    known = [found.effect for plan in (stored, now) if (found := plan.step(step)) is not None]
    risky = [effect for effect in known if effect not in HARMLESS]
    return risky[0] if risky else known[0] if known else Effect.UNKNOWN
