"""The tab Calls: what the model was asked and said, with tokens, times and deadlines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ramify.browse.tui.styled_lines import (
    Line,
    Look,
    fact_lines,
    heading,
    json_lines,
    line,
    scope_of,
    table_lines,
    wrapped,
)
from ramify.cli.commands.state import call_lines
from ramify.inspect.model_calls import chat_request
from ramify.inspect.text import seconds
from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord
from ramify.serving.types import ChatRequest, ChatResult, Ledger

if TYPE_CHECKING:
    from ramify.browse.tui.subject import Subject
    from ramify.inspect.model_calls import CallTimes

_ROLES = {"system": Look.DIM, "user": Look.INFO, "assistant": Look.GOOD, "tool": Look.NOTE}


def lines(of: Subject) -> Iterator[Line]:
    made = [(moment.llm, moment.times) for moment in of.moments]
    calls = [(row, times) for row, times in made if row is not None and times is not None]
    yield scope_of(of.whole_run, "Model calls")
    if not calls:
        yield line("None.")
        return
    bodies = [list(_call(row, times, of.width)) for row, times in calls]
    at, begins = len(calls) + 2, []
    for body in bodies:
        begins.append(at + 1)
        at += len(body)
    yield from table_lines(call_lines([times for _, times in calls]), targets=begins)
    for body in bodies:
        yield from body


def _call(row: LLMRecord, times: CallTimes, width: int) -> Iterator[Line]:
    yield from heading(f"call #{row.seq}  {times.verdict if times.met is not None else 'best effort'}")
    result = codec.decode_own(row.result_json, ChatResult)
    request = chat_request(row)
    facts = [("branch", row.branch), ("model", result.model), ("tags", times.tags_line)]
    if request is not None:
        facts.append(("sampling", _sampling(request)))
    yield from fact_lines([*facts, *_ledger(times, result)])
    if request is not None:
        for message in request.messages:
            yield line(message.role, Look.BOLD)
            yield from wrapped(message.content, width, _ROLES[message.role], indent="  ")
    else:  # a front end's own form
        yield line("request", Look.BOLD)
        yield from json_lines(row.request_json, width)
    yield line(f"answer ({result.finish_reason})", Look.BOLD)
    yield from wrapped(result.text, width, _ROLES["assistant"], indent="  ")


def _sampling(request: ChatRequest) -> str:
    told = [
        f"temperature {request.temperature:g}",
        f"top_p {request.top_p:g}",
        f"at most {request.max_tokens} tokens",
    ]
    if request.seed is not None:
        told.append(f"seed {request.seed}")
    if request.sample:
        told.append(f"sample {request.sample}")
    return ", ".join(told)


def _ledger(times: CallTimes, result: ChatResult) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{times.prompt_tokens} in, {times.completion_tokens} out"
    yield "took", seconds(times.end_s)
    if times.deadline_s is not None:
        yield "deadline", f"{seconds(times.deadline_s)} left at arrival: {times.verdict}"
    ledger = result.ledger
    if ledger is not None:
        yield "ledger", _where_time_went(ledger)


def _where_time_went(ledger: Ledger) -> str:
    told = [f"queued {seconds(ledger.queue_s)}", f"first token {seconds(ledger.first_token_s)}"]
    told += [f"decoded {seconds(ledger.decode_s)}"] if ledger.decode_s else []
    if ledger.preemptions:
        told.append(f"preempted {ledger.preemptions} times for {seconds(ledger.preempted_s)}")
    told += [f"{ledger.attempts} attempts"] if ledger.attempts > 1 else []
    return ", ".join(told)
