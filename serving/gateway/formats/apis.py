"""The APIs of the gateway that give answers: their paths, and how each is asked of an engine and answered.

An `AnswerFormat` gives an answer to the client. If the client speaks the engine's own API, the answer goes as it
came, with the ledger (`types.Ledger`) added. The ledger rides on an object that the protocol sends anyway: the body
of a whole answer, the last chunk of a stream (the usage if the client asked for it, else the end of the answer), or
the response in the last event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import (
    CHAT,
    RESPONSES,
    TEXT,
    Dialect,
    ResponseEventNumbers,
    StreamPiece,
    usage_of,
)
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.formats import log_probabilities
from ramify.serving.gateway.formats.llama_cpp_request import chat_for_llama_cpp, text_for_llama_cpp
from ramify.serving.gateway.formats.messages import MessageOfChat, chat_of_messages, error_type
from ramify.serving.gateway.formats.model_list import ANTHROPIC_VERSION
from ramify.serving.gateway.formats.responses import ResponseOfChat, chat_of_response
from ramify.serving.protocol import wire

Json = Mapping[str, object]
_NOTHING: Json = {}


class AnswerFormat(Protocol):
    """The format of one answer. It keeps the state of one stream, so each attempt at an answer has its own."""

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        """What an event of the engine's stream means for the client: its bytes, or nothing yet.

        raw: the event as it came, without its blank line; None if the gateway has changed it.
        """
        ...

    def end(self, ledger: Json) -> bytes:
        """The end of the stream, which everything that was kept back precedes."""
        ...

    def whole(self, answer: Json, ledger: Json) -> Json:
        """The body of an answer that was not streamed."""
        ...


class ChunkFormat:
    """Chats and text completions: chunks, then `[DONE]`.

    Of several answers at once, none begins before those with lower numbers: OpenAI's clients add to a list. Their
    usage is one chunk at the end; llama.cpp sends one for each of them when that answer ends.

    asked: the client's request.
    """

    def __init__(self, asked: Json = _NOTHING) -> None:
        self._of_each = answers_to_each(asked)
        self._kept: list[tuple[bytes | None, Json]] = []  # from the answer's end on; the last one gets the ledger
        self._begun = 0  # answers that have begun
        self._early: list[tuple[bytes | None, Json, StreamPiece]] = []
        self._usages: list[tuple[bytes | None, Json]] = []

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        if (number := _number(chunk)) > self._begun:
            self._early.append((raw, chunk, piece))
            return b""
        said = self._next(raw, chunk, piece)
        if number == self._begun:
            self._begun += 1
            early, self._early = self._early, []
            said += b"".join(ChunkFormat.event(self, *one) for one in early)
        return said

    def _next(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        if chunk.get("choices") == [] and isinstance(chunk.get("usage"), Mapping):
            self._usages.append((raw, chunk))
            return b""
        if piece.ends or (self._kept and not (piece.answers or piece.thinks)):
            self._kept.append((raw, chunk))
            return b""
        before = b"".join(_as_it_came(*one) for one in self._kept)  # the end of another answer of several
        self._kept.clear()
        return before + _as_it_came(raw, chunk)

    def end(self, ledger: Json) -> bytes:
        said = b"".join(self._next(*one) for one in self._early)
        *before, (_, last) = [*self._kept, *_joined(self._usages, self._of_each)]
        said += b"".join(_as_it_came(*one) for one in before)
        return said + sse.event({**last, wire.LEDGER_KEY: ledger}) + b"data: [DONE]\n\n"

    def whole(self, answer: Json, ledger: Json) -> Json:
        return {**answer, wire.LEDGER_KEY: ledger}


class LlamaCppChatFormat(ChunkFormat):
    """Chats of llama.cpp, with as many log-probabilities as the client asked for."""

    def __init__(self, asked: Json = _NOTHING) -> None:
        super().__init__(asked)
        self._tops = log_probabilities.tops_asked(asked)

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        changed = log_probabilities.cut(chunk, self._tops, whole=False)
        return super().event(raw if changed is chunk else None, changed, piece)

    def whole(self, answer: Json, ledger: Json) -> Json:
        return super().whole(log_probabilities.cut(answer, self._tops, whole=True), ledger)


class LlamaCppTextFormat(ChunkFormat):
    """Text completions of llama.cpp, which gives log-probabilities in the shape of chats."""

    def __init__(self, asked: Json = _NOTHING) -> None:
        super().__init__(asked)
        self._tops = log_probabilities.tops_asked(asked)
        self._said: dict[object, int] = {}  # characters so far, by choice

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        changed = self._with_logprobs(log_probabilities.cut(chunk, self._tops, whole=False))
        return super().event(raw if changed is chunk else None, changed, piece)

    def whole(self, answer: Json, ledger: Json) -> Json:
        return super().whole(self._with_logprobs(log_probabilities.cut(answer, self._tops, whole=True)), ledger)

    def _with_logprobs(self, chunk: Json) -> Json:
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not any(one.get("logprobs") for one in choices):
            return chunk
        return {**chunk, "choices": [self._choice(one) for one in choices]}

    def _choice(self, choice: Json) -> Json:
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        if not isinstance(content, list):
            return choice
        offsets, at = [], self._said.get(choice.get("index"), 0)
        for entry in content:
            offsets.append(at)
            at += len(entry["token"])
        self._said[choice.get("index")] = at
        said = {
            "tokens": [entry["token"] for entry in content],
            "token_logprobs": [entry["logprob"] for entry in content],
            "top_logprobs": [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in content],
            "text_offset": offsets,
        }
        return {**choice, "logprobs": said}


class ResponseFormat:
    """Responses: typed events, of which the last holds the whole answer."""

    def __init__(self) -> None:
        self._numbers = ResponseEventNumbers()
        self._closing: Json = {}

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        typed = self._numbers.completed(chunk)
        if piece.ends:
            self._closing = chunk if typed is None else typed
            return b""
        if typed is None:
            return _as_it_came(raw, chunk)
        return sse.event(typed, str(chunk.get("type")))

    def end(self, ledger: Json) -> bytes:
        answer = self._closing.get("response")
        whole = {**(answer if isinstance(answer, Mapping) else {}), wire.LEDGER_KEY: ledger}
        return sse.event({**self._closing, "response": whole}, str(self._closing.get("type")))

    def whole(self, answer: Json, ledger: Json) -> Json:
        return {**answer, wire.LEDGER_KEY: ledger}


def _joined(usages: list[tuple[bytes | None, Json]], of_each: int) -> list[tuple[bytes | None, Json]]:
    """One chunk of usage for all of several answers, so many to each prompt, which counts once."""
    if len(usages) < 2:
        return usages
    return [(None, {**usages[-1][1], "usage": usage_of_all([chunk for _, chunk in usages], of_each)})]


def answers_to_each(asked: Json) -> int:
    """How many answers a request asks for, to each of its prompts."""
    return n if type(n := asked.get("n")) is int and n > 0 else 1


def usage_of_all(chunks: list[Json], of_each: int) -> Json:
    """The usage of several answers, so many to each prompt, which counts once."""
    each = [usage_of(chunk) for chunk in chunks]
    made, read = sum(n or 0 for n, _ in each), sum(n or 0 for _, n in each) // of_each
    last = chunks[-1]["usage"]
    assert isinstance(last, Mapping)
    return {**last, "completion_tokens": made, "prompt_tokens": read, "total_tokens": made + read}


def _number(chunk: Json) -> int:
    """The number of the answer that a chunk belongs to; -1 for one that belongs to none."""
    choices = chunk.get("choices")
    numbers = [one.get("index") for one in choices if isinstance(one, Mapping)] if isinstance(choices, list) else []
    return max((number for number in numbers if isinstance(number, int)), default=-1)


def _as_it_came(raw: bytes | None, chunk: Json) -> bytes:
    return sse.event(chunk) if raw is None else raw + b"\n\n"


class ErrorFormat(StrEnum):
    """How a client is told of an error."""

    CHUNKS = "chunks"  # OpenAI's, in a stream as a chunk
    EVENTS = "events"  # OpenAI's, in a stream as an event with a type
    MESSAGES = "messages"  # Anthropic's

    @property
    def request_id_header(self) -> str:
        """The header in which a client looks for the request's id."""
        return "request-id" if self is ErrorFormat.MESSAGES else "x-request-id"

    def body(self, error: ApiError, request_id: str | None = None) -> dict[str, object]:
        """The body of a response that says so."""
        if self is not ErrorFormat.MESSAGES:
            return error.body()
        said = {"type": error_type(error.status), "message": error.message}
        more = {"param": error.param, "code": error.code, **error.extra}
        return {"type": "error", "error": {**said, **more}, "request_id": request_id}

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The event that ends a stream."""
        body = self.body(error, request_id)
        if self is ErrorFormat.CHUNKS:
            return sse.event(body)
        if self is ErrorFormat.MESSAGES:
            return sse.event(body, "error")
        flat = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return sse.event({**flat, **body}, "error")


@dataclass(frozen=True, slots=True)
class Api:
    """One API that gives answers."""

    path: str  # after /v1
    dialect: Dialect  # that the engine is asked in
    request: Callable[[Json], Json]  # the client's request in that dialect; raises ApiError
    answer: Callable[[Json], AnswerFormat]  # the format of the answer to a client's request
    errors: ErrorFormat = ErrorFormat.CHUNKS
    # Of a chat's fields, as a client of this API has them.
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    def named(self, error: ApiError, asked: Json) -> ApiError:
        """The error, with the name that the client knows the field at fault by. What stands in the request itself
        has the client's name."""
        if (name := self.names.get(error.param or "")) is None or error.param in asked:
            return error
        _, found, why = error.message.partition(f"{error.param}: ")
        return replace(error, param=name, message=f"{name}: {why}" if found else error.message)


def _unchanged(asked: Json) -> Json:
    return asked


CHATS = Api("/chat/completions", CHAT, _unchanged, ChunkFormat)
TEXTS = Api("/completions", TEXT, _unchanged, ChunkFormat)
_RESPONSES_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "logprobs": "top_logprobs",
}
_MESSAGES_NAMES = {"stop": "stop_sequences", "response_format": "output_config"}
RESPONSES_API = Api(
    "/responses", RESPONSES, _unchanged, lambda _: ResponseFormat(), ErrorFormat.EVENTS, _RESPONSES_NAMES
)
MESSAGES = Api("/messages", CHAT, chat_of_messages, MessageOfChat, ErrorFormat.MESSAGES, _MESSAGES_NAMES)
APIS = (CHATS, TEXTS, RESPONSES_API, MESSAGES)

# The same for the embedded engine, which ignores what it does not know, and whose responses leave too much out.
_AT_LLAMA_CPP = {
    CHATS: replace(CHATS, request=chat_for_llama_cpp, answer=LlamaCppChatFormat),
    TEXTS: Api("/completions", TEXT, text_for_llama_cpp, LlamaCppTextFormat),
    RESPONSES_API: Api(
        "/responses",
        CHAT,
        lambda asked: chat_for_llama_cpp(chat_of_response(asked)),
        ResponseOfChat,
        ErrorFormat.EVENTS,
    ),
    MESSAGES: replace(MESSAGES, request=lambda asked: chat_for_llama_cpp(chat_of_messages(asked))),
}


def at_engine(api: Api, *, llama_cpp: bool) -> Api:
    """How an API is asked of one engine."""
    return _AT_LLAMA_CPP.get(api, api) if llama_cpp else api


def errors_at(path: str, headers: Mapping[str, str]) -> ErrorFormat:
    """The format of errors at a path of the gateway, for a client that sent these headers."""
    anthropic = path.startswith(f"/v1{MESSAGES.path}") or ANTHROPIC_VERSION in headers
    return ErrorFormat.MESSAGES if anthropic else ErrorFormat.CHUNKS
