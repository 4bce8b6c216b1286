"""`ramify compile`: what the compiler makes of a workflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.app import say
from ramify.cli.targets import load, load_graph, workflow_info

if TYPE_CHECKING:
    from ramify.compiler.pipeline import Compilation

FORMS = {"spec": "spec.txt", "ir": "ssg.txt", "plan": "plan.json", "dot": "ssg.dot"}


def _forms(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    unknown = [part for part in chosen if part not in FORMS]
    if unknown:
        shown = ", ".join(map(repr, unknown))
        raise click.BadParameter(f"{shown}: choose from {', '.join(FORMS)}", context, parameter)
    return chosen


@click.command("compile", short_help="Compile a workflow and show its plan.")
@click.argument("target")
@click.option(
    "--emit", callback=_forms, default="plan", show_default=True, metavar="spec,ir,plan,dot", help="What to show."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A file; of several forms, a folder for them.")
def compile_command(target: str, emit: tuple[str, ...], output: Path | None) -> None:
    """Compile TARGET (FILE.py:NAME or MODULE:NAME) and show it.

    plan is what `ramify run --plan` takes; ir is the System State Graph, spec what was read from the source,
    dot the graph for Graphviz.
    """
    compilation = compiled(target)
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
            click.echo(text.rstrip("\n"))


def compiled(target: str) -> Compilation:
    """Of a workflow under `@workflow`, of a LangGraph graph, or of a function that makes one."""
    from ramify.compiler.pipeline import compile_graph, compile_workflow

    found = load(target)
    if (info := workflow_info(found)) is not None:
        return compile_workflow(found, ref=info.ref, deadline_s=info.deadline_s)
    return compile_graph(load_graph(target, found), name=target.rpartition(":")[2], ref=target)


def _text(compilation: Compilation, form: str) -> str:
    match form:
        case "spec":
            return compilation.spec_text()
        case "ir":
            return compilation.ir_text()
        case "dot":
            return compilation.dot()
        case _:
            return compilation.plan.to_json()
