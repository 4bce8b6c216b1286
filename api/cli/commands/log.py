"""`ramify log`: the checkpoints of a run, newest first, beside the graph of its branches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from ramify.cli.branch_tree import shown
from ramify.cli.completion import state_names
from ramify.cli.console import App, find_state_with_history, pass_app, say_json, say_pages
from ramify.compiler.plan import OpKind
from ramify.inspect.text import age, fitted
from ramify.runtime.errors import RunNotFound
from ramify.runtime.journal.refs import Place, parse

if TYPE_CHECKING:
    from ramify.inspect.checkpoint_graph import Row
    from ramify.inspect.history import History
    from ramify.runtime.records import CheckpointRecord
    from ramify.runtime.store.reader import Reader

_LONGEST = 72
_LOOKS = {"merged": "green", "released": "bright_black", "open": "cyan"}


@click.command("log")
@click.argument("state", metavar="[RUN|STATE]", default="@", shell_complete=state_names)
@click.option("-n", "--max-count", type=click.IntRange(0), metavar="N", help="Not more than N checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="A list, newest first.")
@pass_app
def log_command(app: App, state: str, max_count: int | None, as_json: bool) -> None:
    """The checkpoints of a RUN (the newest), newest first, beside the graph of its branches. Of a STATE: only what it
    descends from.

    The name of a branch stands at its last checkpoint. `ramify show ID` tells more of one, `ramify diff A B` what is
    between two, `ramify fork ID` goes on from one.

    \b
    Example: ramify log -n 20
    """
    from ramify.inspect.checkpoint_graph import ancestry, rows

    place, history = app.look(lambda store: _read(store, state))
    chosen = history.checkpoints
    if not parse(state).is_whole_run and place.checkpoint is not None:
        chosen = tuple(ancestry(chosen, place.checkpoint))
    if as_json:
        newest_first = sorted(chosen, key=lambda one: one.seq, reverse=True)
        say_json([_object(history, one) for one in islice(newest_first, max_count)])
        return
    drawn = rows(chosen)
    say_pages(_lines(history, chosen, drawn, max_count, app.clock()))


async def _read(store: Reader, text: str) -> tuple[Place, History]:
    place, history = await find_state_with_history(store, text)
    if history is None:
        raise RunNotFound(f"{text} is a snapshot of no run: name one, or a checkpoint. `ramify ls` lists them")
    return place, history


def _lines(
    history: History, chosen: tuple[CheckpointRecord, ...], drawn: Iterator[Row], most: int | None, now: float
) -> Iterator[str]:
    tips = {one.branch: one.id for one in sorted(chosen, key=lambda one: one.seq)}
    count = 0
    for row in drawn:
        if most is not None and count >= most:
            return
        if row.checkpoint is None:
            yield click.style(row.lines, dim=True)
            continue
        count += 1
        yield _line(history, row.lines, row.checkpoint, now, tip=tips[row.checkpoint.branch] == row.checkpoint.id)


def _line(history: History, lines: str, one: CheckpointRecord, now: float, *, tip: bool) -> str:
    parts = [lines, click.style(one.id[:10], fg="yellow")]
    if tip:
        end = history.lines[one.branch].end.value
        said = one.branch if end == "open" else f"{one.branch} {end}"
        parts.append(click.style(f"({said})", fg=_LOOKS[end]))
    parts.append(fitted(what(history, one), _LONGEST))
    parts.append(click.style(age(now - one.created_at), dim=True))
    return " ".join(parts)


def what(history: History, one: CheckpointRecord) -> str:
    """What a checkpoint was taken after, in a line."""
    made = history.made_by(one)
    if made is None or not made.summary:
        return shown(one.label)
    name = one.label or made.name
    begins = re.match(
        rf"{re.escape(name)}(?!\w)", made.summary
    )  # within it, or in another word, it says something else
    said_already = made.kind is OpKind.MERGE or begins is not None
    return shown(made.summary if said_already else f"{name}: {made.summary}")


def _object(history: History, one: CheckpointRecord) -> dict[str, object]:
    made = history.made_by(one)
    return {
        "id": one.id,
        "run": one.run_id,
        "seq": one.seq,
        "branch": one.branch,
        "branch_end": history.lines[one.branch].end.value,
        "snapshot": one.snapshot_id,
        "parents": list(one.parents),
        "label": one.label,
        "kind": None if made is None else made.kind.value,
        "summary": "" if made is None else made.summary,
        "reused_from": None if made is None else made.reused_from,
        "created_at": one.created_at,
    }
