"""OpenAI's chat API on the wire: a ChatRequest to its JSON body, a stream or body back to a ChatResult.

Also what Ramify adds to that API (names, and the line in which a scheduler refuses), and helpers for addresses.
Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import fields, replace
from typing import cast
from urllib.parse import urlsplit, urlunsplit

from ramify.serving.types import ChatRequest, ChatResult, Ledger, Message, TokenLogprobs

DONE = "[DONE]"
GATEWAY_HEADER = "x-ramify-gateway"  # on a list of models: this server is a Ramify gateway and takes prefix hints
RELEASES_HEADER = "x-ramify-releases"  # on a list of models: this engine takes releases
PREFIX_PATH = "/ramify/prefix"  # after /v1
RELEASE_PATH = "/ramify/release"  # after /v1
HISTORY_PATH = "/ramify/history"  # after /v1
LEDGER_KEY = "ramify"  # the one field that the gateway adds to a response: where the call's time went
INFEASIBLE_CODE = "deadline_infeasible"
_REFUSAL_LINE = re.compile(
    rf"^{INFEASIBLE_CODE}: (?P<reason>.*?)(?: \[earliest_feasible_s=(?P<least>[0-9.]+)\])?\Z", re.DOTALL
)
_MAX_LINE = 16 * 1024 * 1024


class Malformed(Exception):
    """What came is not a chat completion, or not a whole one."""


def api_root(url: str) -> str:
    """The address before `/chat/completions`: as given, or with `/v1` added to a bare host. Raises ValueError."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{redacted(url)!r} is not a base URL: give one such as http://127.0.0.1:8000/v1")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/v1", "", ""))


def redacted(url: str) -> str:
    """The URL without user, password and query, for messages."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_loopback(url: str) -> bool:
    """True for an address on this machine, where no proxy of the environment must stand between."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def to_body(request: ChatRequest, *, model: str) -> dict[str, object]:
    """The JSON body of one streamed chat completion. `sample` is not sent: it only tells requests apart."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.seed is not None:
        body["seed"] = request.seed
    if request.stop:
        body["stop"] = list(request.stop)
    if request.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    return body


def from_body(body: Mapping[str, object]) -> ChatRequest:
    """The request that a body asks for, as a scripted model sees it. Raises Malformed."""
    stop = body.get("stop")
    stops = (stop,) if isinstance(stop, str) else tuple(str(s) for s in _list(stop))
    seed = body.get("seed")
    return ChatRequest(
        messages=tuple(_message(_object(m)) for m in _list(body.get("messages"))),
        model=str(body.get("model", "default")),
        temperature=_number(body.get("temperature", 0.0)),
        top_p=_number(body.get("top_p", 1.0)),
        max_tokens=int(_number(body.get("max_tokens", 256))),
        seed=None if seed is None else int(_number(seed)),
        stop=stops,
        top_logprobs=int(_number(body.get("top_logprobs") or 0)),
    )


class Answer:
    """Collects one answer from the chunks of a stream, or from one whole body."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._finish_reason: str | None = None
        self._model = ""
        self._usage: Mapping[str, object] = {}
        self._ledger: Ledger | None = None

    def add(self, data: Mapping[str, object]) -> str:
        """Add one chunk (`delta`) or body (`message`). Returns the text that it brought."""
        self._model = str(data.get("model") or self._model)
        if isinstance(usage := data.get("usage"), Mapping):
            self._usage = usage
        if LEDGER_KEY in data:
            self._ledger = _ledger(_object(data[LEDGER_KEY]))
        new = ""
        for item in _list(data.get("choices")):
            choice = _object(item)
            if choice.get("index", 0) != 0:
                continue
            content = _object(choice.get("delta") or choice.get("message") or {}).get("content")
            new += content if isinstance(content, str) else ""
            self._logprobs += _logprobs(choice.get("logprobs"))
            self._finish_reason = cast("str | None", choice.get("finish_reason")) or self._finish_reason
        self._text.append(new)
        return new

    def result(self, *, attempts: int) -> ChatResult:
        """The whole answer. Raises Malformed if it was cut: half an answer does not count as done."""
        if self._finish_reason is None:
            raise Malformed("the answer was cut before its end")
        return ChatResult(
            text="".join(self._text),
            finish_reason=self._finish_reason,
            model=self._model,
            prompt_tokens=int(_number(self._usage.get("prompt_tokens") or 0)),
            completion_tokens=int(_number(self._usage.get("completion_tokens") or 0)),
            logprobs=tuple(self._logprobs),
            ledger=self._ledger and replace(self._ledger, attempts=attempts),
        )


async def sse_data(chunks: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The `data:` lines of a server-sent event stream. It splits at newlines only: JSON may hold a raw U+2028."""
    buffer = b""
    async for chunk in chunks:
        *lines, buffer = (buffer + chunk).split(b"\n")
        if len(buffer) > _MAX_LINE:
            raise Malformed(f"a line of the stream is longer than {_MAX_LINE} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip().decode("utf-8", "replace")


def refusal_to_line(reason: str, earliest_feasible_s: float | None) -> str:
    """A refusal by vLLM's scheduler as one line, in a field that vLLM passes on. The gateway turns it into a 422."""
    return f"{INFEASIBLE_CODE}: {reason}" + (
        "" if earliest_feasible_s is None else f" [earliest_feasible_s={earliest_feasible_s}]"
    )


def refusal_from_line(line: object) -> tuple[str, float | None] | None:
    """The reason and the least feasible deadline in seconds; None for any other text."""
    found = _REFUSAL_LINE.match(line) if isinstance(line, str) else None
    if found is None:
        return None
    least = found["least"]
    return found["reason"], None if least is None else float(least)


def parse_object(text: str | bytes) -> Mapping[str, object]:
    """Parse one JSON object. Raises Malformed."""
    try:
        return _object(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {error}") from error


def _message(value: Mapping[str, object]) -> Message:
    role, content = value.get("role"), value.get("content")
    if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
        raise Malformed(f"a message with role {role!r} and content of type {type(content).__name__}")
    return Message(role, content)


def _ledger(value: Mapping[str, object]) -> Ledger:
    known = {f.name for f in fields(Ledger)}
    try:
        return Ledger(**{k: v for k, v in value.items() if k in known})  # type: ignore[arg-type]
    except TypeError as error:
        raise Malformed(f"a ledger that cannot be read: {error}") from error


def _logprobs(value: object) -> list[TokenLogprobs]:
    if value is None:
        return []
    out = []
    for item in _list(_object(value).get("content")):
        entry = _object(item)
        top = [_object(t) for t in _list(entry.get("top_logprobs"))]
        pairs = tuple((str(t.get("token")), _number(t.get("logprob"))) for t in top)
        out.append(TokenLogprobs(str(entry.get("token")), _number(entry.get("logprob")), pairs))
    return out


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise Malformed(f"a JSON object was expected, not {type(value).__name__}")
    return value


def _list(value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"a JSON list was expected, not {type(value).__name__}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"a number was expected, not {type(value).__name__}")
    return value
