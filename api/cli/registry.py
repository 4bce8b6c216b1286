"""The table of commands. A command's module is imported only when the command is named."""

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
    said: str  # its line in the list of commands


SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Run": {
        "run": Entry("commands.run", "run_command", "Run a workflow."),
        "resume": Entry(
            "commands.resume", "resume_command", "Continue a run that was interrupted, failed, was forked or waits."
        ),
        "cancel": Entry("commands.decisions", "cancel_command", "Stop a run; it can be resumed."),
        "answer": Entry("commands.decisions", "answer_command", "Answer a question of a run; `resume` continues it."),
        "approve": Entry(
            "commands.decisions", "approve_command", "Say whether an irreversible step of unknown outcome happened."
        ),
    },
    "Inspect": {
        "ls": Entry("commands.listings", "ls_command", "List the runs, newest first."),
        "inbox": Entry("commands.decisions", "inbox_command", "List what waits for a person, in all runs."),
        "browse": Entry(
            "commands.browse", "browse_command", "Browse a run live, in the terminal or in a web browser."
        ),
        "log": Entry(
            "commands.listings", "log_command", "List the checkpoints of a run beside the graph of its branches."
        ),
        "tree": Entry("commands.listings", "tree_command", "Show the branches of a run as a tree."),
        "show": Entry("commands.show", "show_command", "Show one run and its model calls, or one state."),
        "diff": Entry("commands.diff", "diff_command", "Show the differences between two states."),
        "effects": Entry("commands.decisions", "effects_command", "List the irreversible effects of a run."),
        "explain": Entry("commands.explain", "explain_command", "Compare a run's plan with what happened."),
        "compile": Entry("commands.compile", "compile_command", "Compile a workflow and show its plan."),
    },
    "Fork and merge": {
        "fork": Entry("commands.fork", "fork_command", "Start a new run from a checkpoint."),
        "merge": Entry("commands.fork", "merge_command", "Merge the files of two checkpoints, as a new run."),
        "checkout": Entry("commands.fork", "checkout_command", "Write the files of a state into a folder."),
    },
    "Maintain": {
        "doctor": Entry("commands.machine", "doctor_command", "Check what this machine supports."),
        "models": Entry("commands.machine", "models_group", "Download the weights of the embedded models."),
        "gc": Entry("commands.storage", "gc_command", "Delete snapshots that no run needs."),
        "fsck": Entry("commands.storage", "fsck_command", "Check the snapshots and repair them."),
        "threads": Entry(
            "commands.threads", "threads_group", "Move LangGraph threads between LangGraph's savers and Ramify's."
        ),
        "push": Entry("commands.remote", "push_command", "Upload runs and states to a bucket."),
        "pull": Entry("commands.remote", "pull_command", "Fetch a run or a state from a bucket."),
        "completion": Entry("completion", "completion_command", "Print the shell code for completion by Tab."),
    },
    "Worlds": {
        "world": Entry("commands.world", "world_group", "Sandboxes without a workflow: make, fork, merge, restore."),
        "mcp": Entry("commands.mcp", "mcp_command", "Serve worlds as tools of the Model Context Protocol."),
        "image": Entry("commands.image", "image_group", "OCI images for worlds: pull, list, show, forget."),
    },
    "Serve models": {
        "serve": Entry(
            "commands.serving", "serve_command", "Serve an OpenAI-compatible API that orders calls by deadline."
        ),
    },
}
ENTRIES: Mapping[str, Entry] = {name: one for section in SECTIONS.values() for name, one in section.items()}


class Commands(click.Group):
    """A command group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"ramify.cli.{entry.module}"), entry.name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = [] if args[0] in ENTRIES else self._like(ctx, args[0])
            if not near:
                raise
            meant = " or ".join(f"`ramify {name}`" for name in near)
            raise click.UsageError(f"{error.message} Did you mean {meant}?", ctx) from None

    def _like(self, ctx: click.Context, word: str) -> list[str]:
        """The commands that somebody may have meant: below a group, or spelt alike."""
        from difflib import get_close_matches

        found = [name for name in ENTRIES if word in getattr(self.get_command(ctx, name), "commands", ())]
        return [f"{group} {word}" for group in found] + get_close_matches(word, ENTRIES)

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
