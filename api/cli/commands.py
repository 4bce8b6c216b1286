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
        "run": Entry("run", "run_command", "Run a workflow."),
        "resume": Entry("run", "resume_command", "Go on with a run that was interrupted, failed, forked or waits."),
        "cancel": Entry("effects", "cancel_command", "Stop a run; it can be resumed."),
        "answer": Entry(
            "inbox", "answer_command", "Answer a question that a run asks; it goes on when it is resumed."
        ),
        "approve": Entry("effects", "approve_command", "Say what became of an irreversible step in doubt."),
    },
    "Look": {
        "ls": Entry("listing", "ls_command", "The runs, newest first."),
        "inbox": Entry("inbox", "inbox_command", "What waits for a person, in all runs."),
        "browse": Entry("browse", "browse_command", "All of a run, in the terminal or as a page, as it goes on."),
        "log": Entry("log", "log_command", "The checkpoints of a run, beside the graph of its branches."),
        "tree": Entry("tree", "tree_command", "The branches of a run, as a tree."),
        "show": Entry("show", "show_command", "One run and its model calls, or one state."),
        "diff": Entry("diff", "diff_command", "What differs between two states."),
        "effects": Entry("effects", "effects_command", "What a run did to the outside."),
        "explain": Entry("explain", "explain_command", "A run's plan beside what happened."),
        "compile": Entry("compile", "compile_command", "Compile a workflow and show its plan."),
    },
    "Go another way": {
        "fork": Entry("fork", "fork_command", "Go on from a checkpoint as another run."),
        "merge": Entry("fork", "merge_command", "Merge the files of one checkpoint into another's, as a new run."),
        "checkout": Entry("tree", "checkout_command", "Write the files of a state into a folder."),
    },
    "Look after it": {
        "doctor": Entry("doctor", "doctor_command", "What this machine can do."),
        "models": Entry("models", "models_group", "The weights of the embedded models."),
        "gc": Entry("gc", "gc_command", "Delete snapshots that nothing needs."),
        "fsck": Entry("fsck", "fsck_command", "Check the snapshots, and mend them."),
        "completion": Entry("completion", "completion_command", "Completion by Tab, of runs and states too."),
    },
    "Serve models": {
        "serve": Entry("serve", "serve_command", "An OpenAI-compatible API that orders calls by deadline."),
        "bench": Entry("bench", "bench_group", "Measure an engine."),
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
