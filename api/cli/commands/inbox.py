"""`ramify inbox` and `ramify answer`: what waits for a person, in all runs, and answers to questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ramify.cli.console import answer_text, headed, pass_home, run_async, say, say_json, say_pages
from ramify.inspect.home import Home
from ramify.inspect.text import age, count, fitted, printable, table
from ramify.runtime.records import RunStatus

if TYPE_CHECKING:
    from ramify.inspect.inbox import Item, Stored
    from ramify.runtime.store.reader import Reader

_LONGEST = 60


@click.command("inbox")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def inbox_command(home: Home, as_json: bool) -> None:
    """List what waits for a person, in all runs, the longest waiting first.

    question: a workflow or a LangGraph node asked it; `ramify answer ID JSON` stores the answer. approval: a
    LangGraph thread was compiled to stop at a node; `ramify resume RUN` continues it. doubt: it is unknown whether an
    irreversible effect happened; `ramify approve` records what a person found out.

    \b
    Example: ramify inbox --json
    """
    if home.has_runs:
        items = home.read(lambda store: _read(home, store))
    else:
        home.require_usable()
        items = []
    if as_json:
        say_json([item_object(item) for item in items])
    elif not items:
        say(f"nothing waits for a person in {home.location}", err=True)
    else:
        say_pages(headed(inbox_lines(items, home.clock())))
        for line in dict.fromkeys(_how(item) for item in items if item.commands):
            say(line, style="dim", err=True)


async def _read(home: Home, store: Reader) -> list[Item]:
    from ramify.inspect.inbox import waiting

    return await waiting(store, home.database, lambda run: home.status(run) == RunStatus.RUNNING)


def inbox_lines(items: Sequence[Item], now: float) -> list[str]:
    header = ("ID", "KIND", "RUN", "WORKFLOW", "AGE", "QUESTION")
    rows = [
        (
            item.id or "-",
            item.kind.value,
            item.run,
            printable(item.workflow),
            age(now - item.since),
            fitted(printable(item.text), _LONGEST),
        )
        for item in items
    ]
    return table(header, rows)


def _how(item: Item) -> str:
    from ramify.inspect.inbox import Kind

    if item.kind is Kind.QUESTION:
        return "`ramify answer ID JSON` answers a question, `ramify resume RUN` continues the run"
    told = " or ".join(f"`{command}`" for command in item.commands)
    return f"{told} resolves {item.id}" if item.kind is Kind.DOUBT else f"{told} continues the run"


def item_object(item: Item) -> dict[str, object]:
    return {
        "id": item.id,
        "kind": item.kind.value,
        "run": item.run,
        "workflow": item.workflow,
        "branch": item.branch,
        "question": item.question,
        "since": item.since,
        "commands": list(item.commands),
    }


@click.command("answer", context_settings={"ignore_unknown_options": True})
@click.argument("id")
@click.argument("value", metavar="JSON")
@pass_home
def answer_command(home: Home, id: str, value: str) -> None:
    """Store the answer to the question ID of `ramify inbox`: JSON, or text if it does not parse, or - to read it
    from the standard input.

    It runs nothing: `ramify resume` continues the run, and a process that works on the run takes the answer at once.
    The first answer to a question counts.

    \b
    Example: ramify answer 3f2a9c01 true
    """
    stored = run_async(_store(home, id, value))
    run = stored.question.run_id
    left = f"; {count(len(stored.left), 'question')} of the run still open" if stored.left else ""
    say(f"question {stored.question.id} of run {run} is answered{left}: `ramify resume {run}` continues it")


async def _store(home: Home, id: str, value: str) -> Stored:
    from ramify.inspect.inbox import store_answer
    from ramify.inspect.values import parse_value

    async with home.store() as store:
        return await store_answer(
            store, home.database, id, parse_value(answer_text(value)), clock=home.clock, by="ramify answer"
        )
