"""A node's own code, run as LangGraph runs it in a plain graph, so that no trace and no stream of events tells the
two apart: a sequence step by step, each under its number, and as streams where somebody listens to events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableSequence
from langchain_core.runnables.config import patch_config, var_child_runnable_config
from langgraph._internal._runnable import RunnableSeq


class Code:
    """What the user gave to `add_node`, a sequence unpacked."""

    def __init__(self, bound: Runnable[Any, Any]) -> None:
        self._steps = list(bound.steps) if isinstance(bound, RunnableSequence | RunnableSeq) else [bound]

    @property
    def places(self) -> list[Runnable[Any, Any]]:
        """For every step but the first, what stands in its place in the node, so that the writes after it keep their
        numbers: the first place runs them all."""
        return [_Place() for _ in self._steps[1:]]

    def run(self, value: Any, config: RunnableConfig, extra: dict[str, Any], *, streamed: bool) -> Any:
        """`extra` is for the first step. `streamed`: each step is handed what the one before yields."""
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
        """As `run`."""
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
    """What a sequence makes of a stream's chunks: their sum, or the last of what has none."""
    whole, *rest = chunks or [None]
    for chunk in rest:
        try:
            whole = whole + chunk
        except TypeError:
            whole = chunk
    return whole


def _numbered(config: RunnableConfig, number: int) -> RunnableConfig:
    """The config of the first step, made that of another."""
    manager = config.get("callbacks")
    if number == 1 or not isinstance(manager, BaseCallbackManager):
        return config
    mine = manager.copy()
    mine.remove_tags(["seq:step:1"])
    mine.add_tags([f"seq:step:{number}"], inherit=False)
    return patch_config(config, callbacks=mine)


@contextmanager
def _ambient(config: RunnableConfig) -> Iterator[None]:
    """Graphs and tasks that the code calls without a config find this one."""
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)
