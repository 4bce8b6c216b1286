"""`ramify explain`: compare a run's plan with what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import click

from ramify.cli.completion import run_names
from ramify.cli.console import CommandHome, headed, pass_home, say_json, say_pages
from ramify.cli.errors import is_ours
from ramify.cli.trust import need_own_home, trust_option
from ramify.compiler.pass_effects import with_effect, without_effect
from ramify.compiler.plan import CodePart, OpId, Plan
from ramify.inspect.home import Home, require_run
from ramify.inspect.plan_outcomes import KeptWarm, OpOutcome, kept_warm, stage_error, story
from ramify.inspect.text import count, fitted, seconds, table
from ramify.runtime.estimates.cost_model import Regret, regrets
from ramify.runtime.records import DECORATORS, LLMRecord, OpRecord, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.estimates.recorded_runs import RecordedEstimates
    from ramify.runtime.store.reader import Reader


@dataclass(frozen=True, slots=True)
class Changed:
    """What changed in the code since the plan was compiled. `steps`: those whose code changed."""

    known: bool
    why: str  # if it is not known
    workflow: bool = False
    steps: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    parts: tuple[CodePart, ...] = ()  # functions, classes and constants that changed
    # operations that read what the changed steps write
    readers: Mapping[OpId, tuple[str, ...]] = field(default_factory=dict)


@click.command("explain")
@click.argument("run", default="@", shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--app",
    "target",
    metavar="FILE.py:NAME",
    help="For a LangGraph thread: the result of `ramify.compile`, or a function that returns it.  [default: the only "
    "app of that name in the file that compiled it]",
)
@trust_option
@pass_home
def explain_command(home: CommandHome, run: str, as_json: bool, target: str | None, trust_home: bool) -> None:
    """Compare the plan of RUN (the newest) with what happened.

    For each operation: how often it ran, how often its result was reused, its expected and actual duration, and its
    snapshots. Then the worlds that were started ahead for forks, and the code that has changed since.

    \b
    Example: ramify explain @
    """
    record, rows, llm, others = home.read(lambda store: _read(store, run), whole=False)
    if target is not None and record.frontend == DECORATORS:
        raise click.UsageError(f"--app is for LangGraph threads: run {record.id} belongs to a workflow")
    plan = Plan.from_json(record.plan_json)
    stories = [story(op, plan, record, rows, llm, others) for op in plan.ops]
    choices = regrets(rows)
    changed = what_changed(record, plan, target, None if trust_home else home)
    error = stage_error(plan, llm)
    if as_json:
        idle = without_effect(plan, record.deadline_s)
        said = {"run": record.id, "passes": list(plan.passes), "without_effect": idle, "stage_error": error}
        chosen = [{**asdict(each), "regret_s": each.regret_s} for each in choices]
        operations = [asdict(s) for s in stories]
        may_conflict = {op.id: op.attrs["conflicts"] for op in plan.ops if "conflicts" in op.attrs}
        say_json(
            {
                **said,
                "conflicts": may_conflict,
                "operations": operations,
                "choices": chosen,
                "changed": asdict(changed),
                "warm": [asdict(one) for one in kept_warm(plan, rows)],
            }
        )
        return
    warm = kept_warm(plan, rows)
    say_pages(map(home.typed.complete, _told(record, plan, stories, error, choices, changed, warm)))


def _told(
    record: RunRecord,
    plan: Plan,
    stories: Sequence[OpOutcome],
    error: float | None,
    choices: Sequence[Regret],
    changed: Changed,
    warm: Sequence[KeptWarm],
) -> Iterator[str]:
    yield click.style(f"run {record.id} of {record.name}: {record.status.value}", bold=True)
    yield f"passes: {', '.join(with_effect(plan, record.deadline_s)) or 'none'}"
    for name, why in without_effect(plan, record.deadline_s).items():
        yield f"  {name}: no effect: {why}"
    yield from headed(lines(stories))
    skipped = sum(one.done == 0 for one in stories)
    snapshots = sum(one.snapshots for one in stories)
    yield f"{count(len(stories), 'operation')}, {skipped} of them skipped; {count(snapshots, 'snapshot')} taken"
    if error is not None:
        yield f"stages of model calls: predicted and actual seconds differ by {error:.0%} in the median"
    yield from conflict_lines(plan)
    yield from warm_lines(warm)
    yield from choice_lines(choices)
    yield from change_lines(changed, record.frontend)


async def _read(store: Reader, text: str) -> tuple[RunRecord, list[OpRecord], list[LLMRecord], RecordedEstimates]:
    from ramify.runtime.estimates.recorded_runs import observed

    run = await require_run(store, text)
    others = await observed(store, run.workflow, but=run.id)
    return run, await store.ops(run.id), await store.llm(run.id), others


_WORKFLOW_DIGESTS, _GRAPH_DIGESTS = 9, 5
"""The first plan formats whose digests of workflows and of graphs are computed as today."""


def what_changed(run: RunRecord, plan: Plan, target: str | None = None, home: Home | None = None) -> Changed:
    """Compile the workflow as its code is now, and compare digests. That executes the code, which the run's row names
    without a `target`: so the `home` must be the user's own, unless it is None."""
    try:
        if home is not None and target is None:
            need_own_home(home, "Comparing a run with its code executes the code that its rows name")
        now = _plan_now(run, target)
    except Exception as error:
        if not is_ours(error):
            raise
        return Changed(known=False, why=str(error))
    return compared(plan, now, run.frontend)


def compared(plan: Plan, now: Plan, frontend: str) -> Changed:
    """The differences between the code of a plan and the code that `now` was compiled from."""
    from ramify.compiler.change_impact import affected_operations, changed_parts

    of_now = _WORKFLOW_DIGESTS if frontend == DECORATORS else _GRAPH_DIGESTS
    if plan.version < of_now or (frontend == DECORATORS and not plan.code):
        then = "; `ramify resume` compares as far as that version allows" if frontend == DECORATORS else ""
        return Changed(known=False, why=f"the plan was made by an earlier version{then}")
    digests = {step.name: step.code_digest for step in now.steps}
    steps = tuple(step.name for step in plan.steps if digests.get(step.name) != step.code_digest)
    ops = tuple(op.id for op in plan.ops if op.step in steps)
    parts = changed_parts(plan.code, now.code) if plan.code else ()
    return Changed(True, "", now.code_digest != plan.code_digest, steps, ops, parts, affected_operations(plan, steps))


def _plan_now(run: RunRecord, target: str | None) -> Plan:
    if run.frontend == DECORATORS:
        from ramify.cli.commands.compile import compiled

        return compiled(run.workflow, workspace=run.workspace).plan
    from ramify.cli.commands.thread_resume import find_app

    with find_app(run, target, "explain") as app:
        return app.session.plan


def choice_lines(choices: Sequence[Regret]) -> list[str]:
    """What the cost model chose, how accurate it was, and what the alternative would have saved."""
    if not choices:
        return []
    lost = sum(each.regret_s for each in choices)
    off = [abs(each.predicted_s - each.took_s) for each in choices if each.predicted_s is not None]
    said = f"choices by cost: {count(len(choices), 'choice')}, {seconds(lost)} regretted"
    if off:
        said += f", predictions off by {seconds(median(off))} in the median"
    worst = sorted((each for each in choices if each.regret_s > 0), key=lambda each: -each.regret_s)[:3]
    return [said] + [
        f"  {each.what} (row {each.seq}): {each.chose} took {seconds(each.took_s)}, "
        f"instead {seconds(each.instead_s)}: {seconds(each.regret_s)} regretted"
        for each in worst
    ]


def change_lines(changed: Changed, frontend: str = DECORATORS) -> list[str]:
    if not changed.known:
        return [f"it is unknown whether the code has changed: {changed.why}"]
    if not changed.workflow and not changed.steps:
        return ["the workflow, its steps and what they use are unchanged since the plan was compiled"]
    found = [
        f"changed since: {part.name} ({part.where}); steps that may be affected: {', '.join(part.steps) or 'none'}"
        for part in changed.parts
    ]
    if changed.workflow and frontend == DECORATORS:
        found.append("the workflow itself has changed since: this run cannot be resumed with the code as it is")
    elif changed.workflow:
        found.append("the graph has changed since: its thread continues with the graph as it is")
    if changed.steps:
        found.append(f"changed since: {', '.join(changed.steps)}; affected: {', '.join(changed.ops)}")
    if changed.readers:
        each = (f"{op} ({', '.join(what)})" for op, what in changed.readers.items())
        found.append(f"later operations that read what they may write: {'; '.join(each)}")
    return found


def conflict_lines(plan: Plan) -> list[str]:
    """Merges in which both sides may write the same files."""
    named = ((op, op.attrs.get("conflicts", ())) for op in plan.ops)
    return [
        f"{op.id}{f' @ {op.site}' if op.site else ''} may conflict: {', '.join(paths)}"
        for op, paths in named
        if paths
    ]


def warm_lines(warm: Sequence[KeptWarm]) -> list[str]:
    """What was kept ready for forks of the run's snapshots, and until when."""
    return [
        f"kept ready after {one.op} ({count(one.times, 'time')}): {one.kept}"
        + (f"; until {', '.join(one.until)}" if one.until else "")
        for one in warm
    ]


def lines(stories: Sequence[OpOutcome]) -> list[str]:
    header = ("PLAN OP", "KIND", "STEP", "AT", "DONE", "REUSED", "FAILED", "PREDICTED", "TOOK", "SNAPSHOTS")
    rows = [
        (
            one.op,
            one.kind,
            fitted(one.step or "", 30),
            one.site or "",
            str(one.done) if one.done else "skipped",
            str(one.reused or ""),
            str(one.failed or ""),
            seconds(one.predicted_s),
            seconds(one.took_s),
            str(one.snapshots or ""),
        )
        for one in stories
    ]
    return table(header, rows, right=header[4:])
