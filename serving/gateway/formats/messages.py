"""Anthropic's Messages API in terms of a chat: a request as a chat, and the chat's answer as a message.

What a chat cannot say (documents, tools that a provider runs) is refused by name. Fields that only tune a provider's
accounts, caches and budgets of thought are left out, as are the thoughts of earlier answers. An answer is a whole
body, or a stream of events.

Sources: https://docs.anthropic.com/en/api/messages,
https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import StreamPiece, details_of, usage_of
from ramify.serving.gateway.errors import ApiError, asks_nothing, bad_request, list_in, text_in
from ramify.serving.gateway.formats.chat_blocks import Block, BlockEvent, BlockKind, ChatBlocks, Step
from ramify.serving.protocol import wire
from ramify.serving.protocol.agent_hints import is_hint
from ramify.serving.protocol.tags import is_tag

Json = Mapping[str, object]
Chat = dict[str, object]
_AS_THEY_ARE = frozenset({"model", "stream", "temperature", "top_p", "top_k", "max_tokens"})
_READ = frozenset({"messages", "system", "stop_sequences", "tools", "tool_choice", "output_config", "metadata"})
_WITHOUT_EFFECT = frozenset(
    {
        "cache_control", "context_management", "inference_geo", "service_tier", "speed", "thinking",
        "user_profile_id", "workspace_id",
    }
)  # fmt: skip
# Anthropic's clients then send the whole conversation.
_NO_THREADS = {"details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
_OBJECTS = ("metadata", "output_config", "thinking")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of_messages(asked: Json) -> Chat:
    """The body of the chat. Raises ApiError, which names the field."""
    if asked.get("thread") is not None:
        problem = "thread: no conversation is kept here: send all of it in messages"
        raise ApiError(400, "invalid_request", problem, "thread", extra=_NO_THREADS)
    read = _AS_THEY_ARE | {"messages", "system"}
    said = {k: v for k, v in asked.items() if v is not None and (k in read or is_tag(k) or not asks_nothing(v))}
    passed = {k: v for k, v in said.items() if k in _AS_THEY_ARE or is_tag(k) or is_hint(k, v)}
    for name in said:
        if name not in passed and name not in _READ | _WITHOUT_EFFECT:
            raise bad_request(name, f"{name}: not supported here in a request for messages")
    most = asked.get("max_tokens")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise bad_request("max_tokens", "max_tokens: must be a whole number from 1 on")
    body: Chat = {**passed}
    body["messages"] = _messages(asked)
    if asked.get("stream"):
        body["stream_options"] = {"include_usage": True}
    if stops := list_in("stop_sequences", asked.get("stop_sequences")):
        body["stop"] = stops
    if tools := list_in("tools", asked.get("tools")):
        body["tools"] = [_tool(tool) for tool in tools]
    if (choice := asked.get("tool_choice")) is not None:
        body |= _tool_choice(choice)
    if (format_ := _response_format(asked.get("output_config"))) is not None:
        body["response_format"] = format_
    for name in _OBJECTS:
        if asked.get(name) is not None and not isinstance(asked[name], Mapping):
            raise bad_request(name, f"{name}: must be an object")
    metadata = asked.get("metadata")
    if isinstance(metadata, Mapping) and (user := metadata.get("user_id")) is not None:
        body["user"] = text_in("metadata", user)
    return body


def _messages(asked: Json) -> list[Chat]:
    systems = [] if (system := asked.get("system")) is None else [_joined("system", system)]
    turns: list[tuple[str, list[object]]] = []
    for message in list_in("messages", asked.get("messages")):
        role = message.get("role") if isinstance(message, Mapping) else None
        if not isinstance(message, Mapping) or role not in ("user", "assistant", "system"):
            raise bad_request(
                "messages", f"messages: a message's role must be user, assistant or system, not {str(role)[:60]!r}"
            )
        content = message.get("content")
        if role == "system" and not turns:
            systems.append(_joined("messages", content))
            continue
        speaker = "assistant" if role == "assistant" else "user"  # many templates refuse a system message here
        whole: list[object] = [{"type": "text", "text": content}]
        blocks = whole if isinstance(content, str) else list_in("messages", content)
        if turns and turns[-1][0] == speaker:  # Anthropic's API joins them, too
            turns[-1][1].extend(blocks)
        else:
            turns.append((speaker, list(blocks)))
    if not turns:
        raise ApiError(400, "empty_array", "messages: must hold at least one message", "messages")
    messages: list[Chat] = [{"role": "system", "content": "\n".join(systems)}] if systems else []
    for speaker, blocks in turns:
        messages += _user(blocks) if speaker == "user" else _assistant(blocks)
    return messages


def _user(blocks: list[object]) -> list[Chat]:
    """What a user says: the results of tools, each a message of its own, before the rest."""
    results: list[Chat] = []
    parts: list[Chat] = []
    for block in blocks:
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            result, images = _tool_result(block)
            results.append(result)
            parts += images
        else:
            parts.append(_part(block))
    if not parts:
        return results
    if all(part["type"] == "text" for part in parts):
        return [*results, {"role": "user", "content": "\n".join(str(part["text"]) for part in parts)}]
    return [*results, {"role": "user", "content": parts}]


def _tool_result(block: Json) -> tuple[Chat, list[Chat]]:
    """The message with the text of a result, and its images: a chat has those from its user only."""
    content = block.get("content")
    images: list[Chat] = []
    if isinstance(content, list):
        images = [_part(one) for one in content if isinstance(one, Mapping) and one.get("type") == "image"]
        content = [one for one in content if not (isinstance(one, Mapping) and one.get("type") == "image")]
    text = "" if content is None else _joined("messages", content)
    if block.get("is_error"):
        text = f"Error: {text}"
    result: Chat = {"role": "tool", "tool_call_id": text_in("messages", block.get("tool_use_id")), "content": text}
    return result, images


def _assistant(blocks: list[object]) -> list[Chat]:
    texts: list[str] = []
    calls: list[Chat] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if not isinstance(block, Mapping) or kind not in ("text", "tool_use", "thinking", "redacted_thinking"):
            raise bad_request("messages", f"messages: content of type {str(kind)[:60]!r} is not supported here")
        if kind == "text":
            texts.append(text_in("messages", block.get("text")))
        elif kind == "tool_use":
            if not isinstance(block.get("input") or {}, Mapping):
                raise bad_request("messages", "messages: the input of a tool_use must be an object")
            function = {
                "name": text_in("messages", block.get("name")),
                "arguments": json.dumps(block.get("input") or {}),
            }
            calls.append({"id": text_in("messages", block.get("id")), "type": "function", "function": function})
    content = "".join(texts) if texts or not calls else None
    return [{"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}]


def _part(block: object) -> Chat:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(block, Mapping) and kind == "text":
        return {"type": "text", "text": text_in("messages", block.get("text"))}
    source = block.get("source") if isinstance(block, Mapping) and kind == "image" else None
    if isinstance(source, Mapping):
        if source.get("type") == "url":
            return {"type": "image_url", "image_url": {"url": text_in("messages", source.get("url"))}}
        if source.get("type") == "base64":
            kind_of_image, data = (text_in("messages", source.get(name)) for name in ("media_type", "data"))
            return {"type": "image_url", "image_url": {"url": f"data:{kind_of_image};base64,{data}"}}
    raise bad_request("messages", f"messages: content of type {str(kind)[:60]!r} is not supported here")


def _joined(name: str, content: object) -> str:
    """Text, or a list of text blocks."""
    if isinstance(content, str):
        return content
    if content is not None and not isinstance(content, list):
        raise bad_request(name, f"{name}: must be a text or a list of blocks")
    texts = []
    for block in list_in(name, content):
        if not isinstance(block, Mapping) or block.get("type") != "text":
            kind = block.get("type") if isinstance(block, Mapping) else block
            raise bad_request(name, f"{name}: only text is supported here, not {str(kind)[:60]!r}")
        texts.append(text_in(name, block.get("text")))
    return "\n".join(texts)


def _tool(tool: object) -> Chat:
    if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise bad_request("tools", f"tools: {str(kind)[:60]!r} runs at a provider: only your own tools can be given")
    function: Chat = {"name": text_in("tools", tool.get("name")), "parameters": tool.get("input_schema") or {}}
    if tool.get("description") is not None:
        function["description"] = text_in("tools", tool.get("description"))
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _tool_choice(choice: object) -> Chat:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if isinstance(choice, Mapping) and kind == "tool":
        said: Chat = {"tool_choice": {"type": "function", "function": {"name": choice.get("name")}}}
    elif isinstance(kind, str) and kind in _CHOICES:
        said = {"tool_choice": _CHOICES[kind]}
    else:
        raise bad_request("tool_choice", "tool_choice: type must be auto, any, tool or none")
    if isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use"):
        said["parallel_tool_calls"] = False
    return said


def _response_format(config: object) -> Chat | None:
    format_ = config.get("format") if isinstance(config, Mapping) else None
    if format_ is None:
        return None
    if not isinstance(format_, Mapping) or format_.get("type") != "json_schema":
        raise bad_request("output_config", "output_config: format must be an object of type json_schema")
    named = {"name": "output", "strict": True, "schema": format_.get("schema") or {}}
    return {"type": "json_schema", "json_schema": named}


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
