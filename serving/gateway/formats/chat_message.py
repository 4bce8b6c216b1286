"""The answer of a chat as a message of Anthropic's API: a whole body, or a stream of events.

Source: https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import StreamPiece, details_of, usage_of
from ramify.serving.gateway.formats.chat_blocks import Block, BlockEvent, BlockKind, ChatBlocks, Step
from ramify.serving.protocol import wire

Json = Mapping[str, object]
_STOPS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class MessageOfChat:
    """One message, made of a chat's chunks.

    An engine counts the prompt's tokens at the end of a stream. So `message_start` says 0, and `message_delta` the
    number, which clients take.
    """

    def __init__(self, asked: Json) -> None:
        self._asked = asked
        self._blocks = ChatBlocks()
        self._begun = False

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        happened = self._blocks.chunk(chunk)
        said = b""
        if not self._begun:
            self._begun = True
            start = self._message([], None, {"input_tokens": 0, "output_tokens": 0})
            said = _event("message_start", message=start)
        return said + b"".join(_of_block(one) for one in happened)

    def end(self, ledger: Json) -> bytes:
        said = b"".join(_of_block(one) for one in self._blocks.end())
        stop = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        usage = _usage(self._blocks.usage)
        said += _event("message_delta", delta=stop, usage=usage, **{wire.LEDGER_KEY: ledger})
        return said + _event("message_stop")

    def whole(self, answer: Json, ledger: Json) -> Json:
        self._blocks.whole(answer)
        content = [_content(block) for block in self._blocks.blocks if not self._cut(block)]
        message = self._message(content, self._stop_reason, _usage(self._blocks.usage))
        return {**message, wire.LEDGER_KEY: ledger}

    def _cut(self, block: Block) -> bool:
        """Is it a tool call that the limit cut within its arguments? It has no input, so it is left out."""
        if block.kind is not BlockKind.TOOL_CALL or self._blocks.finish_reason != "length":
            return False
        try:
            return not isinstance(json.loads(block.text), dict)
        except ValueError:
            return True

    def _message(self, content: Sequence[Json], stop_reason: str | None, usage: Json) -> dict[str, object]:
        return {
            "id": f"msg_{self._blocks.id.removeprefix('chatcmpl-')}",
            "type": "message",
            "role": "assistant",
            "model": self._blocks.model or str(self._asked.get("model", "")),
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": usage,
        }

    @property
    def _stop_sequence(self) -> str | None:
        """The stop sequence that ended the answer, from engines that say so (vLLM)."""
        said = self._blocks.stop_reason
        return said if self._blocks.finish_reason == "stop" and isinstance(said, str) else None

    @property
    def _stop_reason(self) -> str:
        if self._stop_sequence is not None:
            return "stop_sequence"
        if any(block.kind is BlockKind.TOOL_CALL for block in self._blocks.blocks):
            return "max_tokens" if self._blocks.finish_reason == "length" else "tool_use"
        return _STOPS.get(self._blocks.finish_reason or "", "end_turn")


def _of_block(happened: BlockEvent) -> bytes:
    block = happened.block
    match happened.step:
        case Step.OPENED:
            return _event("content_block_start", index=block.number, content_block=_content(block, begun=True))
        case Step.GREW:
            return _event("content_block_delta", index=block.number, delta=_delta(block, happened.delta))
        case Step.CLOSED:
            return _event("content_block_stop", index=block.number)


def _content(block: Block, *, begun: bool = False) -> dict[str, object]:
    """A content block. `begun`: as it is when it begins."""
    if block.kind is BlockKind.TOOL_CALL:
        given = {} if begun else _arguments(block)
        return {
            "type": "tool_use",
            "id": block.call_id or f"toolu_{block.number}",
            "name": block.name,
            "input": given,
        }
    text = "" if begun else block.text
    if block.kind is BlockKind.THOUGHT:
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _arguments(block: Block) -> Json:
    """The arguments of a tool call. Raises Malformed if they are no JSON object."""
    return wire.parse_object(block.text) if block.text else {}


def _delta(block: Block, text: str) -> Json:
    if block.kind is BlockKind.TOOL_CALL:
        return {"type": "input_json_delta", "partial_json": text}
    if block.kind is BlockKind.THOUGHT:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def _usage(usage: Json) -> dict[str, object]:
    made, read = usage_of({"usage": usage})
    cached = details_of({"usage": usage}).cached or 0
    return {
        "input_tokens": max(0, (read or 0) - cached),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": made or 0,
    }


def _event(kind: str, **fields: object) -> bytes:
    return sse.event({"type": kind, **fields}, kind)


def error_type(status: int) -> str:
    """The name that Anthropic's API has for errors of a status."""
    return _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")


_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
