"""Prefix hints: while a run's first steps execute, an idle engine reads the beginning of its first model call.

A hint has no result, so it is no operation of the journal. Nobody waits for it, it ends with the run, and a failure
is only reported to observers.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from ramify.compiler.plan import PREFIX, PlanOp
from ramify.runtime.events import Event, PrefixHinted
from ramify.runtime.execution.model_calls import LLMProvider
from ramify.runtime.execution.run import Run
from ramify.serving.errors import ServingError
from ramify.serving.types import Message


def send_prefix_hint(
    run: Run,
    function: Callable[..., Any],
    answered: Collection[str],
    provider: LLMProvider,
    emit: Callable[[Event], None],
) -> None:
    """Start sending the plan's prefix hint. `answered`: operations whose model calls are in the journal; they are not
    called again, so they need no hint."""
    op = next((op for op in run.plan.ops if PREFIX in op.attrs), None)
    if op is None or op.id in answered:
        return
    task = asyncio.get_running_loop().create_task(_send(run, op, function, provider, emit))
    run.ahead.add(task)
    task.add_done_callback(run.ahead.discard)


async def _send(
    run: Run, op: PlanOp, function: Callable[..., Any], provider: LLMProvider, emit: Callable[[Event], None]
) -> None:
    begun = run.clock()
    try:
        why = await _read_ahead(op.attrs[PREFIX], function, provider)
    except ServingError as error:  # the model call itself will report it
        why = str(error)
    except Exception as error:  # noqa: BLE001  objects of a user's module may raise when they are inspected
        why = f"{type(error).__name__}: {error}"
    emit(PrefixHinted(run.record.id, op.id, why, run.clock() - begun))


async def _read_ahead(prefix: Mapping[str, Any], function: Callable[..., Any], provider: LLMProvider) -> str:
    """Send the hint. Returns why the engine did not read it, "" if it did."""
    messages: list[Message] = []
    for said in prefix["messages"]:
        text = _text_of(said, function)
        if text is None:
            shown = f"{said['name'] or 'a literal'} of {said['module']}"
            return f"{shown} is not the text from which the plan was made"
        messages.append(Message(said["role"], text))
    client = await provider()
    return await client.hint(messages, model=prefix["model"])


def _text_of(said: Mapping[str, str], function: Callable[..., Any]) -> str | None:
    """Return the text with the plan's digest, from the place that the plan names; None if it has changed."""
    plain: Any = inspect.unwrap(function)
    module = sys.modules.get(said["module"])
    home: Mapping[str, object] = {} if module is None else vars(module)
    if getattr(plain, "__module__", None) == said["module"]:
        home = plain.__globals__
    found = _named(said["name"], home) if said["name"] else _literals(home)
    digest = said["digest"]
    return next((text for text in found if isinstance(text, str) and _digest(text) == digest), None)


def _named(name: str, home: Mapping[str, object]) -> Iterator[object]:
    first, *rest = name.split(".")
    value = home.get(first)
    for attribute in rest:
        value = inspect.getattr_static(value, attribute, None)
    yield value


def _literals(home: Mapping[str, object]) -> Iterator[object]:
    """Yield the constants in the functions of a module."""
    todo: list[CodeType] = []
    for value in home.values():
        if callable(value) and not isinstance(value, type):
            plain = inspect.unwrap(value)
            todo += [plain.__code__] if isinstance(plain, FunctionType) else []
    for code in todo:  # grows: functions inside functions
        todo += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        yield from code.co_consts


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
