"""What people decide about runs.

`ramify inbox` lists what waits for a person, and `ramify answer` answers a question. `ramify effects` lists the
irreversible effects of a run, and `ramify approve` decides about one. `ramify cancel` stops a run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify import paths
from ramify.cli.completion import run_names
from ramify.cli.console import answer_text, headed, pass_home, run_async, say, say_json, say_pages
from ramify.cli.time_options import Seconds
from ramify.inspect.home import Home, require_run
from ramify.inspect.text import age, count, fitted, printable, table
from ramify.runtime.errors import RunError
from ramify.runtime.records import EffectRecord, EffectStatus, RunRecord, RunStatus, RunUpdate
from ramify.runtime.store.run_locks import is_held, is_worked_on, request_cancel

if TYPE_CHECKING:
    from ramify.inspect.inbox import Item, Stored
    from ramify.runtime.store import RunStore
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
        items = home.read(lambda store: _read(home, store), whole=as_json)
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
            fitted(item.text, _LONGEST),
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


_LONGEST_VALUE = 40


@click.command("effects")
@click.argument("run", default="@", shell_complete=run_names)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@pass_home
def effects_command(home: Home, run: str, as_json: bool) -> None:
    """List the irreversible steps that a RUN (the newest) started, and what is known of each.

    If a step was attempted several times, the last attempt tells its state. "in doubt", or "intended" while no
    process works on the run, means that it is unknown whether the effect happened: see `ramify approve`.

    \b
    Example: ramify effects 3f2a
    """
    record, ledger = home.read(lambda store: _read_effects(store, run), whole=as_json)
    if as_json:
        say_json([effect_object(effect) for effect in ledger])
    elif not ledger:
        say(f"run {record.id} has no irreversible effects", err=True)
    else:
        say_pages(headed(effect_lines(ledger, home.clock())))


async def _read_effects(store: Reader, text: str) -> tuple[RunRecord, list[EffectRecord]]:
    run = await require_run(store, text)
    return run, await store.effects(run.id, earlier=True)


def effect_lines(ledger: Sequence[EffectRecord], now: float) -> list[str]:
    from ramify.inspect.values import json_line

    header = ("KEY", "STEP", "BRANCH", "ATTEMPT", "STATUS", "INTENDED", "ARGUMENTS", "RESULT", "HOW IT IS KNOWN")
    last = {effect.key: effect.attempt for effect in ledger}
    return table(
        header,
        [
            (
                effect.idempotency_key[:12],
                printable(effect.step),
                effect.branch,
                f"{effect.attempt} of {last[effect.key]}",
                effect.status.value,
                age(now - effect.intended_at),
                json_line(effect.args_json, _LONGEST_VALUE),
                json_line(effect.result_json or "-", _LONGEST_VALUE),
                printable(effect.note),
            )
            for effect in ledger
        ],
    )


def effect_object(effect: EffectRecord) -> dict[str, object]:
    return {
        "key": effect.idempotency_key,
        "step": effect.step,
        "branch": effect.branch,
        "attempt": effect.attempt,
        "status": effect.status.value,
        "intended_at": effect.intended_at,
        "settled_at": effect.settled_at,
        "arguments": effect.args_json,
        "result": effect.result_json,
        "note": effect.note,
    }


@click.command("approve")
@click.argument("run", shell_complete=run_names)
@click.argument("step")
@click.option("--done", is_flag=True, help="It happened.")
@click.option("--again", is_flag=True, help="It did not happen: the next resume runs it.")
@click.option("--result", help="With --done: the step's return value. JSON if it parses, otherwise text.")
@pass_home
def approve_command(home: Home, run: str, step: str, done: bool, again: bool, result: str | None) -> None:
    """Say whether the STEP of a RUN happened. STEP: its name, or the beginning of its key in `ramify effects`.

    \b
    Example: ramify approve 3f2a send_invoice --done --result '"inv-17"'
             ramify resume 3f2a
    """
    if done == again:  # both or neither: unclear, and one of the two would run it twice
        raise click.UsageError("give either --done or --again")
    verdict = EffectStatus.APPROVED if done else EffectStatus.AGAIN
    if result is not None and not done:
        raise click.UsageError("--result needs --done: a step that runs again has its own result")
    effect = run_async(_approve(home, run, step, verdict, result))
    what = "is recorded as done" if effect.status is EffectStatus.APPROVED else "will run again"
    say(f"step {printable(effect.step)} of run {effect.run_id} {what}: `ramify resume {effect.run_id}` continues it")


async def _approve(home: Home, run: str, step: str, verdict: EffectStatus, result: str | None) -> EffectRecord:
    from ramify.inspect.values import parse_value
    from ramify.runtime.codec import codec
    from ramify.runtime.effects.ledger import approve

    async with home.store() as store:
        record = await require_run(store, run)
        value = codec.encode(None if result is None else parse_value(result))
        result_json = value if verdict is EffectStatus.APPROVED else None
        locks = paths.locks(home.folder)
        return await approve(store, locks, record.id, step, verdict, result_json, clock=home.clock)


@click.command("cancel")
@click.argument("run", default="@", shell_complete=run_names)
@click.option(
    "--wait",
    type=Seconds(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for its process to stop.",
)
@pass_home
def cancel_command(home: Home, run: str, wait: float) -> None:
    """Stop a RUN (the newest), as Ctrl-C in its terminal would.

    Its sandboxes end, nothing is lost, and `ramify resume` continues it.

    \b
    Example: ramify cancel 3f2a
    """
    record = run_async(_cancel(home, run, wait))
    say(f"run {record.id} {_STANDS.get(record.status, 'is stopped')}: `ramify resume {record.id}` continues it")


async def _cancel(home: Home, text: str, wait_s: float) -> RunRecord:
    async with home.store() as store:
        run = _can_stop(await require_run(store, text))
        locks = paths.locks(home.folder)
        if await _is_held(store, locks, run):
            await _until_free(store, locks, run, wait_s)
        run = _can_stop(await require_run(store, run.id))
        if run.status is RunStatus.RUNNING:  # its process ended without recording it
            await store.commit(run.id, update=RunUpdate(status=RunStatus.CANCELLED, error="cancelled"))
        return run


_STANDS = {
    RunStatus.FAILED: "had failed; there was nothing to stop",
    RunStatus.FORKED: "has not started; there was nothing to stop",
    RunStatus.WAITING: "waits for a person; there was nothing to stop",
}


def _can_stop(run: RunRecord) -> RunRecord:
    if run.status is RunStatus.DONE:
        raise RunError(f"run {run.id} is done: there is nothing to stop")
    return run


async def _is_held(store: RunStore, locks: Path, run: RunRecord) -> bool:
    """Whether a process works on the run: on this machine or, through a database server, on another one."""
    return is_worked_on(locks, run.id, (await store.leases([run.id])).get(run.id))


async def _until_free(store: RunStore, locks: Path, run: RunRecord, wait_s: float) -> None:
    import asyncio  # slow to import: not for commands that only read

    if is_held(locks, run.id):
        request_cancel(locks, run.id)
    until = time.monotonic() + wait_s
    async with store.requesting_stop(run.id):
        while await _is_held(store, locks, run):
            if time.monotonic() > until:
                raise RunError(f"run {run.id} did not stop within {wait_s:g} s: kill its process")
            await asyncio.sleep(0.05)
