"""What can go wrong when a LangGraph graph runs over worlds.

RunError
└── GraphError
    ├── UnsupportedGraph   something of LangGraph's that would lose files here, refused before it can
    ├── WorldLost          the files of a node that the plan does not seal went with the process that held them
    ├── StateGone          a checkpoint's files are lost or damaged; says where the thread can go on
    ├── AppClosed      the app was closed
    ├── ThreadElsewhere    a thread's checkpoints are not in this home's database, or cannot be read there
    ├── NoStateThere       the graph had no state of its own at that checkpoint
    ├── TypeNotAllowed     a checkpoint names a type that this program does not have: nothing is imported or called
    └── LangGraphChanged   this LangGraph has not the inner shape that Ramify was written against
InvokedWhileLoaded         a user's file runs its graph where it is only looked for
MergeConflict
└── NodesConflict          two nodes of one superstep changed the same thing; names both
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ramify.fork_engine.errors import MergeConflict
from ramify.fork_engine.types import Conflict
from ramify.runtime.errors import RunError
from ramify.runtime.langgraph.thread.positions import ENV

if TYPE_CHECKING:
    from langgraph.pregel._loop import PregelLoop


class GraphError(RunError):
    """Anything that is particular to graphs over worlds."""


class UnsupportedGraph(GraphError):
    """A part of LangGraph that does not go together with worlds yet."""


class WorldLost(GraphError):
    """Files that no snapshot held are gone."""

    def __init__(self, branch: str) -> None:
        super().__init__(
            f"the plan has no SEAL where branch {branch} stands at that checkpoint: its files were only in a live "
            "world, which is gone. Go on from the checkpoint before the node"
        )


class StateGone(GraphError):
    """A snapshot is not in the store, or not whole, and is not made again: `refused` says why. `whole` is the newest
    checkpoint before it whose files are there: Ramify's id of it, None where there is none."""

    def __init__(self, run: str, snapshot: str, why: str, refused: str, whole: str | None) -> None:
        self.whole = whole
        onward = (
            "nor can any state before it be mounted: start a new thread"
            if whole is None
            else f"go back to the newest whole state before it: `ramify resume {run} --from {whole}`, or in Python "
            "`app.invoke(None, state.config)` with the state of `app.get_state_history` that stands there"
        )
        super().__init__(
            f"the files of snapshot {snapshot[:12]} are lost or damaged ({why}), and cannot be made again: "
            f"{refused}. {onward[0].upper()}{onward[1:]}"
        )


class InvokedWhileLoaded(RuntimeError):
    """The command line looks for an app in a user's file, and the file runs it: not to be done a second time."""

    def __init__(self) -> None:
        super().__init__(
            "it invokes its graph at its top level, which would be done again: put that under "
            "`if __name__ == '__main__':`"
        )


class AppClosed(GraphError):
    """The app was closed."""


class ThreadElsewhere(GraphError):
    """The checkpoints of a thread are kept by a saver that only its own program has."""

    def __init__(self, run: str, thread: str) -> None:
        super().__init__(
            f"the checkpoints of LangGraph thread {thread} (run {run}) are not in this home's database: its saver "
            "keeps them in memory or elsewhere. Go on with it in Python, or compile the graph with "
            "checkpointer=ramify.graph.saver() next time"
        )

    @classmethod
    def serialised(cls, kind: str) -> ThreadElsewhere:
        """It is kept here, in a form that only the program's own serialiser reads."""
        error = cls("", "")
        error.args = (
            f"the thread's checkpoints were written by a serialiser of your own ({kind}): go on with it in Python, "
            "where that is given to the saver",
        )
        return error


class NoStateThere(GraphError):
    """A checkpoint inside a superstep."""

    def __init__(self, checkpoint: str, thread: str) -> None:
        super().__init__(
            f"thread {thread} has no state of its own at checkpoint {checkpoint[:10]}: it lies inside a superstep, "
            "or the saver has pruned what stood there. Name one before or after it; `ramify log` lists them"
        )


class TypeNotAllowed(GraphError):
    """A checkpoint, or a cached result, names what is no type of this program's own."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"a checkpoint names {module}.{name}, which is no class of data in a module that this program has "
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
        error.args = (f"a checkpoint holds a value in form {code}, which this version of Ramify does not know",)
        return error


class LangGraphChanged(GraphError):
    """Not the LangGraph that Ramify knows."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"this version of langgraph gives a node no {missing}, so worlds cannot follow its checkpoints. "
            "Install langgraph>=1.2,<1.3"
        )


class NodesConflict(MergeConflict):
    """Nodes that ran side by side changed the same thing. `nodes` are the two, in the order of their tasks."""

    def __init__(self, nodes: tuple[str, str], conflicts: Sequence[Conflict]) -> None:
        self.nodes = nodes
        super().__init__(tuple(conflicts))
        self.args = (
            f"nodes {nodes[0]!r} and {nodes[1]!r} ran in one superstep and do not merge: {self.args[0]}. "
            "Let one write elsewhere or run after the other, and go on from the checkpoint before them",
        )


def note_channel(error: Exception, channel: str, value: Any) -> None:
    error.add_note(
        f"channel {channel!r} was given a {type(value).__name__} that no checkpoint can keep: return plain values, "
        "messages or dataclasses, or annotate the channel `UntrackedValue` if it need not be kept"
    )


def note_unserializable_channel(error: BaseException, loop: PregelLoop | None) -> None:
    """Where a checkpointer of others raised it: ask its serialiser again, channel by channel, which value it was."""
    checkpointer = loop.checkpointer if loop is not None else None
    if loop is None or checkpointer is None or not isinstance(error, TypeError | ValueError):
        return
    if any("no checkpoint can keep" in note for note in getattr(error, "__notes__", ())):
        return
    for channel, value in _written(loop):
        try:
            checkpointer.serde.dumps_typed(value)
        except (TypeError, ValueError) as again:
            if str(again) == str(error):
                note_channel(error, channel, value)
                return


def _written(loop: PregelLoop) -> Iterator[tuple[str, Any]]:
    """What the tasks of the last superstep wrote, and what the channels hold."""
    for task in loop.tasks.values():
        yield from ((channel, value) for channel, value in task.writes if channel in loop.channels)
    for name, channel in loop.channels.items():
        if name != ENV and channel.is_available():
            yield name, channel.checkpoint()
