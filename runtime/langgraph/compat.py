"""All private names of LangGraph that Ramify uses, in one place, and functions around its private attributes.

LangGraph may change these in any release. So this module refuses a version that it was not written for, and names
what is missing. `checkpointer/compat.py` does the same for the distribution `langgraph-checkpoint`: it is separate so
that a command that only reads a thread need not load LangGraph's graphs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import weakref
from importlib.metadata import version
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

from ramify.runtime.langgraph.errors import LangGraphChanged

SUPPORTED = ("1.2",)
"""The minor versions of `langgraph` that this module was written for."""


def refuse_unsupported(distribution: str, supported: tuple[str, ...]) -> None:
    """Raise `LangGraphChanged` if the installed distribution has none of these version prefixes."""
    installed = version(distribution)
    if not any(installed == each or installed.startswith(f"{each}.") for each in supported):
        raise LangGraphChanged.version(distribution, installed, supported)


refuse_unsupported("langgraph", SUPPORTED)

try:
    from langgraph._internal._config import ensure_config, merge_configs, patch_configurable
    from langgraph._internal._constants import (
        CACHE_NS_WRITES,
        CONF,
        CONFIG_KEY_CALL,
        CONFIG_KEY_CHECKPOINT_ID,
        CONFIG_KEY_CHECKPOINT_MAP,
        CONFIG_KEY_CHECKPOINT_NS,
        CONFIG_KEY_DURABILITY,
        CONFIG_KEY_READ,
        CONFIG_KEY_RUNTIME,
        CONFIG_KEY_SEND,
        CONFIG_KEY_TASK_ID,
        CONFIG_KEY_THREAD_ID,
        ERROR,
        ERROR_SOURCE_NODE,
        INTERRUPT,
        NO_WRITES,
        NS_END,
        NS_SEP,
        NULL_TASK_ID,
        RESUME,
    )
    from langgraph._internal._fields import get_cached_annotated_keys, get_update_as_tuples
    from langgraph._internal._runnable import RunnableCallable, RunnableSeq, coerce_to_runnable
    from langgraph._internal._typing import MISSING
    from langgraph.pregel._algo import task_path_str
    from langgraph.pregel._call import identifier
    from langgraph.pregel._loop import PregelLoop
    from langgraph.pregel._read import PregelNode
    from langgraph.pregel._write import ChannelWrite
except ImportError as error:
    raise LangGraphChanged.name("langgraph", str(error)) from error

ROOT = "__root__"
"""The only channel of a graph whose state is a value of its own, not an object with fields."""

Saving = concurrent.futures.Future[Any] | asyncio.Future[Any] | None


def checkpoint_being_saved(loop: PregelLoop) -> Saving:
    """What is done when the checkpoint on which the loop stands is durable; None if nothing is being saved."""
    saving: Saving = getattr(loop, "_put_checkpoint_fut", None)
    return saving


def tell_cached(loop: PregelLoop, task: str) -> None:
    """Let the loop stream what this task writes as LangGraph streams a cached result."""
    vars(loop).setdefault("ramify_cached", set()).add(task)
    show, here = type(loop).output_writes, weakref.ref(loop)  # the loop would otherwise wait for gc

    def output_writes(task_id: str, writes: Any, *, cached: bool = False) -> None:
        if (found := here()) is not None:
            show(found, task_id, writes, cached=cached or task_id in vars(found)["ramify_cached"])

    loop.output_writes = output_writes  # type: ignore[method-assign]


def checkpointer_of(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """The checkpointer that the graph would use for an invocation with this config."""
    return graph._resolve_checkpointer(config)


def without_sync(config: RunnableConfig | None, options: dict[str, Any]) -> RunnableConfig | None:
    """Return the config for a graph without checkpointer, and change its options, so that durability "sync" is
    "async": LangGraph would wait for a checkpoint that nobody saves, and fails."""
    if options.get("durability") == "sync":
        options["durability"] = "async"
    inherits = ensure_config(config).get(CONF, {}).get(CONFIG_KEY_DURABILITY) == "sync"
    return patch_configurable(config, {CONFIG_KEY_DURABILITY: "async"}) if inherits else config


def required_checkpointer_of(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> BaseCheckpointSaver[Any]:
    """As `checkpointer_of`; raises LangGraph's own error if there is none."""
    return graph._state_checkpointer(config)


__all__ = [
    "CACHE_NS_WRITES",
    "CONF",
    "CONFIG_KEY_CALL",
    "CONFIG_KEY_CHECKPOINT_ID",
    "CONFIG_KEY_CHECKPOINT_MAP",
    "CONFIG_KEY_CHECKPOINT_NS",
    "CONFIG_KEY_DURABILITY",
    "CONFIG_KEY_READ",
    "CONFIG_KEY_RUNTIME",
    "CONFIG_KEY_SEND",
    "CONFIG_KEY_TASK_ID",
    "CONFIG_KEY_THREAD_ID",
    "ERROR",
    "ERROR_SOURCE_NODE",
    "INTERRUPT",
    "MISSING",
    "NO_WRITES",
    "NS_END",
    "NS_SEP",
    "NULL_TASK_ID",
    "RESUME",
    "ROOT",
    "SUPPORTED",
    "ChannelWrite",
    "PregelLoop",
    "PregelNode",
    "RunnableCallable",
    "RunnableSeq",
    "Saving",
    "checkpoint_being_saved",
    "checkpointer_of",
    "coerce_to_runnable",
    "ensure_config",
    "get_cached_annotated_keys",
    "get_update_as_tuples",
    "identifier",
    "merge_configs",
    "patch_configurable",
    "refuse_unsupported",
    "required_checkpointer_of",
    "task_path_str",
    "tell_cached",
    "without_sync",
]
