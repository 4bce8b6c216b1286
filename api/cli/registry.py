"""The commands, each with the module that has it: `ramify ls` imports nothing that only `ramify run` needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class Entry:
    module: str  # of ramify.cli
    name: str  # of the click command in it
    said: str  # what the list of commands says of it


SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Run": {
        "run": Entry("commands.run", "run_command", "Run a workflow."),
        "resume": Entry(
            "commands.resume", "resume_command", "Go on with a run that was interrupted, failed, forked or waits."
        ),
        "cancel": Entry("commands.effects", "cancel_command", "Stop a run; it can be resumed."),
        "answer": Entry(
            "commands.inbox", "answer_command", "Answer a question that a run asks; it goes on when it is resumed."
        ),
        "approve": Entry("commands.effects", "approve_command", "Say what became of an irreversible step in doubt."),
    },
    "Look": {
        "ls": Entry("commands.listings", "ls_command", "The runs, newest first."),
        "inbox": Entry("commands.inbox", "inbox_command", "What waits for a person, in all runs."),
        "browse": Entry(
            "commands.browse", "browse_command", "All of a run, in the terminal or as a page, as it goes on."
        ),
        "log": Entry(
            "commands.listings", "log_command", "The checkpoints of a run, beside the graph of its branches."
        ),
        "tree": Entry("commands.listings", "tree_command", "The branches of a run, as a tree."),
        "show": Entry("commands.show", "show_command", "One run and its model calls, or one state."),
        "diff": Entry("commands.diff", "diff_command", "What differs between two states."),
        "effects": Entry("commands.effects", "effects_command", "What a run did to the outside."),
        "explain": Entry("commands.explain", "explain_command", "A run's plan beside what happened."),
        "compile": Entry("commands.compile", "compile_command", "Compile a workflow and show its plan."),
    },
    "Go another way": {
        "fork": Entry("commands.fork", "fork_command", "Go on from a checkpoint as another run."),
        "merge": Entry(
            "commands.fork", "merge_command", "Merge the files of one checkpoint into another's, as a new run."
        ),
        "checkout": Entry("commands.fork", "checkout_command", "Write the files of a state into a folder."),
    },
    "Look after it": {
        "doctor": Entry("commands.machine", "doctor_command", "What this machine can do."),
        "models": Entry("commands.machine", "models_group", "The weights of the embedded models."),
        "gc": Entry("commands.storage", "gc_command", "Delete snapshots that nothing needs."),
        "fsck": Entry("commands.storage", "fsck_command", "Check the snapshots, and mend them."),
        "completion": Entry("completion", "completion_command", "Completion by Tab, of runs and states too."),
    },
    "Worlds": {
        "world": Entry("commands.world", "world_group", "Sandboxes without a workflow: make, fork, merge, restore."),
    },
    "Serve models": {
        "serve": Entry(
            "commands.serving", "serve_command", "An OpenAI-compatible API that orders calls by deadline."
        ),
    },
}
ENTRIES: Mapping[str, Entry] = {name: one for section in SECTIONS.values() for name, one in section.items()}


class Commands(click.Group):
    """A group whose commands are imported when they are named, and listed without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"ramify.cli.{entry.module}"), entry.name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, ENTRIES))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), one.said) for name, one in entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [*self._beginning(incomplete), *click.Command.shell_complete(self, ctx, incomplete)]

    def _beginning(self, incomplete: str) -> Iterator[CompletionItem]:
        for name, one in ENTRIES.items():
            if name.startswith(incomplete):
                yield CompletionItem(name, help=one.said)
