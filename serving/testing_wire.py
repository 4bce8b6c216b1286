"""A scripted model's answers in OpenAI's formats: whole bodies and streams, for each of the three endpoints."""

from __future__ import annotations

import json
import re

from ramify.serving.types import ChatResult, TokenLogprobs, user


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def body_of(result: ChatResult, chat: bool) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": result.text}
    choice = {"index": 0, "finish_reason": result.finish_reason, "logprobs": _logprobs_of(result.logprobs)}
    choice |= {"message": message} if chat else {"text": result.text}
    kind = "chat.completion" if chat else "text_completion"
    head = {"id": "scripted", "object": kind, "created": 1, "model": result.model}
    return {**head, "choices": [choice], "usage": _usage_of(result)}


def stream_of(result: ChatResult, chat: bool, *, usage: bool) -> list[bytes]:
    """A stream of chunks, of which one more has the usage where the request asked for that."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": "scripted", "object": kind, "created": 1, "model": result.model}
    pieces: list[tuple[str, tuple[TokenLogprobs, ...]]] = [(e.token, (e,)) for e in result.logprobs]
    events: list[dict[str, object]] = []
    for text, entries in pieces or [(token, ()) for token in tokens(result.text)]:
        choice: dict[str, object] = {"index": 0, "finish_reason": None, "logprobs": _logprobs_of(entries)}
        said: dict[str, object] = {"delta": {"content": text}} if chat else {"text": text}
        events.append({**head, "choices": [choice | said]})
    end: dict[str, object] = {"index": 0, "finish_reason": result.finish_reason}
    end["delta" if chat else "text"] = {} if chat else ""
    events.append({**head, "choices": [end]})
    if usage:
        events.append({**head, "choices": [], "usage": _usage_of(result)})
    return [b"data: " + encoded(event) + b"\n\n" for event in events] + [b"data: [DONE]\n\n"]


def _logprobs_of(entries: tuple[TokenLogprobs, ...]) -> dict[str, object] | None:
    if not entries:
        return None
    content = [
        {"token": e.token, "logprob": e.logprob, "top_logprobs": [{"token": t, "logprob": p} for t, p in e.top]}
        for e in entries
    ]
    return {"content": content}


def _usage_of(result: ChatResult) -> dict[str, int]:
    total = result.prompt_tokens + result.completion_tokens
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": total,
    }


def as_messages(prompt: object) -> list[object]:
    return [{"role": m.role, "content": m.content} for m in user(str(prompt))]


def encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def response_of(result: ChatResult) -> dict[str, object]:
    """A whole answer of `/v1/responses`."""
    text = {"type": "output_text", "text": result.text, "annotations": []}
    said = {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {**_response("completed", result), "output": [said], "usage": _response_usage(result)}


def response_stream_of(result: ChatResult) -> list[bytes]:
    """The answer of `/v1/responses` as a stream of typed events, which ends without `[DONE]`."""
    at = {"item_id": "msg", "output_index": 0, "content_index": 0}
    item = {"id": "msg", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    said: list[dict[str, object]] = [
        {"type": "response.created", "response": _response("in_progress", result)},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", "part": part, **at},
    ]
    said += [{"type": "response.output_text.delta", "delta": token, **at} for token in tokens(result.text)]
    said += [
        {"type": "response.output_text.done", "text": result.text, **at},
        {"type": "response.completed", "response": response_of(result)},
    ]
    return [
        f"event: {event['type']}\n".encode() + b"data: " + encoded({**event, "sequence_number": number}) + b"\n\n"
        for number, event in enumerate(said)
    ]


def _response(status: str, result: ChatResult) -> dict[str, object]:
    head = {"id": "resp", "object": "response", "created_at": 1, "status": status, "model": result.model}
    return {**head, "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def _response_usage(result: ChatResult) -> dict[str, object]:
    total = result.prompt_tokens + result.completion_tokens
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "input_tokens": result.prompt_tokens,
        "output_tokens": result.completion_tokens,
        "total_tokens": total,
        **details,
    }
