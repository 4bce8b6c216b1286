"""`ramify diff`: what differs between two states."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ramify.cli.app import App, pass_app, say_json
from ramify.fork_engine.types import Change, Entry, EntryKind, Snapshot

if TYPE_CHECKING:
    from ramify.cli.patch import FilePatch
    from ramify.fork_engine.store import SnapshotStore

LOOKS = ((b"+++", "bold"), (b"---", "bold"), (b"diff ", "bold"), (b"@@", "cyan"), (b"+", "green"), (b"-", "red"))


@click.command("diff", short_help="What differs between two states.")
@click.argument("a")
@click.argument("b", required=False)
@click.option("--stat", is_flag=True, help="Only how many lines changed in each file.")
@click.option("--name-only", is_flag=True, help="Only the paths.")
@click.option("--json", "as_json", is_flag=True, help="A list of objects: path, kind, before, after.")
@pass_app
def diff_command(app: App, a: str, b: str | None, stat: bool, name_only: bool, as_json: bool) -> None:
    """What differs between two states, as a unified diff that `git apply` takes.

    With A alone: what A's run changed up to there, since its workspace.
    """
    first, second = (f"{_run_of(app, a)}:base", a) if b is None else (a, b)
    snapshots = app.snapshots()
    before, after = (snapshots.get(app.run(app.find(text)).snapshot) for text in (first, second))
    changes = snapshots.changes(before, after)
    if as_json:
        say_json([change_object(change) for change in changes])
        return
    out = sys.stdout.buffer
    if name_only:
        out.write(b"".join(os.fsencode(change.path) + b"\n" for change in changes))
        return
    from ramify.cli.patch import stat_lines

    patches = _patches(snapshots, changes, before, after)
    if stat:
        out.write(b"".join(stat_lines(list(patches))))
        return
    colours = out.isatty() and click.get_current_context().color is not False
    for patch in patches:
        out.write(_coloured(patch.text) if colours else patch.text)


def _run_of(app: App, text: str) -> str:
    run = app.run(app.find(text)).run
    if run is None:
        raise click.UsageError(f"{text} is a snapshot of no run by itself: name a second state to compare it with")
    return run.id


def _patches(
    snapshots: SnapshotStore, changes: list[Change], before: Snapshot, after: Snapshot
) -> Iterator[FilePatch]:
    from ramify.cli.patch import file_patch

    for change in changes:
        old, new = (
            _content(snapshots, before, change.path, change.before),
            _content(snapshots, after, change.path, change.after),
        )
        if old is not None or new is not None:
            yield file_patch(change, old or b"", new or b"")


def _content(snapshots: SnapshotStore, snapshot: Snapshot, path: str, entry: Entry | None) -> bytes | None:
    """A file's bytes or a link's target; None for what has no contents, such as a folder."""
    if entry is None:
        return None
    if entry.kind is EntryKind.FILE:
        return snapshots.read(snapshot, path)
    return os.fsencode(entry.target) if entry.kind is EntryKind.SYMLINK else None


def _coloured(text: bytes) -> bytes:
    lines = []
    for line in text.splitlines(keepends=True):
        look = next((look for start, look in LOOKS if line.startswith(start)), None)
        if look is None:
            lines.append(line)
            continue
        opening = click.style("", bold=True, reset=False) if look == "bold" else click.style("", fg=look, reset=False)
        lines.append(opening.encode() + line.rstrip(b"\n") + b"\x1b[0m\n")
    return b"".join(lines)


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
        told["sha256"] = entry.digest
    if entry.target:
        told["target"] = entry.target
    return told


def change_lines(changes: list[Change]) -> list[str]:
    """One line a path, as `git status --short`: A, D, M, T (type) or P (permissions)."""
    from ramify.cli.branches import shown

    letters = {"added": "A", "removed": "D", "modified": "M", "type": "T", "mode": "P"}
    return [f"{letters[change.kind.value]} {shown(change.path)}" for change in changes]
