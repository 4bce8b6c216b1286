"""Errors of LangGraph graphs that run over worlds.

RunError
└── GraphError
    ├── UnsupportedGraph   a feature of LangGraph that would lose files here; refused before it runs
    ├── WorldLost          files that the plan did not seal were lost with the process that held them
    ├── StateGone          a checkpoint's files are lost or damaged; says where the thread can continue
    ├── AppClosed          the app was closed
    ├── ThreadElsewhere    a thread's checkpoints are not in this home's database, or cannot be read there
    ├── NoStateThere       the graph had no state of its own at that checkpoint
    ├── ThreadNotCopied    a thread cannot be copied to another checkpointer; nothing was overwritten
    ├── TypeNotAllowed     a checkpoint names a type that this program does not have; nothing is imported or called
    └── LangGraphChanged   the installed LangGraph is not the one that Ramify was written for
InvokedWhileLoaded         a user's file runs its graph while it is only searched for apps
MergeConflict
└── NodesConflict          two nodes of one superstep changed the same file; names both
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import Conflict
from ramify.runtime.errors import RunError


class GraphError(RunError):
    """The base of errors that only graphs over worlds raise."""


class UnsupportedGraph(GraphError):
    """A feature of LangGraph that does not work with worlds yet."""


class WorldLost(GraphError):
    """Files that no snapshot held are lost."""

    def __init__(self, branch: str) -> None:
        super().__init__(
            f"the plan takes no snapshot (SEAL) of branch {branch} at that checkpoint: its files were only in a live "
            "world, which has ended. Continue from the checkpoint before the node"
        )


class StateGone(GraphError):
    """A snapshot is lost or damaged and cannot be recomputed. `refused` says why not. `whole` is Ramify's id of the
    newest earlier checkpoint whose files are complete; None if there is none."""

    def __init__(self, run: str, snapshot: str, why: str, refused: str, whole: str | None) -> None:
        self.whole = whole
        onward = (
            "no earlier state is complete either: start a new thread"
            if whole is None
            else f"go back to the newest complete earlier state: `ramify resume {run} --from {whole}`, or in Python "
            "`app.invoke(None, state.config)` with the state of `app.get_state_history` at that checkpoint"
        )
        super().__init__(
            f"the files of snapshot {snapshot[:12]} are lost or damaged ({why}), and cannot be recomputed: "
            f"{refused}. {onward[0].upper()}{onward[1:]}"
        )


class InvokedWhileLoaded(RuntimeError):
    """The command line searches a user's file for an app, and the file runs it. That must not happen a second
    time."""

    def __init__(self) -> None:
        super().__init__(
            "it invokes its graph at its top level, which would happen a second time: put that under "
            "`if __name__ == '__main__':`"
        )


class AppClosed(GraphError):
    """The app was closed."""


class ThreadElsewhere(GraphError):
    """The checkpoints of a thread are kept by a saver that only the user's own program has."""

    def __init__(self, run: str, thread: str) -> None:
        super().__init__(
            f"the checkpoints of LangGraph thread {thread} (run {run}) are not in this home's database: its saver "
            "keeps them in memory or elsewhere. Continue it in Python, or compile the graph with "
            "checkpointer=ramify.graph.saver() next time"
        )

    @classmethod
    def serialised(cls, kind: str) -> ThreadElsewhere:
        """Return the error for a thread that is stored here in a form that only the program's own serialiser
        reads."""
        error = cls("", "")
        error.args = (
            f"the thread's checkpoints were written by your own serialiser ({kind}): continue it in Python, "
            "where the saver has that serialiser",
        )
        return error


class NoStateThere(GraphError):
    """The checkpoint lies inside a superstep, where the graph has no state."""

    def __init__(self, checkpoint: str, thread: str) -> None:
        super().__init__(
            f"thread {thread} has no state of its own at checkpoint {checkpoint[:10]}: it lies inside a superstep, "
            "or it was pruned. Name a checkpoint before or after it; `ramify log` lists them"
        )


class ThreadNotCopied(GraphError):
    """A thread cannot be copied to another checkpointer."""

    @classmethod
    def unknown(cls, threads: Sequence[str]) -> ThreadNotCopied:
        return cls(f"the source has no thread {_listed(threads)}: nothing was copied")

    @classmethod
    def elsewhere(cls, threads: Sequence[str]) -> ThreadNotCopied:
        return cls(
            f"the target's thread {_listed(threads)} has checkpoints that the source does not have: nothing was "
            "copied. Delete it there (`saver.delete_thread`), or copy only other threads"
        )

    @classmethod
    def changed(cls, thread: str) -> ThreadNotCopied:
        return cls(
            f"a checkpoint of thread {thread} was deleted while it was copied: stop the programs that use it, and "
            "copy it again"
        )

    @classmethod
    def damaged(cls, thread: str, checkpoint: str, error: Exception) -> ThreadNotCopied:
        return cls(
            f"checkpoint {checkpoint} of thread {thread} cannot be read ({type(error).__name__}: {error}). The "
            "threads before it, and its own earlier checkpoints, are copied. Delete the thread in the source, or "
            "name only the others"
        )

    @classmethod
    def numbered(cls) -> ThreadNotCopied:
        return cls(
            "the target counts the versions of channels in numbers, and the thread has versions of text, as "
            "LangGraph's own savers make them: the thread could not be continued there"
        )

    @classmethod
    def serialised(cls, kind: str) -> ThreadNotCopied:
        return cls(
            f"a value was written by a serialiser of your own ({kind}): copy the threads in Python, "
            "ramify.graph.copy_threads(source, target), with checkpointers that have that serialiser"
        )

    @classmethod
    def nothing_there(cls, where: str) -> ThreadNotCopied:
        return cls(f"there are no threads in {where}: it has no tables of that checkpointer")

    @classmethod
    def outdated(cls, where: str) -> ThreadNotCopied:
        return cls(
            f"the tables in {where} are those of an earlier langgraph-checkpoint-postgres: call `setup()` of its "
            "PostgresSaver once, which brings them up to date, and copy again"
        )

    @classmethod
    def no_file(cls, where: str) -> ThreadNotCopied:
        return cls(f"{where}: no such file. Name the database that has the threads")

    @classmethod
    def not_installed(cls, distribution: str) -> ThreadNotCopied:
        return cls(f"{distribution} is not installed, which opens that database: pip install {distribution}")

    @classmethod
    def database(cls, where: str, why: str) -> ThreadNotCopied:
        return cls(f"the threads in {where} cannot be used: {why.strip()}")


def _listed(names: Sequence[str]) -> str:
    few = ", ".join(names[:5])
    return few if len(names) <= 5 else f"{few} and {len(names) - 5} more"


class TypeNotAllowed(GraphError):
    """A checkpoint or a cached result names something that is not one of this program's data types."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"a checkpoint names {module}.{name}, which is not a data class of a module that this program has "
            f"loaded, so nothing was imported or called for it. If it is yours: import {module} before the thread is "
            f"read, or open the saver with allow=[({module!r}, {name!r})]"
        )

    @classmethod
    def because(cls, why: str) -> TypeNotAllowed:
        error = cls("", "")
        error.args = (f"a checkpoint cannot be read: {why}",)
        return error

    @classmethod
    def form(cls, code: int) -> TypeNotAllowed:
        error = cls("", "")
        error.args = (
            f"a checkpoint holds a value with msgpack extension {code}, which this version of Ramify cannot read",
        )
        return error


class LangGraphChanged(GraphError):
    """The installed LangGraph is not the one that Ramify was written for."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"this version of langgraph has no {missing}, so worlds cannot follow its checkpoints. "
            "Install langgraph>=1.2,<1.3"
        )

    @classmethod
    def version(cls, distribution: str, installed: str, supported: Sequence[str]) -> LangGraphChanged:
        error = cls("")
        error.args = (
            f"{distribution} {installed} is installed, and this version of Ramify works with "
            f"{', '.join(f'{each}.*' for each in supported)}: install one of these, or a newer Ramify",
        )
        return error

    @classmethod
    def name(cls, distribution: str, why: str) -> LangGraphChanged:
        error = cls("")
        error.args = (f"the installed {distribution} lacks a name that Ramify needs ({why}): install a newer Ramify",)
        return error


class NodesConflict(MergeConflict):
    """Nodes of one superstep changed the same file. `nodes` are the two, in the order of their tasks."""

    def __init__(self, nodes: tuple[str, str], conflicts: Sequence[Conflict]) -> None:
        self.nodes = nodes
        super().__init__(tuple(conflicts))
        self.args = (
            f"nodes {nodes[0]!r} and {nodes[1]!r} ran in one superstep and do not merge: {self.args[0]}. "
            "Let one of them write elsewhere or run after the other, and continue from the checkpoint before them",
        )


def note_channel(error: Exception, channel: str, value: Any) -> None:
    error.add_note(
        f"channel {channel!r} was given a {type(value).__name__}, which no checkpoint can keep: return plain values, "
        "messages or dataclasses, or annotate the channel `UntrackedValue` if it need not be kept"
    )
