"""`ramify browse`: look at a run, in the terminal or in a web browser."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ramify.cli.completion import state_names
from ramify.cli.console import pass_home, run_async, say
from ramify.inspect.home import Home, find_run, find_state
from ramify.runtime.errors import RunNotFound
from ramify.runtime.journal.refs import Place

if TYPE_CHECKING:
    from ramify.runtime.store.reader import Reader


@click.command("browse")
@click.argument("state", metavar="[RUN|STATE]", default="@", shell_complete=state_names)
@click.option("--web", is_flag=True, help="Serve a page for the web browser, on this machine only, until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="The port for --web.  [default: a free one]",
)
@click.option("--open/--no-open", "opens", default=True, help="With --web, start the web browser.  [default: open]")
@pass_home
def browse_command(home: Home, state: str, web: bool, port: int, opens: bool) -> None:
    """Browse a RUN (the newest) or a STATE of one, in the terminal.

    It shows the branches, and for each checkpoint its state, changed files, steps and model calls over time, prompts
    and answers, commands, and irreversible effects. What is new in a running run appears at once. It forks and
    resumes runs if you ask for it, and writes nothing else. `?` shows the keys. Needs the extra `browse`: pip install
    'ramify[browse]'

    With --web it serves the same as a page, which can also answer the questions in its inbox. The page loads nothing
    from the network. Whoever has the printed address can read the runs and answer questions. Needs the extra `web`:
    pip install 'ramify[web]'

    \b
    Example: ramify browse @~2
             ramify browse --web
    """
    if web:
        _browse_web(home, state, port, opens)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("browse needs a terminal; `ramify log` and `ramify show` print the same information")
    place = home.read(lambda store: _place(store, state), whole=False)
    if place.run is None:
        raise RunNotFound(
            f"{state} is a snapshot that belongs to no run: name a run or a checkpoint. `ramify ls` lists runs"
        )
    from ramify.browse.tui.app import Browser

    Browser(home, place.run, place.checkpoint).run()


def _browse_web(home: Home, state: str, port: int, opens: bool) -> None:
    from ramify.browse.web.server import browse

    place = home.read(lambda store: _place(store, state), whole=False)
    if place.run is None:
        raise RunNotFound(
            f"{state} is a snapshot that belongs to no run: name a run or a checkpoint. `ramify ls` lists runs"
        )
    fragment = f"#/{place.run.id}/graph" + ("" if place.checkpoint is None else f"/{place.checkpoint.seq}")

    def ready(address: str) -> None:
        say(f"the page is at {address}")
        say("Ctrl-C stops it", style="dim", err=True)

    page = browse(
        home.store_or_reader(),
        home.snapshots(),
        home.status,
        port=port,
        first=place.run.id,
        fragment=fragment,
        opens=opens,
        ready=ready,
    )
    run_async(page)


async def _place(store: Reader, text: str) -> Place:
    run = await find_run(store, text)  # a whole run: open it at its newest checkpoint, on whatever branch
    return await find_state(store, text) if run is None else Place(run.base_snapshot, run=run)
