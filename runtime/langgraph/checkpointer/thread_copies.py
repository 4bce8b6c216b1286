"""Copy threads from one checkpointer to another, with all that LangGraph needs to go on: checkpoints, their parents,
metadata, and the writes of tasks that have finished or interrupted.

Any two checkpointers will do: only LangGraph's own interface is used. A copy that was killed is finished by the same
call, since what is there already is written again unchanged.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointTuple

from ramify.runtime.langgraph.checkpointer.channel_versions import Version, counter_of, text_version
from ramify.runtime.langgraph.checkpointer.checkpoint_reader import config_of
from ramify.runtime.langgraph.errors import ThreadNotCopied

_CHECKPOINT_KEYS = {"id", "channel_values", "channel_versions", "versions_seen"}


class CheckpointId(NamedTuple):
    ns: str
    id: str


class TaskId(NamedTuple):
    ns: str
    checkpoint: str
    task: str


class Threads(Protocol):
    """A checkpointer, and what LangGraph's interface tells only at great cost, or not at all."""

    @property
    def saver(self) -> BaseCheckpointSaver[Any]: ...
    def names(self) -> list[str]: ...
    def checkpoints(self, thread: str) -> list[CheckpointId]:
        """Return a thread's checkpoints, oldest first."""

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        """Return where in the graph each task stands, which orders the writes of a superstep. Empty: unknown."""


@dataclass(frozen=True)
class ListedThreads:
    """The threads of any checkpointer, from its lists. It reads them whole."""

    saver: BaseCheckpointSaver[Any]

    def names(self) -> list[str]:
        return sorted({str(one.config["configurable"]["thread_id"]) for one in self.saver.list(None)})

    def checkpoints(self, thread: str) -> list[CheckpointId]:
        found = (one.config["configurable"] for one in self.saver.list({"configurable": {"thread_id": thread}}))
        return sorted((CheckpointId(one["checkpoint_ns"], one["checkpoint_id"]) for one in found), key=lambda c: c.id)

    def task_paths(self, thread: str) -> Mapping[TaskId, str]:
        return {}


@dataclass(frozen=True)
class CopiedThread:
    """A thread that was copied: how many checkpoints, of which `new` were not in the target before."""

    thread: str
    checkpoints: int
    new: int


def copy_threads(
    source: BaseCheckpointSaver[Any], target: BaseCheckpointSaver[Any], threads: Iterable[str] | None = None
) -> list[CopiedThread]:
    """Copy these threads, or all, from one checkpointer to another, such as LangGraph's savers and `ramify.Saver`.

    Both are used through their methods that are not async. No program may run the threads meanwhile. A copy that was
    cut off is finished by the same call. The target's threads are never overwritten.

    Raises `ThreadNotCopied`, before anything is written, if the source has no such thread, or the target's thread of
    that name has checkpoints that the source does not have.
    """
    return copy_all(ListedThreads(source), ListedThreads(target), threads)


def copy_all(source: Threads, target: Threads, names: Iterable[str] | None = None) -> list[CopiedThread]:
    """As `copy_threads`."""
    there = source.names()
    wanted = there if names is None else list(dict.fromkeys(names))
    if missing := sorted(set(wanted) - set(there)):
        raise ThreadNotCopied.unknown(missing)
    known = set(target.names())
    before = {name: set(target.checkpoints(name)) if name in known else set() for name in wanted}
    if grown := [name for name in wanted if before[name] - set(source.checkpoints(name))]:
        raise ThreadNotCopied.elsewhere(grown)
    return [_copy(source, target, name, before[name]) for name in wanted]


def _copy(source: Threads, target: Threads, thread: str, before: set[CheckpointId]) -> CopiedThread:
    checkpoints, paths = source.checkpoints(thread), source.task_paths(thread)
    versions = _Versions(target.saver)
    for place in checkpoints:
        saved = _read(source.saver, thread, place)
        _put(target.saver, thread, place, saved, versions)
        _put_writes(target.saver, thread, place, saved, paths)
    return CopiedThread(thread, len(checkpoints), len(set(checkpoints) - before))


def _read(saver: BaseCheckpointSaver[Any], thread: str, place: CheckpointId) -> CheckpointTuple:
    try:
        saved = saver.get_tuple(config_of(thread, *place))
        if saved is None:
            raise ThreadNotCopied.changed(thread)
        if missing := _CHECKPOINT_KEYS - set(saved.checkpoint):
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
    except (ValueError, TypeError, LookupError) as error:  # what serialisers raise for bytes that are not theirs
        raise ThreadNotCopied.damaged(thread, place.id, error) from error
    return saved


def _put(
    saver: BaseCheckpointSaver[Any], thread: str, place: CheckpointId, saved: CheckpointTuple, versions: _Versions
) -> None:
    parent = None if saved.parent_config is None else saved.parent_config["configurable"]["checkpoint_id"]
    above: RunnableConfig = {
        "configurable": {"thread_id": thread, "checkpoint_ns": place.ns, "checkpoint_id": parent}
    }
    checkpoint = versions.adapted(saved.checkpoint)
    saver.put(above, checkpoint, saved.metadata, checkpoint["channel_versions"])


def _put_writes(
    saver: BaseCheckpointSaver[Any],
    thread: str,
    place: CheckpointId,
    saved: CheckpointTuple,
    paths: Mapping[TaskId, str],
) -> None:
    by_task: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for task, channel, value in saved.pending_writes or ():
        by_task[task].append((channel, value))
    for rank, (task, writes) in enumerate(by_task.items()):
        path = paths.get(TaskId(*place, task), f"{rank:08}")  # without paths, the order in which they were read
        saver.put_writes(config_of(thread, *place), writes, task, path)


class _Versions:
    """Channel versions in the form that a checkpointer goes on with."""

    def __init__(self, target: BaseCheckpointSaver[Any]) -> None:
        self._target = target

    def adapted(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint with versions that the target can compare with its next one.

        A number becomes the same count as text. Two branches of a thread may have given one number to different
        values, which savers that store values by their version would mix up: so its fraction is the value's digest.
        Raises `ThreadNotCopied` if the target counts in numbers, and the versions are text.
        """
        versions = checkpoint["channel_versions"]
        newest = max(versions.values(), default=None)
        if newest is None or self._goes_on(newest):
            return checkpoint
        if isinstance(newest, str):
            raise ThreadNotCopied.numbered()
        values = checkpoint["channel_values"]
        named: dict[str, Version] = {
            channel: _as_text(version, self._fraction(values, channel)) for channel, version in versions.items()
        }
        seen: dict[str, dict[str, Version]] = {
            node: {
                channel: named[channel] if versions.get(channel) == version else _as_text(version, 0.0)
                for channel, version in channels.items()
            }
            for node, channels in checkpoint["versions_seen"].items()
        }
        return {**checkpoint, "channel_versions": named, "versions_seen": seen}

    def _goes_on(self, version: Version) -> bool:
        """Tell whether the target's next version is of the same type."""
        try:
            return isinstance(self._target.get_next_version(version, None), str) == isinstance(version, str)
        except NotImplementedError:  # LangGraph's base class, for text
            return False

    def _fraction(self, values: Mapping[str, Any], channel: str) -> float:
        if channel not in values:
            return 0.0
        kind, data = self._target.serde.dumps_typed(values[channel])
        digest = hashlib.sha256(kind.encode() + data).digest()
        return (int.from_bytes(digest[:6]) + 1) / 2**49  # never 0, which is no value


def _as_text(version: Version, fraction: float) -> str:
    return version if isinstance(version, str) else text_version(counter_of(version), fraction)
