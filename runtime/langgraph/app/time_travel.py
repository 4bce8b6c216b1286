"""Fork a thread where LangGraph cannot: at a checkpoint inside a subgraph, and with an edited world.

Both kinds of fork copy saved checkpoints under new ids with the wanted changes. No node runs and no channel is
written, so the tasks that come next stay the same.
"""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.pregel import Pregel
from langgraph.types import PregelTask

from ramify.runtime.langgraph.compat import (
    CONF,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    NS_END,
    NS_SEP,
    merge_configs,
    required_checkpointer_of,
)
from ramify.runtime.langgraph.errors import UnsupportedGraph
from ramify.runtime.langgraph.thread.positions import ENV, StoredPosition


def names_subgraph_checkpoint(app: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> bool:
    """Tell whether the config names a checkpoint of a subgraph that LangGraph would forget.

    LangGraph does not forget checkpoints of a subgraph that keeps its state between calls (`checkpointer=True`).
    Their namespace is `node`, not `node:task`, so the next task of the node finds it. If one such graph is on the
    way, or below the checkpoint, leave everything to LangGraph: a copied checkpoint would find the state in which
    that graph is now, with the answers to its questions.
    """
    conf = config.get(CONF, {})
    namespace = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    if CONFIG_KEY_TASK_ID in conf or not namespace or namespace not in conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}):
        return False
    parts = namespace.split(NS_SEP)
    return all(NS_END in part for part in parts) and not _keeps_state_below(app, parts)


def _keeps_state_below(app: Pregel[Any, Any, Any, Any], way: list[str]) -> bool:
    """Whether a graph below the subgraph at this namespace keeps its state between calls."""
    place = NS_SEP.join(part.partition(NS_END)[0] for part in way)
    return any(
        getattr(graph, "checkpointer", None) is True
        for name, graph in app.get_subgraphs(recurse=True)
        if name.startswith(f"{place}{NS_SEP}")
    )


def fork_at_subgraph_checkpoint(app: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> None:
    """Fork the thread so that it stands at a subgraph's checkpoint. Copy every graph on the way, each under the task
    that its copied parent will run.

    LangGraph 1.1.7 and later forget the subgraph's checkpoint here and run the whole subgraph (its issue 8458).

    Raises `UnsupportedGraph` if a checkpoint on the way was not kept.
    """
    conf = config[CONF]
    saver = required_checkpointer_of(app, config)
    ids, wanted = conf[CONFIG_KEY_CHECKPOINT_MAP], conf[CONFIG_KEY_CHECKPOINT_NS].split(NS_SEP)
    saved = _saved(saver, conf[CONFIG_KEY_THREAD_ID], "", ids.get(""))
    at = _copied(saver, saved, "", {})
    parents = {"": at[CONF][CONFIG_KEY_CHECKPOINT_ID]}
    namespace = ""
    for depth, part in enumerate(wanted):
        source = NS_SEP.join(wanted[: depth + 1])
        node, _, id = part.partition(NS_END)
        task = _same_task(app.get_state(saved.config).tasks, app.get_state(at).tasks, node, id)
        if task is None:
            raise UnsupportedGraph(
                f"at checkpoint {at[CONF]} node {node!r} does not come next: name another checkpoint"
            )
        here = f"{node}{NS_END}{task.id}"
        namespace = here if not namespace else f"{namespace}{NS_SEP}{here}"
        saved = _saved(saver, conf[CONFIG_KEY_THREAD_ID], source, ids.get(source))
        at = _copied(saver, saved, namespace, dict(parents))
        parents[namespace] = at[CONF][CONFIG_KEY_CHECKPOINT_ID]


def _same_task(before: tuple[PregelTask, ...], now: tuple[PregelTask, ...], node: str, id: str) -> PregelTask | None:
    """Return the task among those of the copied checkpoint that corresponds to `id`. `Send` may make several tasks of
    one node."""
    by_place = [task for task, was in zip(now, before, strict=False) if was.id == id and task.name == node]
    return next(iter([*by_place, *(task for task in now if task.name == node)]), None)


def with_env(saver: BaseCheckpointSaver[Any], saved: CheckpointTuple, env: StoredPosition) -> RunnableConfig:
    """Put a copy of a checkpoint with another world; return its config."""
    checkpoint = saved.checkpoint
    versions = checkpoint["channel_versions"]  # of one type, as LangGraph compares them
    version = saver.get_next_version(max(versions.values(), default=None), None)
    changed = saved._replace(
        checkpoint={
            **checkpoint,
            "channel_values": {**checkpoint["channel_values"], ENV: env},
            "channel_versions": {**versions, ENV: version},
        }
    )
    namespace = saved.config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")
    return _copied(saver, changed, namespace, saved.metadata.get("parents", {}), {ENV: version})


def saved_at(
    app: Pregel[Any, Any, Any, Any], config: RunnableConfig
) -> tuple[BaseCheckpointSaver[Any], CheckpointTuple]:
    saver = required_checkpointer_of(app, config)
    saved = saver.get_tuple(merge_configs(app.config, config))
    if saved is None:
        raise UnsupportedGraph(f"there is no checkpoint at {config.get(CONF)}")
    return saver, saved


def _saved(saver: BaseCheckpointSaver[Any], thread: str, namespace: str, id: str | None) -> CheckpointTuple:
    config = {CONFIG_KEY_THREAD_ID: thread, CONFIG_KEY_CHECKPOINT_NS: namespace, CONFIG_KEY_CHECKPOINT_ID: id}
    saved = saver.get_tuple({CONF: config})
    if saved is None:
        raise UnsupportedGraph(f"there is no checkpoint {id} in {namespace or 'the thread'!r}: it was not kept")
    return saved


def _copied(
    saver: BaseCheckpointSaver[Any],
    saved: CheckpointTuple,
    namespace: str,
    parents: dict[str, str],
    versions: dict[str, str | int | float] | None = None,
) -> RunnableConfig:
    """Put a checkpoint again under a new id, and perhaps in another namespace."""
    conf = saved.config[CONF]
    moved = namespace != conf.get(CONFIG_KEY_CHECKPOINT_NS, "")
    below = {
        CONFIG_KEY_THREAD_ID: conf[CONFIG_KEY_THREAD_ID],
        CONFIG_KEY_CHECKPOINT_NS: namespace,
        **({} if moved else {CONFIG_KEY_CHECKPOINT_ID: conf[CONFIG_KEY_CHECKPOINT_ID]}),
    }
    new = dict(saved.checkpoint["channel_versions"]) if moved else versions or {}
    metadata: CheckpointMetadata = {**saved.metadata, "source": "fork", "parents": parents}
    return saver.put({CONF: below}, {**saved.checkpoint, "id": str(uuid6())}, metadata, new)
