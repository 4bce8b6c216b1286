"""The APIs of the gateway that give answers: their paths, and how each is asked of an engine and answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import CHAT, RESPONSES, TEXT, Dialect
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.formats.answer_format import AnswerFormat, ChunkFormat, LlamaCppTextFormat, ResponseFormat
from ramify.serving.gateway.formats.chat_message import MessageOfChat, error_type
from ramify.serving.gateway.formats.chat_response import ResponseOfChat
from ramify.serving.gateway.formats.llama_cpp_request import chat_for_llama_cpp, text_for_llama_cpp
from ramify.serving.gateway.formats.messages_request import chat_of_messages
from ramify.serving.gateway.formats.response_request import chat_of_response

Json = Mapping[str, object]


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


def _unchanged(asked: Json) -> Json:
    return asked


CHATS = Api("/chat/completions", CHAT, _unchanged, lambda _: ChunkFormat())
TEXTS = Api("/completions", TEXT, _unchanged, lambda _: ChunkFormat())
RESPONSES_API = Api("/responses", RESPONSES, _unchanged, lambda _: ResponseFormat(), ErrorFormat.EVENTS)
MESSAGES = Api("/messages", CHAT, chat_of_messages, MessageOfChat, ErrorFormat.MESSAGES)
APIS = (CHATS, TEXTS, RESPONSES_API, MESSAGES)

# The same for the embedded engine, which ignores what it does not know, and whose responses leave too much out.
_AT_LLAMA_CPP = {
    CHATS: replace(CHATS, request=chat_for_llama_cpp),
    TEXTS: Api("/completions", TEXT, text_for_llama_cpp, lambda _: LlamaCppTextFormat()),
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


def errors_at(path: str) -> ErrorFormat:
    """The format of errors at a path of the gateway."""
    return ErrorFormat.MESSAGES if path.startswith(f"/v1{MESSAGES.path}") else ErrorFormat.CHUNKS
