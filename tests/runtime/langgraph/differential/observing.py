"""What the caller of a graph sees, without what differs between any two runs."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pydantic
from langgraph.types import Command

if TYPE_CHECKING:
    from tests.runtime.langgraph.differential.pieces import Piece

MODES = ["values", "updates", "custom", "messages", "debug", "tasks", "checkpoints"]
RESUMES = 8
CONFIG: Any = {"configurable": {"thread_id": "1"}, "max_concurrency": 1, "recursion_limit": 12}
UUID = re.compile(r"\b(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})\b")
ELAPSED = re.compile(r"elapsed: [\d.]+")
DATED = {"timestamp", "ts", "thread_id", "created_at"}


class Comparable:
    """A value without times, and with ids replaced by the order of their first use."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(str(key)): self(each) for key, each in value.items() if key not in DATED}
        if isinstance(value, list | tuple):
            return [self(each) for each in value]
        if isinstance(value, pydantic.BaseModel):  # a message: its `repr` takes milliseconds
            return [type(value).__name__, self(vars(value))]
        if isinstance(value, int | float | bool | None):
            return value
        return self._text(ELAPSED.sub("", value if isinstance(value, str) else repr(value)))

    def _text(self, text: str) -> str:
        return UUID.sub(lambda found: self._ids.setdefault(found[0], f"id{len(self._ids)}"), text)


def answer(chunks: list[Any], answers: int) -> Any:
    """Return the input to continue with: an answer to every interrupt that was streamed, or None at the end."""
    last = [data for _, mode, data in chunks if mode == "values" and "__interrupt__" in (data or ())]
    if not last or chunks[-1][1] == "error" or answers >= RESUMES:
        return None
    return Command(resume={one.id: f"answer{answers}" for one in last[-1]["__interrupt__"]})


async def streamed(graph: Any, given: Any, config: Any, is_async: bool, **options: Any) -> list[Any]:
    """Return (namespace, mode, data) of each chunk, and the error at the end if there is one."""
    options = {"stream_mode": MODES, "subgraphs": True, **options}
    chunks: list[Any] = []
    try:
        if is_async:
            async for chunk in graph.astream(given, config, **options):
                chunks.append(chunk)
        else:
            for chunk in graph.stream(given, config, **options):
                chunks.append(chunk if len(chunk) == 3 else ((), *chunk))
    except Exception as error:  # noqa: BLE001  # whatever it is: the other graph has to raise the same
        chunks.append(((), "error", f"{type(error).__name__}: {error}"))
    return chunks


def history(graph: Any, same: Comparable) -> list[Any]:
    try:
        states = list(graph.get_state_history(CONFIG))
    except Exception as error:  # noqa: BLE001  # a state that its own schema refuses
        return [same(["history", f"{type(error).__name__}: {error}"])]
    return [same(["history", state.values, state.next, state.metadata]) for state in states]


def stated(graph: Any, config: Any) -> list[Any]:
    try:
        state = graph.get_state(config, subgraphs=True)
    except Exception as error:  # noqa: BLE001  # such as two values for a channel that holds one
        return ["state", f"{type(error).__name__}: {error}"]
    return ["state", state.values, state.next, state.interrupts, list(map(_task, state.tasks))]


def seen(graph: Any, piece: Piece, is_async: bool) -> list[Any]:
    return asyncio.run(_seen(graph, piece, is_async))


async def _seen(graph: Any, piece: Piece, is_async: bool) -> list[Any]:
    """Keep one order for async graphs. In sync graphs parallel tasks are in any order, so their events are sorted."""
    in_order = is_async and not piece.at_once
    config = CONFIG if in_order else {**CONFIG, "max_concurrency": None}
    same, found = Comparable(), list[Any]()
    for first in piece.given:
        given, answers = first, 0
        while True:
            run = streamed(graph, given, config, is_async, **piece.calls)
            chunks = await run if is_async else await asyncio.to_thread(asyncio.run, run)
            found.extend(same(chunk) for chunk in chunks)
            given, answers = answer(chunks, answers), answers + 1
            found += same(stated(graph, config))
            if given is None:
                break
    found += history(graph, same)
    return found if in_order else sorted(map(_without_ids, found))


def _task(task: Any) -> Any:
    inner = task.state
    within = None if not hasattr(inner, "values") else [inner.values, inner.next, list(map(_task, inner.tasks))]
    return [task.name, task.path, task.error, task.interrupts, task.result, within]


def _without_ids(chunk: Any) -> str:
    return re.sub(r"\bid\d+\b", "id", repr(chunk))
