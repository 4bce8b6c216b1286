"""Resume a LangGraph thread: find its app in the user's file (`find_app`), and invoke it (`resume_thread`)."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramify.cli.errors import is_ours
from ramify.inspect.home import Home
from ramify.runtime.errors import RunError, RunFailed, RunWaiting, TargetBroken, TargetNotFound, error_text
from ramify.runtime.journal.inbox import OpenQuestion, listed
from ramify.runtime.records import VOID, CheckpointId, RunRecord

if TYPE_CHECKING:
    from ramify.runtime.langgraph.app.world_app import WorldApp
    from ramify.session import Runtime

_MAKES = ("WorldApp", "WorldGraph", "CompiledStateGraph", "Pregel")
"""Types that the annotation of a function may name which makes an app."""


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """`alone`: the answer that names no question, in a tuple; None if there is none."""

    by_id: Mapping[str, Any]
    alone: tuple[Any] | None = None


@dataclass(frozen=True, slots=True)
class ThreadResume:
    """How to resume a thread. `back_to`: as the user named it."""

    answers: AnswersGiven
    deadline_s: float | None = None
    back_to: str | None = None


def set_home_variables(home: Home) -> None:
    """Set $RAMIFY_HOME and $RAMIFY_DATABASE for the user's file, before it is loaded."""
    os.environ["RAMIFY_HOME"] = str(home.folder)
    if home.database_given is not None:
        os.environ["RAMIFY_DATABASE"] = home.database_given


def find_app(record: RunRecord, target: str | None, command: str = "resume") -> WorldApp:
    """The compiled graph of a thread's run: what `target` names, or the only app of that name in the file that
    compiled it.

    Raises `TargetNotFound`, with a hint for the `command`, and `TargetBroken`.
    """
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
    """What the target names. Raises `TargetBroken` if loading the file invokes its graph, whose effects happened
    before.
    """
    from ramify.cli.targets import load
    from ramify.runtime.langgraph.app.world_app import refuse_invocations

    with refuse_invocations():
        return load(target)


def _made(target: str, found: object) -> object:
    """The app that a function returns, if it takes no parameters and its annotation does not say otherwise."""
    if not inspect.isfunction(found) or inspect.signature(found).parameters:
        return found
    said = str(found.__annotations__.get("return", _MAKES[0]))
    if not any(name in said for name in _MAKES):
        return found
    try:
        return found()
    except Exception as error:
        raise TargetBroken(f"{target} could not make its app: {error}") from error


async def resume_thread(
    graph: WorldApp, runtime: Runtime, record: RunRecord, how: ThreadResume, back_to: str | None
) -> Any:
    """Invoke the thread with nothing, or with the answer; return the graph's state afterwards. `back_to`: a
    checkpoint.

    Raises `ThreadElsewhere` if this app stores other checkpoints, `RunWaiting` if the graph stops at an interrupt,
    `RunFailed` if a node raised.
    """
    from langgraph.types import Command

    from ramify.runtime.langgraph.app.world_app import DEADLINE

    await _check_thread(graph, record, anywhere=back_to is not None)
    conf: dict[str, Any] = {"thread_id": record.thread_id}
    if back_to is not None:
        conf["checkpoint_id"] = await _saved_at(runtime, record, back_to)
        await _void_answers(runtime, record, set())
        given = _as_given(how.answers)
    else:
        given = await _store_answers(graph, runtime, record, how.answers)
    if how.deadline_s is not None:
        conf[DEADLINE] = how.deadline_s
    command: Command[Any] | None = None if given is None else Command(resume=given.value)
    try:
        result = await graph.ainvoke(command, {"configurable": conf})
    except Exception as error:
        if is_ours(error):
            raise
        raise RunFailed(
            f"run {record.id} failed: {error_text(error)}\nContinue it with `ramify resume {record.id}`",
            run_id=record.id,
        ) from error
    asked, _ = await _interrupts(graph, runtime, record)
    await _void_answers(runtime, record, {one.key for one in asked})
    stopped = result.get("__interrupt__") if isinstance(result, dict) else None
    if stopped:
        raise _waiting(record, asked, stopped[0].value)
    return result


@dataclass(frozen=True, slots=True)
class _Resume:
    """The value of LangGraph's `Command(resume=…)`: one value, or values by the ids of interrupts."""

    value: Any


def _as_given(answers: AnswersGiven) -> _Resume | None:
    """The answers, not matched to questions: a thread that goes back asks every interrupt again from the first."""
    if answers.alone is not None:
        return _Resume(answers.alone[0])
    return _Resume(dict(answers.by_id)) if answers.by_id else None


async def _store_answers(
    graph: WorldApp, runtime: Runtime, record: RunRecord, answers: AnswersGiven
) -> _Resume | None:
    """Store each given answer for its interrupt; return all stored answers for open interrupts.

    If the thread's checkpoints are elsewhere, nothing is stored: LangGraph's own saver takes the answers.
    """
    from ramify.runtime.codec import codec
    from ramify.runtime.journal.inbox import Given, Inbox, store_answers

    asked, stored_here = await _interrupts(graph, runtime, record)
    if not asked:  # at a breakpoint: the answer is for the next question
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
    """The questions of the thread's interrupts; and whether its checkpoints are in the database of the runs."""
    from ramify.cli.targets import plain
    from ramify.runtime.langgraph.errors import ThreadElsewhere
    from ramify.runtime.langgraph.thread.stored_thread import as_question, open_interrupts

    try:
        return await asyncio.to_thread(open_interrupts, runtime.database, record), True
    except ThreadElsewhere:
        state = await graph.aget_state({"configurable": {"thread_id": record.thread_id}})
        unended = [task for task in state.tasks if task.result is None]
        waiting = [one for task in unended for one in task.interrupts]
        return [as_question(record, one.id, plain(one.value)) for one in waiting], False


async def _void_answers(runtime: Runtime, record: RunRecord, but: set[str]) -> None:
    """Void used answers, so that they do not answer an interrupt of the same id after the thread went back."""
    taken = [one.key for one in await runtime.store.answers(record.id) if VOID not in one.key and one.key not in but]
    if taken:
        await runtime.store.void_answers(record.id, taken)


def _waiting(record: RunRecord, asked: Sequence[OpenQuestion], question: object) -> RunWaiting:
    if len(asked) > 1:
        return RunWaiting(
            f"run {record.id} asks {len(asked)} questions:\n{listed(asked)}\n"
            f"Answer them with `ramify resume {record.id} --answer ID=JSON`, repeating --answer",
            question=question,
            run_id=record.id,
            questions=asked,
        )
    return RunWaiting(
        f"run {record.id} asks: {question}\nAnswer it with `ramify resume {record.id} --answer JSON`",
        question=question,
        run_id=record.id,
        questions=asked,
    )


async def _saved_at(runtime: Runtime, record: RunRecord, checkpoint: str) -> str:
    from ramify.runtime.langgraph.thread.stored_thread import checkpoint_of

    at = await runtime.store.checkpoint(CheckpointId(checkpoint))
    return await asyncio.to_thread(checkpoint_of, runtime.database, record, at, await runtime.journal(record.id))


async def _check_thread(graph: WorldApp, record: RunRecord, *, anywhere: bool) -> None:
    """Check that the app stores this thread, and that its newest state belongs to this run; with `anywhere`, to any
    run.
    """
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
            f"thread {thread} has continued as run {env['run']}: `ramify resume {env['run']}`, or `ramify fork "
            f"{record.id}` for another branch of it"
        )
