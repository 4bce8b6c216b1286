"""OpenTelemetry spans of runs, by the semantic conventions for generative AI, from the events of a runtime.

A run is an `invoke_agent` span. Its steps are `execute_tool` spans below it; model calls are `chat` spans below the
step that made them, or below the run. Forks and merges have spans of their own: a span on a branch links to the fork
that created the branch, and a merge links to the last span of the merged branch. Results that a resumed run takes
from its journal are not traced again. Reused results are marked as such and count no tokens.

    async with Runtime(observer=Traces()) as runtime: ...        # or RAMIFY_OTEL=1, with the usual OTEL_* variables

Needs the extra `otel`. Spans hold no prompts, answers or step results, unless
OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT is set. Names: semantic conventions 1.41, docs/gen-ai.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from ramify import __version__
from ramify.compiler.plan import OpKind
from ramify.inspect.model_calls import call_times
from ramify.runtime.codec import codec
from ramify.runtime.errors import NotSerialisable, RunError
from ramify.runtime.events import Event, LLMDone, OpDone, PrefixHinted, Recovered, RunEnded, RunStarted
from ramify.runtime.records import LLMRecord, OpRecord, OpStatus, RunId, RunRecord, RunStatus
from ramify.serving.types import ChatRequest, ChatResult

CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = ("true", "1", "span_only", "span_and_event")
_BAD = (RunStatus.FAILED,)

Value = str | int | float | bool | Sequence[str]
Attributes = dict[str, Value]


class UnknownExporter(RunError):
    """$OTEL_TRACES_EXPORTER names an exporter that is not supported."""


@dataclass(slots=True)
class _Run:
    """A run in progress. `calls` wait for the span of the step that made them, which ends after them."""

    record: RunRecord
    span: Span
    calls: dict[str, list[LLMRecord]] = field(default_factory=dict)
    forks: dict[str, SpanContext] = field(default_factory=dict)  # by the prefix of their branches' paths
    last: dict[str, SpanContext] = field(default_factory=dict)  # by branch


class Traces:
    """An observer that traces every run.

    `tracer`: where spans go; by default the program's own provider, or one chosen by $OTEL_TRACES_EXPORTER ("otlp",
    the default, "console" or "none") and the exporter's own variables. `content`: include prompts, answers and
    results; by default as the environment says.
    """

    def __init__(self, tracer: Tracer | None = None, *, content: bool | None = None) -> None:
        self._tracer = tracer or _provider(os.environ).get_tracer("ramify", __version__)
        self._content = os.environ.get(CONTENT, "").lower() in _WITH_CONTENT if content is None else content
        self._runs: dict[RunId, _Run] = {}

    def __call__(self, event: Event) -> None:
        """The observer."""
        match event:
            case RunStarted():
                self._runs[event.run.id] = _Run(event.run, self._begin(event))
            case OpDone(row=row, replayed=False) if (run := self._runs.get(row.run_id)) is not None:
                self._op(run, row)
            case LLMDone(row=row, replayed=False) if (run := self._runs.get(row.run_id)) is not None:
                if row.step_key is None:
                    self._call(run, row, run.span)
                else:
                    run.calls.setdefault(row.step_key, []).append(row)
            case Recovered() if (run := self._runs.get(event.run)) is not None:
                attributes: Attributes = {"ramify.branch": event.branch, "ramify.recovery.level": event.level.value}
                run.span.add_event("ramify.recovered", {**attributes, "ramify.recovery.took_s": event.took_s})
            case PrefixHinted() if (run := self._runs.get(event.run)) is not None:
                attributes = {"ramify.op": event.op_id, "ramify.prefix.read": not event.why}
                attributes |= {"ramify.prefix.why": event.why} if event.why else {}
                run.span.add_event("ramify.prefix_hinted", attributes)
            case RunEnded() if (run := self._runs.pop(event.run.id, None)) is not None:
                self._end(run, event)
            case _:
                pass

    def _begin(self, event: RunStarted) -> Span:
        run = event.run
        attributes: Attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": run.name,
            "gen_ai.conversation.id": run.thread_id or run.id,
            "gen_ai.provider.name": _provider_name(run),
            "ramify.run.id": run.id,
            "ramify.run.resumed": event.resumed,
            "ramify.frontend": run.frontend,
        }
        if run.deadline_s is not None:
            attributes["ramify.deadline_s"] = run.deadline_s
        return self._tracer.start_span(f"invoke_agent {run.name}", kind=SpanKind.INTERNAL, attributes=attributes)

    def _end(self, run: _Run, event: RunEnded) -> None:
        for calls in run.calls.values():  # of steps that did not end
            for call in calls:
                self._call(run, call, run.span)
        run.span.set_attribute("ramify.run.status", event.status.value)
        if event.status in _BAD:
            run.span.set_attribute("error.type", event.status.value)
            run.span.set_status(Status(StatusCode.ERROR))
        run.span.end()

    def _op(self, run: _Run, row: OpRecord) -> None:
        match row.kind:
            case OpKind.RUN | OpKind.BREAK:
                self._step(run, row)
            case OpKind.FORK:
                context = self._marked(run, row, "fork", [])
                said = json.loads(row.result_json or "{}")
                run.forks[f"{row.branch}/{said.get('place', row.op_id)}"] = context
            case OpKind.MERGE:
                theirs = run.last.get(row.attrs.get("theirs_branch", ""))
                self._marked(run, row, "merge", [] if theirs is None else [Link(theirs)])
            case _:
                pass

    def _step(self, run: _Run, row: OpRecord) -> None:
        name = row.step or row.op_id
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": row.key,
            **_place(row),
        }
        if self._content and row.result_json is not None:
            attributes["gen_ai.tool.call.result"] = row.result_json
        span = self._span(run, f"execute_tool {name}", row.started_at, attributes, self._links(run, row))
        for call in run.calls.pop(row.key, []):
            self._call(run, call, span)
        if row.status is OpStatus.FAILED:
            span.set_attribute("error.type", (row.error or "Exception").partition(":")[0])
            span.set_status(Status(StatusCode.ERROR, row.error if self._content else None))
        span.end(_ns(row.ended_at))
        run.last[row.branch] = span.get_span_context()

    def _marked(self, run: _Run, row: OpRecord, what: str, links: list[Link]) -> SpanContext:
        attributes = {**_place(row), "ramify.what": row.summary}
        span = self._span(run, what, row.started_at, attributes, [*self._links(run, row), *links])
        span.end(_ns(row.ended_at))
        run.last[row.branch] = span.get_span_context()
        return run.last[row.branch]

    def _links(self, run: _Run, row: OpRecord) -> list[Link]:
        """A link to the fork that created the branch."""
        fork = run.forks.get(row.branch.rpartition(".")[0])
        return [] if fork is None else [Link(fork, {"ramify.link": "fork"})]

    def _span(self, run: _Run, name: str, begun: float, attributes: Attributes, links: Sequence[Link] = ()) -> Span:
        within = trace.set_span_in_context(run.span)
        return self._tracer.start_span(name, within, SpanKind.INTERNAL, attributes, links, _ns(begun))

    def _call(self, run: _Run, row: LLMRecord, parent: Span) -> None:
        try:
            request = codec.decode_own(row.request_json, ChatRequest)
            result = codec.decode_own(row.result_json, ChatResult)
        except NotSerialisable:
            return  # another kind of call
        attributes = {**_request(run.record, request), **_answer(row, result), "ramify.branch": row.branch}
        if self._content:
            attributes |= _content(request, result)
        span = self._tracer.start_span(
            f"chat {request.model}",
            trace.set_span_in_context(parent),
            SpanKind.CLIENT,
            attributes,
            start_time=_ns(row.started_at),
        )
        span.end(_ns(row.ended_at))


def _place(row: OpRecord) -> Attributes:
    told: Attributes = {"ramify.branch": row.branch, "ramify.seq": row.seq}
    if row.snapshot_out is not None:
        told["ramify.snapshot"] = row.snapshot_out
    if row.reused_from is not None:
        told["ramify.reused_from"] = row.reused_from
    return told


def _request(run: RunRecord, request: ChatRequest) -> Attributes:
    told: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider_name(run),
        "gen_ai.request.model": request.model,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.output.type": "text",
    }
    if request.seed is not None:
        told["gen_ai.request.seed"] = request.seed
    if request.stop:
        told["gen_ai.request.stop_sequences"] = list(request.stop)
    server = urlsplit(run.settings.server or "")
    if server.hostname:
        told["server.address"] = server.hostname
        told["server.port"] = server.port or (443 if server.scheme == "https" else 80)
    return told


def _answer(row: LLMRecord, result: ChatResult) -> Attributes:
    told: Attributes = {
        "gen_ai.response.model": result.model,
        "gen_ai.response.finish_reasons": [result.finish_reason],
        "ramify.seq": row.seq,
    }
    if row.reused_from is not None:  # no server was asked: no tokens were spent
        return told | {"ramify.reused_from": row.reused_from}
    told["gen_ai.usage.input_tokens"] = result.prompt_tokens
    told["gen_ai.usage.output_tokens"] = result.completion_tokens
    times = call_times(row)
    measured = {
        "gen_ai.response.time_to_first_chunk": times.first_token_s,
        "ramify.slo.queued_s": times.queued_s,
        "ramify.slo.deadline_s": times.deadline_s,
        "ramify.slo.met": times.met,
        "ramify.slo.qoe": times.qoe,
    }
    return told | {name: value for name, value in measured.items() if value is not None}


def _content(request: ChatRequest, result: ChatResult) -> Attributes:
    """Messages by the JSON schemas of the conventions."""
    asked = [{"role": m.role, "parts": [{"type": "text", "content": m.content}]} for m in request.messages]
    parts = [{"type": "text", "content": result.text}]
    answered = [{"role": "assistant", "parts": parts, "finish_reason": result.finish_reason}]
    return {"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.messages": json.dumps(answered)}


def _provider_name(run: RunRecord) -> str:
    """A server that speaks OpenAI's interface may run any model: the conventions then name the interface."""
    return "ramify" if run.settings.server is None else "openai"


def _ns(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def _provider(environment: Mapping[str, str]) -> trace.TracerProvider:
    """The program's own provider, or a new one for the rest of the process, as the environment says."""
    known = trace.get_tracer_provider()
    if not isinstance(known, trace.ProxyTracerProvider):
        return known
    resource = Resource.create({} if "OTEL_SERVICE_NAME" in environment else {SERVICE_NAME: "ramify"})
    made = TracerProvider(resource=resource)
    exporter = _exporter(environment.get("OTEL_TRACES_EXPORTER") or "otlp")
    if exporter is not None:
        made.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(made)
    return made


def _exporter(name: str) -> SpanExporter | None:
    if name == "none":
        return None
    if name == "console":
        return ConsoleSpanExporter()
    if name != "otlp":
        raise UnknownExporter(f"OTEL_TRACES_EXPORTER={name} is not supported: choose otlp, console or none")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
