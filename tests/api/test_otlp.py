"""Spans over the wire: a program with RAMIFY_OTEL=1 and the exporter's own variables, a collector's endpoint at the
other end, and OpenTelemetry's own protobuf to read what came."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

PROGRAM = """
import asyncio, sys
from pathlib import Path
from ramify import Runtime, Sandbox, llm, step, workflow
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

@step
async def write(sandbox: Sandbox, text: str) -> None:
    (sandbox.path / "a.txt").write_text(text)

@workflow
async def told() -> str:
    await write(await llm.choose("Which?", ["first", "second"]) and "x")
    return "done"

async def main() -> None:
    model = ScriptedModel(lambda request: "B")
    async with LLMClient("http://model.test/v1", transport=model) as client:
        async with Runtime(home=Path(sys.argv[1]), sandbox="copy", llm=client) as runtime:
            await runtime.run(told)

asyncio.run(main())
"""


class Collector(ThreadingHTTPServer):
    """OTLP over HTTP as a collector takes it: protobuf, perhaps gzipped, at /v1/traces."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.taken: list[ExportTraceServiceRequest] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        known = self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
        if known:
            self.server.taken.append(ExportTraceServiceRequest.FromString(body))
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200 if known else 404)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_collector_receives_spans_by_the_conventions(collector: Collector, tmp_path: Path, compression: str) -> None:
    (tmp_path / "told.py").write_text(PROGRAM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    told = {"RAMIFY_OTEL": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "NO_PROXY": "*"}
    command = [sys.executable, "told.py", str(tmp_path / "home")]
    environment = {**kept, **told, "OTEL_EXPORTER_OTLP_COMPRESSION": compression}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)

    resources = [one for request in collector.taken for one in request.resource_spans]
    services = {a.value.string_value for one in resources for a in one.resource.attributes if a.key == "service.name"}
    assert services == {"ramify"}
    spans = {span.name: span for one in resources for scope in one.scope_spans for span in scope.spans}
    (call,) = (span for name, span in spans.items() if name.startswith("chat "))
    run, tool = spans["invoke_agent told"], spans["execute_tool write"]
    assert {span.trace_id for span in spans.values()} == {run.trace_id}
    assert call.parent_span_id == tool.parent_span_id == run.span_id
    assert call.kind == call.SPAN_KIND_CLIENT
    for span, operation in ((run, "invoke_agent"), (tool, "execute_tool"), (call, "chat")):
        assert _said(span)["gen_ai.operation.name"].string_value == operation
    assert _said(tool)["gen_ai.tool.name"].string_value == "write"
    assert _said(call)["gen_ai.usage.output_tokens"].int_value > 0
    assert "gen_ai.input.messages" not in _said(call)  # what was asked is nobody's but the user's


def _said(span: Any) -> dict[str, Any]:
    return {one.key: one.value for one in span.attributes}
