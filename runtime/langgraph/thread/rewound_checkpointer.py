"""A checkpointer that shows a thread as it was before some of its tasks ended.

LangGraph continues from there as after a crash: it runs those tasks, and takes the writes of the others as they are.
What it writes stays in memory; the thread's own checkpointer is not changed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    PendingWrite,
    get_checkpoint_id,
)
from langgraph.errors import GraphInterrupt

from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_THREAD_ID,
    ERROR,
    ERROR_SOURCE_NODE,
    INTERRUPT,
    NO_WRITES,
    NULL_TASK_ID,
    RESUME,
)
from ramify.runtime.langgraph.thread.positions import ENV

_HOW_IT_ENDED = frozenset({ERROR, ERROR_SOURCE_NODE, INTERRUPT, RESUME})
_FAILED = "failed"


def restore_task_outcome(writes: deque[tuple[str, Any]]) -> None:
    """Correct the writes of a called `@task` as `RewoundCheckpointer` shows them: a task that failed runs again if it
    may, and one that asked a question still asks. Without this, its caller would be told that it returned None."""
    if [channel for channel, _ in writes] != [NO_WRITES]:
        return
    _, how = writes.pop()
    if how != _FAILED:
        writes.append((ERROR, GraphInterrupt()))


def checkpoints_by_task(saver: BaseCheckpointSaver[Any], thread: str, namespace: str) -> dict[str, list[str]]:
    """Return, by task, the ids of the checkpoints that hold writes of it, newest first. The task ran on these."""
    found: dict[str, list[str]] = {}
    for saved in saver.list(_config(thread, namespace)):
        for task in {write[0] for write in saved.pending_writes or ()}:
            found.setdefault(task, []).append(str(saved.checkpoint["id"]))
    return found


def newest_checkpoint(saver: BaseCheckpointSaver[Any], thread: str, namespace: str) -> str | None:
    saved = saver.get_tuple(_config(thread, namespace))
    return None if saved is None else str(saved.checkpoint["id"])


class RewoundCheckpointer(BaseCheckpointSaver[Any]):
    """Shows a thread as it was before some tasks ended.

    `cuts`: by namespace, the checkpoint that is shown as the newest. `undone`: tasks that have not ended there.
    `forked_from`: graphs that began on this state have not begun. `handled`: failed tasks stay failed, so that their
    error handler runs.
    """

    def __init__(
        self,
        real: BaseCheckpointSaver[Any],
        thread: str,
        shown_as: str,
        cuts: Mapping[str, str],
        undone: frozenset[str],
        *,
        forked_from: str | None,
        handled: bool,
    ) -> None:
        super().__init__(serde=real.serde)
        self._real = real
        self._thread = thread
        self._shown_as = shown_as
        self._cuts = cuts
        self._undone = undone
        self._forked_from = forked_from
        self._handled = handled
        self._new: dict[str, CheckpointTuple] = {}  # by namespace: the newest checkpoint

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        conf = config[CONF]
        namespace, id = conf.get(CONFIG_KEY_CHECKPOINT_NS, ""), get_checkpoint_id(config) or None
        new = self._new.get(namespace)
        if new is not None and id in (None, new.checkpoint["id"]):
            return new
        cut = self._cuts.get(namespace)
        found = self._real.get_tuple(_config(self._thread, namespace, id or cut))
        if found is None or (namespace and self._has_not_begun(found)):
            return None
        writes = list(found.pending_writes or ())
        if found.checkpoint["id"] == cut:
            writes = self._writes(writes)
        before = found.parent_config and {**found.parent_config, CONF: self._as_shown(found.parent_config[CONF])}
        return found._replace(
            config={**found.config, CONF: self._as_shown(found.config[CONF])},
            pending_writes=writes,
            parent_config=before,
        )

    def _has_not_begun(self, saved: CheckpointTuple) -> bool:
        env = saved.checkpoint["channel_values"].get(ENV)
        return self._forked_from is not None and env is not None and env.get("base") == self._forked_from

    def _as_shown(self, conf: Mapping[str, Any]) -> dict[str, Any]:
        return {**conf, CONFIG_KEY_THREAD_ID: self._shown_as}

    def _writes(self, writes: Sequence[PendingWrite]) -> list[PendingWrite]:
        """Filter the writes. Of undone tasks keep only people's answers. Of the others keep what they wrote, or at
        least a mark that they are done. A `@task` with that mark is corrected by `restore_task_outcome`."""
        kept, done, failed = list[PendingWrite](), set[str](), set[str]()
        for task, channel, value in writes:
            if channel == ERROR:
                failed.add(task)
            if task in self._undone:
                if channel == RESUME or (self._handled and channel in (ERROR, ERROR_SOURCE_NODE)):
                    kept.append((task, channel, value))
            elif channel not in _HOW_IT_ENDED or task == NULL_TASK_ID or self._handled:
                done.add(task)
                kept.append((task, channel, value))
        left = {task for task, _, _ in writes} - done - self._undone
        return [*kept, *((task, NO_WRITES, _FAILED if task in failed else None) for task in sorted(left))]

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return nothing: running a node does not list checkpoints."""
        return iter(())

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        namespace = config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")
        here = _config(self._shown_as, namespace, checkpoint["id"])
        self._new[namespace] = CheckpointTuple(here, checkpoint, metadata, config, [])
        return here

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        namespace, id = config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, ""), get_checkpoint_id(config)
        new = self._new.get(namespace)
        if new is not None and new.checkpoint["id"] == id:
            others = [one for one in new.pending_writes or () if one[0] != task_id]
            mine = [(task_id, channel, value) for channel, value in writes]
            self._new[namespace] = new._replace(pending_writes=[*others, *mine])

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._real.get_next_version(current, channel)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self.put_writes(config, writes, task_id, task_path)


def _config(thread: str, namespace: str, id: str | None = None) -> RunnableConfig:
    named = {} if id is None else {CONFIG_KEY_CHECKPOINT_ID: id}
    return {CONF: {CONFIG_KEY_THREAD_ID: thread, CONFIG_KEY_CHECKPOINT_NS: namespace, **named}}
