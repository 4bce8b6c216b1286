"""`ramify compile`: show the plan of a workflow, and the compiler's other outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.console import pass_home, say, say_value
from ramify.cli.path_options import NamedPath
from ramify.cli.targets import load, load_graph, workflow_info
from ramify.inspect.home import Home

if TYPE_CHECKING:
    from ramify.compiler.pipeline import Compilation
    from ramify.compiler.plan import StagePlan
    from ramify.runtime.estimates.recorded_runs import RecordedEstimates
    from ramify.runtime.store.reader import Reader

FORMS = {
    "spec": "spec.txt",
    "ir": "ssg.txt",
    "plan": "plan.json",
    "dot": "ssg.dot",
    "mermaid": "ssg.mmd",
    "schema": "plan.schema.json",
}


def _forms(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    unknown = [part for part in chosen if part not in FORMS]
    if unknown:
        shown = ", ".join(map(repr, unknown))
        raise click.BadParameter(f"{shown}: choose from {', '.join(FORMS)}", context, parameter)
    return chosen


@click.command("compile")
@click.argument("target")
@click.option(
    "--emit",
    callback=_forms,
    default="plan",
    show_default=True,
    metavar="spec,ir,plan,dot,mermaid,schema",
    help="What to show; several separated by commas.",
)
@click.option("--without", multiple=True, metavar="PASS", help="Omit this pass; a wrong name lists them. Repeatable.")
@click.option("--unmeasured", is_flag=True, help="Ignore the durations of recorded runs.")
@click.option(
    "--history", metavar="URL", help="The URL of a gateway: use the stages that it expects if none are recorded here."
)
@click.option("--api-key", envvar="RAMIFY_API_KEY", help="For --history.  [default: $RAMIFY_API_KEY]")
@click.option(
    "-o",
    "--output",
    type=NamedPath(path_type=Path),
    help="Write to this file; with several --emit values, to this folder.",
)
@pass_home
def compile_command(
    home: Home,
    target: str,
    emit: tuple[str, ...],
    without: tuple[str, ...],
    unmeasured: bool,
    history: str | None,
    api_key: str | None,
    output: Path | None,
) -> None:
    """Compile TARGET (FILE.py:NAME or MODULE:NAME) and show the result.

    plan is the input of `ramify run --plan`; ir is the System State Graph; spec is what was read from the source; dot
    and mermaid draw the graph; schema is the JSON schema of plans. If the workflow has run before, the plan uses the
    durations of its last runs. --history takes expected stages from a gateway that has served the workflow elsewhere.

    \b
    Example: ramify compile agent.py:repair --emit ir,plan
    """
    seen = None if unmeasured or not home.has_runs else home.read(lambda store: _learned(store, target))
    learnt = () if history is None else _history(target, history, api_key)
    compilation = compiled(target, without, seen, learnt=learnt)
    texts = {form: _text(compilation, form) for form in emit}
    if output is not None and len(texts) > 1:
        output.mkdir(parents=True, exist_ok=True)
        for form, text in texts.items():
            (output / FORMS[form]).write_text(text)
    elif output is not None:
        output.write_text(next(iter(texts.values())))
    else:
        for form, text in texts.items():
            if len(texts) > 1:
                say(f"# {form}", style="bold")
            say_value(text.rstrip("\n"))


async def _learned(store: Reader, target: str) -> RecordedEstimates:
    from ramify.runtime.estimates.recorded_runs import learned

    info = workflow_info(load(target))
    return await learned(store, target if info is None else info.ref)


def _history(target: str, gateway: str, key: str | None) -> tuple[StagePlan, ...]:
    """The stages that the gateway has learnt, by the name that the workflow's runs have."""
    from ramify.runtime.estimates.gateway_history import gateway_stages

    info = workflow_info(load(target))
    name = target.rpartition(":")[2] if info is None else info.name
    try:
        found = gateway_stages(name, gateway, key=key)
    except ValueError as error:
        raise click.UsageError(f"--history: {error}") from error
    if not found:
        say(f"the gateway knows nothing about {name!r} yet: compiled without its history", err=True)
    return found


def compiled(
    target: str,
    without: tuple[str, ...] = (),
    seen: RecordedEstimates | None = None,
    workspace: str | None = None,
    learnt: tuple[StagePlan, ...] = (),
) -> Compilation:
    """Compile a workflow under `@workflow`, a LangGraph graph, or a function that returns one.

    `workspace`: in place of the declared one. `learnt`: stages to expect if none are `seen`.
    """
    from ramify.compiler.estimates import UNMEASURED, Estimates
    from ramify.compiler.pipeline import compile_graph, compile_workflow
    from ramify.runtime.estimates.gateway_history import GatewayEstimates
    from ramify.runtime.estimates.recorded_runs import RecordedEstimates

    found, passes = load(target), _passes(without)
    estimates: Estimates = seen or UNMEASURED
    if (info := workflow_info(found)) is not None:
        estimates = (seen or RecordedEstimates(())).on(workspace or found.workspace)
    if learnt:
        estimates = GatewayEstimates(estimates, learnt)
    if info is not None:
        return compile_workflow(found, ref=info.ref, deadline_s=info.deadline_s, passes=passes, estimates=estimates)
    name = target.rpartition(":")[2]
    return compile_graph(load_graph(target, found), name=name, ref=target, passes=passes, estimates=estimates)


def _passes(without: tuple[str, ...]) -> tuple[str, ...]:
    from ramify.compiler.passes import OPTIONAL

    for name in without:
        if name not in OPTIONAL:
            raise click.BadParameter(f"{name!r} is not a pass that can be omitted: choose from {', '.join(OPTIONAL)}")
    return tuple(name for name in OPTIONAL if name not in without)


def _text(compilation: Compilation, form: str) -> str:
    match form:
        case "spec":
            return compilation.spec_text()
        case "ir":
            return compilation.ir_text()
        case "dot":
            return compilation.dot()
        case "mermaid":
            return compilation.mermaid()
        case "schema":
            from ramify.compiler.plan_json import plan_schema

            return plan_schema()
        case _:
            return compilation.plan.to_json()
