"""`ramify diff`: the differences between two states."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramify.cli.completion import state_names
from ramify.cli.console import pass_home, say_bytes, say_json, say_pages, say_paths, styled
from ramify.fork_engine.types import Change, Entry
from ramify.inspect.facts import outside_lines, variable_lines
from ramify.inspect.home import Home, find_state_with_history
from ramify.inspect.text import escaped, printable
from ramify.runtime.journal.refs import Place
from ramify.runtime.records import EffectRecord

if TYPE_CHECKING:
    from ramify.fork_engine.store import SnapshotStore
    from ramify.inspect.history import History
    from ramify.inspect.state import State
    from ramify.runtime.store.reader import Reader

_LONGEST = 60
_MOST_OUTSIDE = 20  # paths outside the workspace, above a diff
LOOKS = (("+++", "bold"), ("---", "bold"), ("diff ", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


@click.command("diff")
@click.argument("a", shell_complete=state_names)
@click.argument("b", required=False, shell_complete=state_names)
@click.option("--stat", is_flag=True, help="Only count the changed lines of each file.")
@click.option("--name-only", is_flag=True, help="Only list the paths, unusual ones quoted as by git.")
@click.option("-z", "nul", is_flag=True, help="With --name-only: end each path with a NUL, and do not quote it.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object: files, outside, state, environment, cwd, effects."
)
@pass_home
def diff_command(home: Home, a: str, b: str | None, stat: bool, name_only: bool, nul: bool, as_json: bool) -> None:
    """Show the differences between two states.

    They are: keys of the state (channels of a LangGraph thread, results of a workflow's steps), environment
    variables, irreversible effects, and files, as a unified diff that `git apply` accepts. What changed outside the
    workspace, such as an installed package, is only named, by absolute paths. With A alone: what A's run changed
    since its workspace.

    \b
    Example: ramify diff @~1 @ --stat
    """
    from ramify.inspect.state import StateDiff, changed_channels

    if nul and not name_only:
        raise click.UsageError("-z needs --name-only")
    sides = home.read(lambda store: _read(store, a, b), whole=as_json)
    snapshots = home.snapshots()
    states = [side.state(snapshots, home.database) for side in sides]
    keys = changed_channels(*(None if state is None else state.channels for state in states))
    effects = _on_one_side(sides, states)
    between = StateDiff(snapshots, *(snapshots.get(side.place.snapshot) for side in sides))
    if as_json:
        say_json(
            {
                "files": [change_object(change) for change in between.files],
                "outside": [change_object(change) for change in between.outside],
                "environment": [{"name": v.name, "before": v.before, "after": v.after} for v in between.variables],
                "cwd": [between.before.cwd, between.after.cwd] if between.moved else None,
                "state": [{"key": key, "before": _known(was), "after": _known(now)} for key, was, now in keys],
                "effects": [{"step": one.step, "key": one.idempotency_key, "side": side} for side, one in effects],
            }
        )
        return
    if name_only:
        say_paths((change.path for change in (*between.files, *between.outside)), nul=nul)
        return
    from ramify.inspect.patch import stat_lines

    told = [
        *(_key_line(*key) for key in keys),
        *variable_lines(between),
        *outside_lines(between, _MOST_OUTSIDE),
        *(f"effect: {printable(one.step)}, on {side} only" for side, one in effects),
    ]
    head = "".join(f"# {line}\n" for line in told).encode()  # `git apply` ignores these lines
    if stat:
        say_bytes(head + b"".join(stat_lines(list(between.patches))))
        return
    if not sys.stdout.isatty():
        say_bytes(head + b"".join(one.text for one in between.patches))
        return
    colours = click.get_current_context().color is not False
    patches = (line for one in between.patches for line in _shown(one.text, colours))
    say_pages(chain(head.decode().splitlines(), patches))


def _known(value: object) -> object:
    from ramify.inspect.state import MISSING

    return None if value is MISSING else value


def _key_line(key: str, before: object, after: object) -> str:
    from ramify.inspect.state import MISSING
    from ramify.inspect.values import value_line

    was, now = ("not set" if one is MISSING else value_line(one, _LONGEST) for one in (before, after))
    return f"state: {printable(key)}: {was} -> {now}"


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    place: Place
    history: History | None

    def state(self, snapshots: SnapshotStore, database: str | Path) -> State | None:
        """The state with all that its run tells about it; None for a snapshot without a run."""
        if self.history is None or self.place.checkpoint is None:
            return None
        from ramify.inspect.state import state_at

        return state_at(self.history, snapshots, self.place.checkpoint, database)


async def _read(store: Reader, a: str, b: str | None) -> tuple[_Side, _Side]:
    place, history = await find_state_with_history(store, a)
    if b is not None:
        return _Side(a, place, history), _Side(b, *await find_state_with_history(store, b, history))
    if history is None:
        raise click.UsageError(f"{a} is a snapshot that belongs to no run: name a second state to compare it with")
    base, _ = await find_state_with_history(store, f"{history.run.id}:base", history)
    return _Side("the workspace", base, history), _Side(a, place, history)


def _on_one_side(sides: Sequence[_Side], states: Sequence[State | None]) -> list[tuple[str, EffectRecord]]:
    """The effects that only one of two states has, with the name of that side."""
    mine, other = ({} if state is None else {one.idempotency_key: one for one in state.effects} for state in states)
    only = [(side.name, one) for side, effects in zip(sides, (mine, other), strict=True) for one in effects.values()]
    return [(name, one) for name, one in only if one.idempotency_key not in mine.keys() & other.keys()]


def _shown(patch: bytes, colours: bool) -> Iterator[str]:
    """The lines of a patch for a terminal."""
    for line in patch.decode(errors="replace").removesuffix("\n").split("\n"):
        look = next((look for start, look in LOOKS if line.startswith(start)), "") if colours else ""
        yield styled(escaped(line), look)


def change_object(change: Change) -> dict[str, object]:
    return {
        "path": change.path,
        "kind": change.kind.value,
        "before": _entry_object(change.before),
        "after": _entry_object(change.after),
    }


def _entry_object(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    told: dict[str, object] = {"kind": entry.kind.value, "mode": f"{entry.mode:04o}", "size": entry.size}
    if entry.digest:
        told["digest"] = entry.digest
    if entry.target:
        told["target"] = entry.target
    return told
