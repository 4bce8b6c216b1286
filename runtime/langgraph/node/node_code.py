"""The user's code of a node, run as LangGraph runs it in a plain graph.

Traces and event streams are the same: a sequence runs step by step, each step under its number, and if somebody
listens to events, the steps run as streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableSequence
from langchain_core.runnables.config import patch_config, var_child_runnable_config

from ramify.runtime.langgraph.compat import RunnableCallable, RunnableSeq


class Code:
    """The runnable that the user gave to `add_node`; a sequence is unpacked.

    Graphs and tasks that the code calls without a config use the ambient one, which is set while it runs."""

    def __init__(self, bound: Runnable[Any, Any]) -> None:
        steps = bound.steps if isinstance(bound, RunnableSequence | RunnableSeq) else [bound]
        self._first, self._rest = steps[0], steps[1:]

    @property
    def is_function(self) -> bool:
        """Whether it is one function."""
        return not self._rest and isinstance(self._first, RunnableCallable)

    @property
    def places(self) -> list[Runnable[Any, Any]]:
        """Placeholders for every step but the first, so that the writes after them keep their numbers. The first
        place runs all steps."""
        return [_PassThrough() for _ in self._rest]

    def run(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """Run the steps. `extra` holds keyword arguments for the first step. If `streamed`, each step gets the chunks
        of the one before."""
        token = var_child_runnable_config.set(config)
        try:
            if streamed:
                chunks = self._first.stream(value, config, **extra)
                for number, step in enumerate(self._rest, 2):
                    chunks = step.transform(chunks, _numbered(config, number))
                return _joined(list(chunks))
            value = self._first.invoke(value, config, **extra)
            for number, step in enumerate(self._rest, 2):
                value = step.invoke(value, _numbered(config, number))
        finally:
            var_child_runnable_config.reset(token)
        return value

    async def arun(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """The async counterpart of `run`."""
        token = var_child_runnable_config.set(config)
        try:
            if streamed:
                return await self._astreamed(value, config, extra)
            value = await self._first.ainvoke(value, config, **extra)
            for number, step in enumerate(self._rest, 2):
                value = await step.ainvoke(value, _numbered(config, number))
        finally:
            var_child_runnable_config.reset(token)
        return value

    async def _astreamed(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> Any:
        async with AsyncExitStack() as stack:
            chunks: AsyncIterator[Any] = self._first.astream(value, config, **extra)
            _closed_by(stack, chunks)
            for number, step in enumerate(self._rest, 2):
                chunks = step.atransform(chunks, _numbered(config, number))
                _closed_by(stack, chunks)
            return _joined([chunk async for chunk in chunks])


class _PassThrough(Runnable[Any, Any]):
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return input


def _closed_by(stack: AsyncExitStack, chunks: Any) -> None:
    if hasattr(chunks, "aclose"):
        stack.push_async_callback(chunks.aclose)


def _joined(chunks: list[Any]) -> Any:
    """Combine the chunks of a stream as a sequence does: their sum, or the last one if they cannot be added."""
    whole, *rest = chunks or [None]
    for chunk in rest:
        try:
            whole = whole + chunk
        except TypeError:
            whole = chunk
    return whole


def _numbered(config: RunnableConfig, number: int) -> RunnableConfig:
    """Return the first step's config with the number of another step."""
    manager = config.get("callbacks")
    if not isinstance(manager, BaseCallbackManager):
        return config
    mine = manager.copy()
    mine.remove_tags(["seq:step:1"])
    mine.add_tags([f"seq:step:{number}"], inherit=False)
    return patch_config(config, callbacks=mine)
