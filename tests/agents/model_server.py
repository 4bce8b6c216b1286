"""A scripted model server, which speaks OpenAI's chat and responses formats and Anthropic's messages format.

What it answers is a function of the conversation in the request alone: two forks of an agent that send different
conversations get different answers, and a program that sends one twice gets the same answer twice.
"""

from __future__ import annotations

import http.server
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 120.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call. `text`: the input of a tool that takes free text instead of JSON (OpenAI's custom tools)."""

    name: str
    arguments: Json = field(default_factory=dict)
    text: str | None = None


@dataclass(frozen=True)
class Turn:
    """What the model answers: text, tool calls, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Asked:
    """One request. `said`: the texts and tool results of the conversation, oldest first, with their roles."""

    path: str
    headers: dict[str, str]  # by lower-case name
    tools: tuple[str, ...]
    said: tuple[tuple[str, str], ...]
    stream: bool

    @property
    def number(self) -> int:
        """Tells this answer from the others of its conversation."""
        return len(self.said)

    def answers_since(self, words: str, besides: Sequence[str] = ()) -> int | None:
        """How many answers of the model the conversation has since a person first said the words; None if nobody has.
        One answer may be several items, a text and its calls. `besides`: beginnings of answers that the program made
        up."""
        kept = [
            (role, text) for role, text in self.said if role != "assistant" or not text.startswith(tuple(besides))
        ]
        for at, (role, text) in enumerate(kept):
            if role == "user" and words in text:
                later = [role for role, _ in kept[at:]]
                return sum(one == "assistant" != before for before, one in itertools.pairwise(later))
        return None


Script = Callable[[Asked], Turn]


class Pause:
    """Holds an answer back, so that a test can act in the middle of a turn."""

    def __init__(self) -> None:
        self.reached, self._over = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.reached.set()
        assert self._over.wait(PATIENCE), "nobody ended the pause"

    def end(self) -> None:
        self._over.set()


class ModelServer:
    """Serves a script on a free port of 127.0.0.1. A context manager. `key`: what every request must carry, as
    `Authorization: Bearer KEY` or `x-api-key: KEY`."""

    def __init__(self, script: Script, key: str) -> None:
        self.script, self.key = script, key
        self.asked: list[Asked] = []
        self.refused: list[str] = []  # the paths of requests without the key
        self.failures: list[Exception] = []  # of the script
        server = self

        class Handler(_Handler):
            owner = server

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ModelServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._give(200, b"", "text/plain")

    def do_GET(self) -> None:
        if self.path.split("?")[0].endswith("/models"):
            models = [{"id": "scripted", "object": "model", "created": 0, "owned_by": "tests"}]
            self._json(200, {"object": "list", "data": models})
        else:
            self._json(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = json.loads(self.rfile.read(int(headers.get("content-length", "0"))) or b"{}")
        path = self.path.split("?")[0]
        if self.owner.key not in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer ")):
            self.owner.refused.append(path)
            self._json(401, {"type": "error", "error": {"type": "authentication_error", "message": "a wrong key"}})
            return
        for end, read, events, whole in (
            ("/chat/completions", _chat_asked, _chat_events, _chat_whole),
            ("/responses", _responses_asked, _responses_events, _responses_whole),
            ("/messages", _messages_asked, _messages_events, _messages_whole),
        ):
            if path.endswith(end):
                asked = read(path, headers, body)
                self.owner.asked.append(asked)
                try:
                    turn = self.owner.script(asked)
                except Exception as error:  # noqa: BLE001
                    self.owner.failures.append(error)
                    self._json(400, {"error": {"type": "invalid_request_error", "message": f"the script: {error}"}})
                    return
                if asked.stream:
                    self._stream(events(turn, asked))
                else:
                    self._json(200, whole(turn, asked))
                return
        if path.endswith("/count_tokens"):
            self._json(200, {"input_tokens": 10})
        else:
            self._json(404, {"error": {"message": f"no {path}"}})

    def _json(self, status: int, body: Json) -> None:
        self._give(status, json.dumps(body).encode(), "application/json")

    def _give(self, status: int, body: bytes, kind: str) -> None:
        with suppress(ConnectionError):  # who asked has ended meanwhile
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _stream(self, events: Iterator[bytes]) -> None:
        with suppress(ConnectionError):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for event in events:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")


def _text(content: Any) -> str:
    """The text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def _asked(path: str, headers: dict[str, str], body: Json, said: list[tuple[str, str]], tools: list[str]) -> Asked:
    return Asked(path, headers, tuple(tools), tuple(said), bool(body.get("stream")))


# OpenAI, chat completions


def _chat_asked(path: str, headers: dict[str, str], body: Json) -> Asked:
    said = [(message["role"], _text(message.get("content"))) for message in body["messages"]]
    return _asked(path, headers, body, said, [tool["function"]["name"] for tool in body.get("tools") or []])


def _chat_calls(turn: Turn) -> list[Json]:
    return [
        {
            "index": at,
            "id": f"call_{at}_{abs(hash(call.name))}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for at, call in enumerate(turn.calls)
    ]


CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _chat_whole(turn: Turn, asked: Asked) -> Json:
    message: Json = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = _chat_calls(turn)
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn.calls else "stop"}
    top = {"id": f"chat-{asked.number}", "object": "chat.completion", "created": 0, "model": "scripted"}
    return {**top, "choices": [choice], "usage": CHAT_USAGE}


def _chat_events(turn: Turn, asked: Asked) -> Iterator[bytes]:
    top = {"id": f"chat-{asked.number}", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}

    def chunk(delta: Json, finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %s\n\n" % json.dumps({**top, "choices": [choice], **more}).encode()

    yield chunk({"role": "assistant", "content": ""})
    for piece in turn.text.splitlines(keepends=True):
        yield chunk({"content": piece})
    for call in _chat_calls(turn):
        yield chunk({"tool_calls": [call]})
    yield chunk({}, "tool_calls" if turn.calls else "stop", usage=CHAT_USAGE)
    yield b"data: [DONE]\n\n"


# OpenAI, responses


def _responses_asked(path: str, headers: dict[str, str], body: Json) -> Asked:
    said: list[tuple[str, str]] = []
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            said.append((item["role"], _text(item["content"])))
        elif kind.endswith("_output"):
            output = item["output"]
            said.append(("tool", output if isinstance(output, str) else _text(output)))
        elif kind.endswith("_call"):
            said.append(("assistant", item.get("name", "")))
    return _asked(path, headers, body, said, [tool.get("name", tool["type"]) for tool in body.get("tools") or []])


def _responses_items(turn: Turn, asked: Asked) -> list[Json]:
    items: list[Json] = []
    if turn.text:
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        items.append({"type": "message", "id": f"msg_{asked.number}", "role": "assistant", "content": content})
    for at, call in enumerate(turn.calls):
        ids = {"id": f"item_{asked.number}_{at}", "call_id": f"call_{asked.number}_{at}", "name": call.name}
        if call.text is not None:
            items.append({"type": "custom_tool_call", **ids, "input": call.text})
        else:
            items.append({"type": "function_call", **ids, "arguments": json.dumps(call.arguments)})
    return [{**item, "status": "completed"} for item in items]


def _responses_whole(turn: Turn, asked: Asked) -> Json:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}  # type: ignore[dict-item]
    top = {"id": f"resp_{asked.number}", "object": "response", "created_at": 0, "model": "scripted"}
    return {**top, "status": "completed", "output": _responses_items(turn, asked), "usage": usage}


def _responses_events(turn: Turn, asked: Asked) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())

    whole = _responses_whole(turn, asked)
    yield event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for at, item in enumerate(whole["output"]):
        yield event("response.output_item.added", output_index=at, item=_begun(item))
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": at, "content_index": 0}
            empty = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **place, part=empty)
            for piece in turn.text.splitlines(keepends=True):
                yield event("response.output_text.delta", **place, delta=piece)
            yield event("response.output_text.done", **place, text=turn.text)
            yield event("response.content_part.done", **place, part={**empty, "text": turn.text})
        elif item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": at}
            yield event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **place, arguments=item["arguments"])
        yield event("response.output_item.done", output_index=at, item=item)
    yield event("response.completed", response=whole)


def _begun(item: Json) -> Json:
    """An item of which nothing has been streamed yet."""
    empty: Json = {"message": {"content": []}, "function_call": {"arguments": ""}, "custom_tool_call": {"input": ""}}
    return {**item, "status": "in_progress", **empty[item["type"]]}


# Anthropic, messages


def _messages_asked(path: str, headers: dict[str, str], body: Json) -> Asked:
    said: list[tuple[str, str]] = []
    for message in body["messages"]:
        content = message["content"]
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if part["type"] == "tool_result":
                said.append(("tool", _text(part.get("content"))))
            else:
                said.append((message["role"], part.get("text") or part.get("name") or ""))
    return _asked(path, headers, body, said, [tool["name"] for tool in body.get("tools") or []])


def _messages_blocks(turn: Turn, asked: Asked) -> list[Json]:
    blocks: list[Json] = [{"type": "text", "text": turn.text}] if turn.text else []
    for at, call in enumerate(turn.calls):
        blocks.append(
            {"type": "tool_use", "id": f"toolu_{asked.number}_{at}", "name": call.name, "input": call.arguments}
        )
    return blocks


def _messages_whole(turn: Turn, asked: Asked) -> Json:
    top = {"id": f"msg_{asked.number}", "type": "message", "role": "assistant", "model": "scripted"}
    stop = {"stop_reason": "tool_use" if turn.calls else "end_turn", "stop_sequence": None}
    return {
        **top,
        "content": _messages_blocks(turn, asked),
        **stop,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def _messages_events(turn: Turn, asked: Asked) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), json.dumps({"type": kind, **fields}).encode())

    whole = _messages_whole(turn, asked)
    yield event("message_start", message={**whole, "content": [], "stop_reason": None})
    yield event("ping")
    for at, block in enumerate(whole["content"]):
        if block["type"] == "text":
            yield event("content_block_start", index=at, content_block={"type": "text", "text": ""})
            for piece in turn.text.splitlines(keepends=True):
                yield event("content_block_delta", index=at, delta={"type": "text_delta", "text": piece})
        else:
            yield event("content_block_start", index=at, content_block={**block, "input": {}})
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield event("content_block_delta", index=at, delta=delta)
        yield event("content_block_stop", index=at)
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": 5})
    yield event("message_stop")
