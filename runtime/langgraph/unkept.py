"""A value that no checkpoint can keep: the serialiser's own error, with a note beneath that names the channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ramify.runtime.langgraph.env import ENV

if TYPE_CHECKING:  # what only looks at a thread loads no graph
    from langgraph.pregel._loop import PregelLoop


def name_channel(error: Exception, channel: str, value: Any) -> None:
    error.add_note(
        f"channel {channel!r} was given a {type(value).__name__} that no checkpoint can keep: return plain values, "
        "messages or dataclasses, or annotate the channel `UntrackedValue` if it need not be kept"
    )


def find_channel(error: BaseException, loop: PregelLoop | None) -> None:
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
                name_channel(error, channel, value)
                return


def _written(loop: PregelLoop) -> Iterator[tuple[str, Any]]:
    """What the tasks of the last superstep wrote, and what the channels hold."""
    for task in loop.tasks.values():
        yield from ((channel, value) for channel, value in task.writes if channel in loop.channels)
    for name, channel in loop.channels.items():
        if name != ENV and channel.is_available():
            yield name, channel.checkpoint()
