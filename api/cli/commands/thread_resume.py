"""`ramify resume` of a LangGraph thread: the app is the user's own, found in their file and invoked."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramify.cli.errors import TargetBroken, is_ours
from ramify.inspect.home import Home
from ramify.runtime.errors import RunError, RunFailed, RunWaiting, TargetNotFound
from ramify.runtime.journal.inbox import OpenQuestion, listed
from ramify.runtime.records import VOID, CheckpointId, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.langgraph.app.world_app import WorldApp
    from ramify.session import Runtime


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """`alone`: the answer that names no question, in a tuple; None where there is none."""

    by_id: Mapping[str, Any]
    alone: tuple[Any] | None = None


@dataclass(frozen=True, slots=True)
class ThreadResume:
    """How a thread goes on. `back_to`: as the user named it."""

    answers: AnswersGiven
    deadline_s: float | None = None
    back_to: str | None = None


_MAKES = ("WorldApp", "WorldGraph", "CompiledStateGraph", "Pregel")


def set_home_variables(home: Home) -> None:
    """The user's file names its home by the environment, where it names none itself: before it is loaded."""
    os.environ["RAMIFY_HOME"] = str(home.folder)
    if home.database_given is not None:
        os.environ["RAMIFY_DATABASE"] = home.database_given


def find_app(record: RunRecord, target: str | None, command: str = "resume") -> WorldApp:
    """The compiled graph of a thread's run: what `target` names, or the only one of its name in the file that
    compiled it. Raises `TargetNotFound`, saying how to name it to the `command`, and `TargetBroken`."""
    from ramify.runtime.langgraph.app.world_app import WorldApp

    if target is not None:
        found = _made(target, _load(target))
        if not isinstance(found, WorldApp):
            raise TargetNotFound(
                f"{target} is a {type(found).__name__}: name what ramify.compile(graph) returned, or a function "
                "without parameters that returns it"
            )
        return found
    where, _, _ = record.workflow.rpartition(":")
    found_there = list(_apps(where, record.name)) if where else []
    if len(found_there) != 1:
        number = "no" if not found_there else "more than one"
        raise TargetNotFound(
            f"{where or 'the program of run ' + record.id} has {number} app of graph {record.name!r} at its top "
            f"level: name it, `ramify {command} {record.id} --app FILE.py:NAME`. NAME is what ramify.compile(graph) "
            "returned, or a function without parameters that returns it"
        )
    return found_there[0]


def _apps(where: str, name: str) -> Iterator[WorldApp]:
    from ramify.runtime.langgraph.app.world_app import WorldApp

    module = _load(f"{where}:__dict__")
    seen: list[object] = []
    for found in module.values():
        if isinstance(found, WorldApp) and found.session.plan.name == name and found not in seen:
            seen.append(found)
            yield found


def _load(target: str) -> Any:
    """What it names. Raises `TargetBroken` also where the file invokes its graph: what that does was done already."""
    from ramify.cli.targets import load
    from ramify.runtime.langgraph.app.world_app import refuse_invocations

    with refuse_invocations():
        return load(target)


def _made(target: str, found: object) -> object:
    """What a function gives that says it makes an app, or says nothing and needs nothing."""
    if not inspect.isfunction(found) or inspect.signature(found).parameters:
        return found
    said = str(found.__annotations__.get("return", _MAKES[0]))
    if not any(name in said for name in _MAKES):
        return found
    try:
        return found()
    except Exception as error:
        raise TargetBroken(f"{target} could not make its app: {error}") from error


async def go_on(graph: WorldApp, runtime: Runtime, record: RunRecord, how: ThreadResume, back_to: str | None) -> Any:
    """Invoke the thread with nothing, or with the answer; the graph's state afterwards. `back_to`: a checkpoint.

    Raises `ThreadElsewhere` where this app keeps other checkpoints, `RunWaiting` where the graph stops at an
    interrupt, `RunFailed` where a node raised.
    """
    from langgraph.types import Command

    from ramify.runtime.langgraph.app.world_app import DEADLINE

    await _check_thread(graph, record, anywhere=back_to is not None)
    conf: dict[str, Any] = {"thread_id": record.thread_id}
    if back_to is not None:
        conf["checkpoint_id"] = await _saved_at(runtime, record, back_to)
        await _void(runtime, record, set())
        given = _as_given(how.answers)
    else:
        given = await _bound(graph, runtime, record, how.answers)
    if how.deadline_s is not None:
        conf[DEADLINE] = how.deadline_s
    command: Command[Any] | None = None if given is None else Command(resume=given.value)
    try:
        result = await graph.ainvoke(command, {"configurable": conf})
    except Exception as error:
        if is_ours(error):
            raise
        raise RunFailed(
            f"run {record.id} failed: {type(error).__name__}: {error}\nGo on with it by `ramify resume {record.id}`",
            run_id=record.id,
        ) from error
    asked, _ = await _interrupts(graph, runtime, record)
    await _void(runtime, record, {one.key for one in asked})
    stopped = result.get("__interrupt__") if isinstance(result, dict) else None
    if stopped:
        raise _waiting(record, asked, stopped[0].value)
    return result


@dataclass(frozen=True, slots=True)
class _Resume:
    """What LangGraph's `Command` is given: a value, or values by the ids of interrupts."""

    value: Any


def _as_given(answers: AnswersGiven) -> _Resume | None:
    """Unbound: of a state that the thread goes back to, LangGraph asks every interrupt again from the first."""
    if answers.alone is not None:
        return _Resume(answers.alone[0])
    return _Resume(dict(answers.by_id)) if answers.by_id else None


async def _bound(graph: WorldApp, runtime: Runtime, record: RunRecord, answers: AnswersGiven) -> _Resume | None:
    """Each answer that is given, bound to its interrupt and stored; all that are stored for interrupts that are open.

    Of a thread whose checkpoints are elsewhere, nothing is stored: LangGraph's own saver takes the answers.
    """
    from ramify.runtime.codec import codec
    from ramify.runtime.journal.inbox import Given, Inbox, store_answers

    asked, stored_here = await _interrupts(graph, runtime, record)
    if not asked:  # it stands at a breakpoint: an answer is for whatever asks next
        return _as_given(answers)
    by_id = {id: codec.encode(value) for id, value in answers.by_id.items()}
    given = Given(by_id, None if answers.alone is None else codec.encode(answers.alone[0]))
    inbox = Inbox.of_interrupts(record.id, asked, await runtime.store.answers(record.id))
    if not stored_here:
        texts = {one.key: one.answer_json for one in inbox.bound(given, time.time(), "")}
    else:
        await store_answers(runtime.store, inbox, given, clock=time.time, by="ramify resume")
        texts = {one.key: one.answer_json for one in await runtime.store.answers(record.id)}
    found = {one.native: codec.decode(texts[one.key]) for one in asked if one.key in texts}
    return _Resume(found) if found else None


async def _interrupts(graph: WorldApp, runtime: Runtime, record: RunRecord) -> tuple[list[OpenQuestion], bool]:
    """What the thread's interrupts ask; and whether its checkpoints are in the database of the runs."""
    from ramify.cli.targets import plain
    from ramify.runtime.langgraph.errors import ThreadElsewhere
    from ramify.runtime.langgraph.thread.stored_interrupts import as_question, open_interrupts

    try:
        return await asyncio.to_thread(open_interrupts, runtime.database, record), True
    except ThreadElsewhere:
        state = await graph.aget_state({"configurable": {"thread_id": record.thread_id}})
        waiting = [one for task in state.tasks if task.result is None for one in task.interrupts]  # not ended ones
        return [as_question(record, one.id, plain(one.value)) for one in waiting], False


async def _void(runtime: Runtime, record: RunRecord, but: set[str]) -> None:
    """Answers that an interrupt has taken are no answers to one of the same id, met after the thread went back."""
    taken = [one.key for one in await runtime.store.answers(record.id) if VOID not in one.key and one.key not in but]
    if taken:
        await runtime.store.void_answers(record.id, taken)


def _waiting(record: RunRecord, asked: Sequence[OpenQuestion], question: object) -> RunWaiting:
    if len(asked) > 1:
        return RunWaiting(
            f"run {record.id} asks {len(asked)} questions:\n{listed(asked)}\n"
            f"Answer them by `ramify resume {record.id} --answer ID=JSON`, where --answer may be repeated",
            question=question,
            run_id=record.id,
            questions=asked,
        )
    return RunWaiting(
        f"run {record.id} asks: {question}\nAnswer it by `ramify resume {record.id} --answer JSON`",
        question=question,
        run_id=record.id,
        questions=asked,
    )


async def _saved_at(runtime: Runtime, record: RunRecord, checkpoint: str) -> str:
    from ramify.runtime.langgraph.thread.stored_thread import checkpoint_of

    at = await runtime.store.checkpoint(CheckpointId(checkpoint))
    return await asyncio.to_thread(checkpoint_of, runtime.database, record, at, await runtime.journal(record.id))


async def _check_thread(graph: WorldApp, record: RunRecord, *, anywhere: bool) -> None:
    """That the app keeps this thread, and that it stands in this run; with `anywhere`, in whichever."""
    from langgraph.checkpoint.base import BaseCheckpointSaver

    from ramify.runtime.langgraph.errors import ThreadElsewhere
    from ramify.runtime.langgraph.thread.positions import ENV

    thread = record.thread_id or ""
    saver = graph.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise ThreadElsewhere(record.id, thread)
    saved = await saver.aget_tuple({"configurable": {"thread_id": thread}})
    if saved is None:
        raise ThreadElsewhere(record.id, thread)
    env = saved.checkpoint["channel_values"].get(ENV)
    if env is not None and env["run"] != record.id and not anywhere:
        raise RunError(
            f"thread {thread} has gone on as run {env['run']}: `ramify resume {env['run']}`, or `ramify fork "
            f"{record.id}` for another line of it"
        )
