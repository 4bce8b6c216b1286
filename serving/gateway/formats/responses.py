"""OpenAI's responses in terms of a chat, for engines whose own responses leave too much out.

A request for a response becomes a chat. What a chat cannot say (a stored conversation, tools that a provider runs) is
refused by name. Fields that only a provider's accounts and caches use are left out: they change no answer.

The chat's answer becomes a response: a whole body, or a stream of typed events. The embedded engine's own responses
leave out what clients require, and say `completed` of an answer that was cut
([OpenAI's reference](https://platform.openai.com/docs/api-reference/responses)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import StreamPiece, details_of, usage_of
from ramify.serving.gateway.errors import ApiError, asks_nothing, bad_request, list_in, text_in
from ramify.serving.gateway.formats.chat_blocks import Block, BlockEvent, BlockKind, ChatBlocks, Step
from ramify.serving.protocol import wire
from ramify.serving.protocol.agent_hints import without_hints
from ramify.serving.protocol.tags import without_tags

Json = Mapping[str, object]
_AS_THEY_ARE = frozenset(
    {"cache_salt", "model", "parallel_tool_calls", "seed", "stop", "stream", "temperature", "top_p"}
)
_WITHOUT_EFFECT = frozenset(
    {
        "background", "include", "metadata", "prompt_cache_key", "prompt_cache_retention", "reasoning",
        "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user",
    }
)  # fmt: skip
# Of them, and of those that are read: the type of each, which the response repeats.
_KINDS: Mapping[str, tuple[type, str]] = {
    "metadata": (dict, "an object"),
    "prompt_cache_key": (str, "a text"),
    "reasoning": (dict, "an object"),
    "safety_identifier": (str, "a text"),
    "service_tier": (str, "a text"),
    "store": (bool, "true or false"),
    "stream_options": (dict, "an object"),
    "text": (dict, "an object"),
    "truncation": (str, "auto or disabled"),
    "user": (str, "a text"),
}
_READ = frozenset({"input", "instructions", "max_output_tokens", "text", "tool_choice", "tools", "top_logprobs"})
_NO_STORE = "the embedded engine keeps no answers: send the whole conversation in input"
_WHY = {"previous_response_id": _NO_STORE, "conversation": _NO_STORE, "prompt": "no prompt templates are kept here"}
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = frozenset(
    {
        _LOGPROBS, "code_interpreter_call.outputs", "computer_call_output.output.image_url",
        "file_search_call.results", "message.input_image.image_url", "reasoning.encrypted_content",
        "web_search_call.action.sources", "web_search_call.results",
    }
)  # fmt: skip  # all but the first are of what no answer here has


def chat_of_response(asked: Json) -> dict[str, object]:
    """The body of the chat. Raises ApiError, which names the field, for what a chat cannot say."""
    plain = without_hints(without_tags(asked), None)
    for name, value in plain.items():
        if not asks_nothing(value) and name not in _AS_THEY_ARE | _WITHOUT_EFFECT | _READ:
            raise bad_request(name, f"{name}: {_WHY.get(name, 'not supported in a response of the embedded engine')}")
    _check_kinds(plain)
    body: dict[str, object] = {k: v for k, v in plain.items() if k in _AS_THEY_ARE and v is not None}
    body["messages"] = _messages(plain)
    if plain.get("stream"):
        body["stream_options"] = {"include_usage": True}
    if (most := plain.get("max_output_tokens")) is not None:
        body["max_tokens"] = most
    if tools := list_in("tools", plain.get("tools")):
        body["tools"] = [_tool(tool) for tool in tools]
    if (choice := plain.get("tool_choice")) is not None:
        body["tool_choice"] = _tool_choice(choice)
    if (format_ := _response_format(plain.get("text"))) is not None:
        body["response_format"] = format_
    top, included = plain.get("top_logprobs"), list_in("include", plain.get("include"))
    for part in included:
        if part not in _INCLUDABLE:
            raise bad_request("include", f"include: {str(part)[:60]!r} is nothing that an answer can have")
    if top or _LOGPROBS in included:
        body |= {"logprobs": True, "top_logprobs": top or 0}
    return body


def _check_kinds(asked: Json) -> None:
    for name, (kind, shown) in _KINDS.items():
        if asked.get(name) is not None and not isinstance(asked[name], kind):
            raise bad_request(name, f"{name}: must be {shown}")
    metadata = asked.get("metadata")
    if isinstance(metadata, Mapping) and not all(isinstance(value, str) for value in metadata.values()):
        raise bad_request("metadata", "metadata: each value must be a text")
    if asked.get("truncation") not in (None, "auto", "disabled"):
        raise bad_request("truncation", "truncation: must be auto or disabled")


def _messages(asked: Json) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    if (system := asked.get("instructions")) is not None:
        messages.append({"role": "system", "content": text_in("instructions", system)})
    said = asked.get("input")
    if said is None:
        raise ApiError(400, "missing_required_parameter", "input: is missing", "input")
    if not isinstance(said, str | list):
        raise bad_request("input", "input: must be a text or a list of items")
    if isinstance(said, str):
        return [*messages, {"role": "user", "content": said}]
    for item in list_in("input", said):
        if not isinstance(item, Mapping):
            raise bad_request("input", "input: each item must be an object")
        kind = item.get("type", "message")
        take = _ITEMS.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise bad_request("input", f"input: items of type {str(kind)[:60]!r} are not supported by this engine")
        take(item, messages)
    return messages


def _message(item: Json, messages: list[dict[str, object]]) -> None:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise bad_request("input", f"input: a message's role must be user, assistant, system or developer: {role!r}")
    content = item.get("content")
    if content is None:
        raise bad_request("input", f"input: a message of role {role} needs a content")
    if not isinstance(content, str):
        parts = [_chat_part(part) for part in list_in("input", content)]
        only_text = all(part["type"] == "text" for part in parts)
        content = "".join(str(part["text"]) for part in parts) if only_text else parts
    messages.append({"role": "system" if role == "developer" else role, "content": content})


def _chat_part(part: object) -> dict[str, object]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    assert isinstance(part, Mapping) or kind is None
    if isinstance(part, Mapping) and kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_in("input", part.get("text"))}
    if isinstance(part, Mapping) and kind == "refusal":
        return {"type": "text", "text": text_in("input", part.get("refusal"))}
    if isinstance(part, Mapping) and kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    raise bad_request("input", f"input: content of type {str(kind)[:60]!r} is not supported by this engine")


def _function_call(item: Json, messages: list[dict[str, object]]) -> None:
    call = {
        "id": text_in("input", item.get("call_id")),
        "type": "function",
        "function": {
            "name": text_in("input", item.get("name")),
            "arguments": text_in("input", item.get("arguments")),
        },
    }
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        last = {"role": "assistant", "content": None, "tool_calls": []}
        messages.append(last)
    calls = last.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)


def _function_output(item: Json, messages: list[dict[str, object]]) -> None:
    output = item.get("output")
    if not isinstance(output, str):
        output = "".join(
            str(part["text"]) for part in map(_chat_part, list_in("input", output)) if part["type"] == "text"
        )
    messages.append({"role": "tool", "tool_call_id": text_in("input", item.get("call_id")), "content": output})


def _thoughts(_: Json, __: list[dict[str, object]]) -> None:
    """Thoughts of earlier answers are left out: chat templates leave them out, too."""


_ITEMS: dict[str, Callable[[Json, list[dict[str, object]]], None]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_output,
    "reasoning": _thoughts,
}


def _tool(tool: object) -> dict[str, object]:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise bad_request("tools", f"tools: only functions are supported by this engine, not {str(kind)[:60]!r}")
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}}


def _tool_choice(choice: object) -> object:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise bad_request("tool_choice", "tool_choice: give auto, none, required, or one function by its name")


def _response_format(text: object) -> dict[str, object] | None:
    if text is None:
        return None
    asked = text.get("format") if isinstance(text, Mapping) else text
    if asked is None or (isinstance(asked, Mapping) and asked.get("type") == "text"):
        return None
    if isinstance(asked, Mapping) and asked.get("type") == "json_object":
        return {"type": "json_object"}
    if isinstance(asked, Mapping) and asked.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {k: v for k, v in asked.items() if k != "type"}}
    raise bad_request("text", "text: format must be an object of type text, json_object or json_schema")


# fields of the request that the response repeats, and their defaults
_ECHOED: Mapping[str, object] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}


class ResponseOfChat:
    """One response, made of a chat's chunks. `asked` is the client's request."""

    def __init__(self, asked: Json) -> None:
        self._asked = asked
        self._tops = top if isinstance(top := asked.get("top_logprobs"), int) else 0
        self._blocks = ChatBlocks()
        self._number = 0
        self._begun = False

    def event(self, raw: bytes | None, chunk: Json, piece: StreamPiece) -> bytes:
        happened = self._blocks.chunk(chunk)
        said = b""
        if not self._begun:
            self._begun = True
            for name in ("response.created", "response.in_progress"):
                said += self._event(name, response=self._response("in_progress", []))
        return said + b"".join(self._of_block(one) for one in happened)

    def end(self, ledger: Json) -> bytes:
        said = b"".join(self._of_block(one) for one in self._blocks.end())
        status = self._status
        whole = {**self._response(status, self._blocks.blocks), wire.LEDGER_KEY: ledger}
        return said + self._event(f"response.{status}", response=whole)

    def whole(self, answer: Json, ledger: Json) -> Json:
        self._blocks.whole(answer)
        return {**self._response(self._status, self._blocks.blocks), wire.LEDGER_KEY: ledger}

    @property
    def _status(self) -> str:
        return "completed" if self._reason is None else "incomplete"

    @property
    def _reason(self) -> str | None:
        """Why the answer is not complete; None if it is."""
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        return reasons.get(self._blocks.finish_reason or "")

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._number = self._number, self._number + 1
        return sse.event({"type": kind, "sequence_number": number, **fields}, kind)

    def _response(self, status: str, blocks: list[Block]) -> dict[str, object]:
        said = self._blocks
        echoed = {name: default if (v := self._asked.get(name)) is None else v for name, default in _ECHOED.items()}
        return {
            "id": f"resp_{_plain(said.id)}",
            "object": "response",
            "created_at": said.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": self._reason} if status == "incomplete" else None,
            "model": said.model,
            "output": [self._item(block, self._item_status(block)) for block in blocks],
            "previous_response_id": None,
            "store": False,
            "usage": None if status == "in_progress" else _usage(said.usage),
            **echoed,
        }

    def _item_status(self, block: Block) -> str:
        """Of several items of an answer that was cut, the last one is incomplete."""
        last = block.number == len(self._blocks.blocks) - 1
        return "incomplete" if last and self._reason is not None else "completed"

    def _item(self, block: Block, status: str, *, begun: bool = False) -> dict[str, object]:
        """An item of the output. `begun`: as it is when it begins."""
        head: dict[str, object] = {"id": self._item_id(block), "type": _ITEM[block.kind]}
        if block.kind is BlockKind.TOOL_CALL:
            call = {"call_id": block.call_id or head["id"], "name": block.name}
            return {**head, "status": status, **call, "arguments": "" if begun else block.text}
        content = [] if begun else [self._part(block, block.text)]
        if block.kind is BlockKind.THOUGHT:
            return {**head, "status": status, "summary": [], "content": content}
        return {**head, "status": status, "role": "assistant", "content": content}

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIX[block.kind]}_{_plain(self._blocks.id)}_{block.number}"

    def _of_block(self, happened: BlockEvent) -> bytes:
        block = happened.block
        at: dict[str, object] = {"item_id": self._item_id(block), "output_index": block.number}
        has_part = block.kind is not BlockKind.TOOL_CALL
        if has_part:
            at["content_index"] = 0
        name = _DELTAS[block.kind]
        match happened.step:
            case Step.OPENED:
                item = self._item(block, "in_progress", begun=True)
                said = self._event("response.output_item.added", output_index=block.number, item=item)
                return said + (
                    self._event("response.content_part.added", **at, part=self._part(block, "")) if has_part else b""
                )
            case Step.GREW:
                more = {"logprobs": _logprobs(happened.logprobs, self._tops)} if block.kind is BlockKind.TEXT else {}
                return self._event(f"{name}.delta", **at, delta=happened.delta, **more)
            case Step.CLOSED:
                return self._closed(block, at, name)

    def _part(self, block: Block, text: str) -> dict[str, object]:
        if block.kind is BlockKind.THOUGHT:
            return {"type": "reasoning_text", "text": text}
        if block.kind is BlockKind.REFUSAL:
            return {"type": "refusal", "refusal": text}
        said = _logprobs(block.logprobs, self._tops) if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": said}

    def _closed(self, block: Block, at: Json, name: str) -> bytes:
        more: dict[str, object] = {_WHOLE[block.kind]: block.text}
        if block.kind is BlockKind.TEXT:
            more["logprobs"] = _logprobs(block.logprobs, self._tops)
        elif block.kind is BlockKind.TOOL_CALL:
            more["name"] = block.name
        said = self._event(f"{name}.done", **at, **more)
        if block.kind is not BlockKind.TOOL_CALL:
            said += self._event("response.content_part.done", **at, part=self._part(block, block.text))
        item = self._item(block, self._item_status(block))
        return said + self._event("response.output_item.done", output_index=block.number, item=item)


_ITEM = {
    BlockKind.THOUGHT: "reasoning",
    BlockKind.TEXT: "message",
    BlockKind.REFUSAL: "message",
    BlockKind.TOOL_CALL: "function_call",
}
_PREFIX = {BlockKind.THOUGHT: "rs", BlockKind.TEXT: "msg", BlockKind.REFUSAL: "msg", BlockKind.TOOL_CALL: "fc"}
_DELTAS = {
    BlockKind.THOUGHT: "response.reasoning_text",
    BlockKind.TEXT: "response.output_text",
    BlockKind.REFUSAL: "response.refusal",
    BlockKind.TOOL_CALL: "response.function_call_arguments",
}
_WHOLE = {
    BlockKind.THOUGHT: "text",
    BlockKind.TEXT: "text",
    BlockKind.REFUSAL: "refusal",
    BlockKind.TOOL_CALL: "arguments",
}


def _logprobs(entries: tuple[Json, ...] | list[Json], tops: int) -> list[dict[str, object]]:
    """Log-probabilities as responses have them: with bytes, and without the engine's token numbers."""
    return [{**_token(one), "top_logprobs": [_token(top) for top in _listed(one)[:tops]]} for one in entries]


def _listed(entry: Json) -> list[Json]:
    top = entry.get("top_logprobs")
    return [one for one in top if isinstance(one, Mapping)] if isinstance(top, list) else []


def _token(entry: Json) -> dict[str, object]:
    token = str(entry.get("token", ""))
    said = entry.get("bytes")
    return {
        "token": token,
        "bytes": said if isinstance(said, list) else list(token.encode("utf-8", "surrogatepass")),
        "logprob": entry.get("logprob"),
    }


def _usage(usage: Json) -> dict[str, object] | None:
    made, read = usage_of({"usage": usage})
    if made is None or read is None:
        return None
    said = usage.get("completion_tokens_details")
    thought = said.get("reasoning_tokens") if isinstance(said, Mapping) else None
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": details_of({"usage": usage}).cached or 0,
            "cache_write_tokens": 0,
        },
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": thought if isinstance(thought, int) else 0},
        "total_tokens": made + read,
    }


def _plain(chat_id: str) -> str:
    """The part of a chat's id that only this answer has."""
    return chat_id.removeprefix("chatcmpl-")
