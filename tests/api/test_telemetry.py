"""Runs as spans and as counters, by rows that a runtime would have emitted."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import story as told
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ramify.metrics import RunMetrics
from ramify.runtime.codec import codec
from ramify.runtime.events import Event, LLMDone, OpDone, RunEnded, RunStarted
from ramify.runtime.records import LLMRecord, OpRecord, RunStatus
from ramify.serving.types import ChatRequest, user
from ramify.telemetry import Traces, UnknownExporter, _exporter

ASKED = ChatRequest(user("what is the secret?"), model="tiny", seed=7, stop=("END",))


def events(status: RunStatus = RunStatus.DONE) -> list[Event]:
    """The story's, its third call made inside the first step."""
    story = told.story()
    calls = [replace(call, request_json=codec.encode(ASKED)) for call in story.llm]
    calls[0] = replace(calls[0], step_key="k1", seq=0)
    calls[2] = replace(calls[2], reused_from="5eed00000001#2")
    rows: list[OpRecord | LLMRecord] = sorted([*story.ops, *calls], key=lambda row: row.seq)
    heard: list[Event] = [OpDone(row) if isinstance(row, OpRecord) else LLMDone(row) for row in rows]
    return [RunStarted(story.run, resumed=False), *heard, RunEnded(story.run, status)]


def traced(heard: list[Event], *, content: bool = False) -> list[ReadableSpan]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    traces = Traces(provider.get_tracer("test"), content=content)
    for event in heard:
        traces(event)
    return list(kept.get_finished_spans())


def named(spans: list[ReadableSpan], name: str) -> list[ReadableSpan]:
    return [span for span in spans if span.name == name]


def test_run_steps_and_calls_are_one_trace() -> None:
    spans = traced(events())
    (run,) = named(spans, "invoke_agent repair")
    assert {span.context.trace_id for span in spans} == {run.context.trace_id}
    assert (run.attributes or {})["gen_ai.operation.name"] == "invoke_agent"
    first = named(spans, "execute_tool run_tests")[0]
    assert (first.start_time, first.end_time) == ((told.STARTED + 1) * 1e9, (told.STARTED + 1.5) * 1e9)
    inside, *others = sorted(named(spans, "chat tiny"), key=lambda span: span.start_time or 0)
    assert inside.parent is not None and inside.parent.span_id == first.context.span_id
    assert {span.parent.span_id for span in others if span.parent} == {run.context.span_id}
    asked = dict(inside.attributes or {})
    assert asked["gen_ai.request.model"] == "tiny"
    assert (asked["gen_ai.usage.input_tokens"], asked["gen_ai.usage.output_tokens"]) == (120, 16)
    assert (asked["gen_ai.request.seed"], asked["gen_ai.request.stop_sequences"]) == (7, ("END",))


def test_branches_link_to_their_fork_and_merges_to_the_merged_branch() -> None:
    spans = traced(events())
    by_seq = {(span.attributes or {}).get("ramify.seq"): span for span in spans}
    assert [link.context.span_id for link in by_seq[7].links] == [by_seq[4].context.span_id]
    assert by_seq[12].context.span_id in [link.context.span_id for link in by_seq[14].links]


def test_reused_results_count_no_tokens_and_replayed_ones_are_not_traced() -> None:
    spans = traced(events())
    (reused,) = [s for s in named(spans, "chat tiny") if "ramify.reused_from" in (s.attributes or {})]
    assert "gen_ai.usage.input_tokens" not in (reused.attributes or {})
    replayed = [replace(one, replayed=True) if isinstance(one, OpDone | LLMDone) else one for one in events()]
    assert [span.name for span in traced(replayed)] == ["invoke_agent repair"]


def test_spans_hold_no_user_text_by_default() -> None:
    assert "secret" not in "".join(span.to_json() for span in traced(events()))
    spans = named(traced(events(), content=True), "chat tiny")
    (message,) = json.loads(str((spans[0].attributes or {})["gen_ai.input.messages"]))
    assert message == {"role": "user", "parts": [{"type": "text", "content": "what is the secret?"}]}


def test_failures_are_error_spans() -> None:
    spans = traced(events(RunStatus.FAILED))
    bad = {
        span.name: (span.attributes or {})["error.type"]
        for span in spans
        if not span.status.is_ok and not span.status.is_unset
    }
    assert bad == {"invoke_agent repair": "failed", "execute_tool try_edit": "Exception"}


def test_exporters() -> None:
    assert _exporter("none") is None
    with pytest.raises(UnknownExporter, match="otlp, console or none"):
        _exporter("zipkin")


def test_runs_are_counted_into_a_textfile(tmp_path: Path) -> None:
    metrics = RunMetrics(tmp_path / "ramify.prom")
    for event in events():
        metrics(event)
    text = (tmp_path / "ramify.prom").read_text()
    assert 'ramify_runs_total{status="done"} 1.0' in text
    assert 'ramify_steps_total{outcome="reused"} 1.0' in text
    assert 'ramify_branches_total{what="forked"} 5.0' in text  # worlds: a fork of three, and one of two
    assert 'ramify_model_tokens_total{type="input"} 240.0' in text
    assert 'ramify_model_calls_total{outcome="reused"} 1.0' in text


def test_counters_do_not_replace_what_is_no_file(tmp_path: Path) -> None:
    """`--metrics /dev/stdout`, as root, would replace a device of the whole machine."""
    pipe, real, link = tmp_path / "pipe", tmp_path / "real.prom", tmp_path / "link.prom"
    os.mkfifo(pipe)
    real.touch()
    link.symlink_to(real)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for file in (pipe, link):
        metrics = RunMetrics(file)
        for event in events():
            metrics(event)
    assert b"ramify_runs_total" in os.read(reader, 1 << 16)
    os.close(reader)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert "ramify_runs_total" in real.read_text()


def test_a_folder_for_counters_is_needed_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        RunMetrics(tmp_path / "missing" / "ramify.prom")
    assert raised.value.filename == str(tmp_path / "missing")
