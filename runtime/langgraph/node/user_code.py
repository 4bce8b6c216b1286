"""Run a node's own code as LangGraph does in a plain graph, so that traces and event streams are the same.

A sequence runs step by step, each step under its number. If somebody listens to events, the steps run as streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableSequence
from langchain_core.runnables.config import patch_config, var_child_runnable_config

from ramify.runtime.langgraph.compat import RunnableSeq


class Code:
    """The runnable that the user gave to `add_node`; a sequence is unpacked."""

    def __init__(self, bound: Runnable[Any, Any]) -> None:
        self._steps = list(bound.steps) if isinstance(bound, RunnableSequence | RunnableSeq) else [bound]

    @property
    def places(self) -> list[Runnable[Any, Any]]:
        """Placeholders for every step but the first, so that the writes after them keep their numbers. The first
        place runs all steps."""
        return [_Place() for _ in self._steps[1:]]

    def run(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """Run the steps. `extra` holds keyword arguments for the first step. If `streamed`, each step gets the chunks
        of the one before."""
        with _ambient(config):
            if streamed:
                first, *rest = self._steps
                chunks = first.stream(value, config, **extra)
                for number, step in enumerate(rest, 2):
                    chunks = step.transform(chunks, _numbered(config, number))
                return _joined(list(chunks))
            for number, step in enumerate(self._steps, 1):
                value = step.invoke(value, _numbered(config, number), **(extra if number == 1 else {}))
        return value

    async def arun(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """The async counterpart of `run`."""
        with _ambient(config):
            if streamed:
                return await self._astreamed(value, config, extra)
            for number, step in enumerate(self._steps, 1):
                value = await step.ainvoke(value, _numbered(config, number), **(extra if number == 1 else {}))
        return value

    async def _astreamed(self, value: Any, config: RunnableConfig, extra: dict[str, Any]) -> Any:
        first, *rest = self._steps
        async with AsyncExitStack() as stack:
            chunks: AsyncIterator[Any] = first.astream(value, config, **extra)
            _closed_by(stack, chunks)
            for number, step in enumerate(rest, 2):
                chunks = step.atransform(chunks, _numbered(config, number))
                _closed_by(stack, chunks)
            return _joined([chunk async for chunk in chunks])


class _Place(Runnable[Any, Any]):
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
    if number == 1 or not isinstance(manager, BaseCallbackManager):
        return config
    mine = manager.copy()
    mine.remove_tags(["seq:step:1"])
    mine.add_tags([f"seq:step:{number}"], inherit=False)
    return patch_config(config, callbacks=mine)


class _ambient:
    """Sets the ambient config, which graphs and tasks use when the code calls them without one."""

    __slots__ = ("_config", "_token")

    def __init__(self, config: RunnableConfig) -> None:
        self._config = config

    def __enter__(self) -> None:
        self._token = var_child_runnable_config.set(self._config)

    def __exit__(self, *raised: object) -> None:
        var_child_runnable_config.reset(self._token)
