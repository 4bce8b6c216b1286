"""Going on with an answer that was broken off, on engines that continue a text they are given.

What a client gets must be one answer: the second part under the first one's id, counted from where that stopped.
Only calls are taken for which this is so: one plain text, not seeded unless greedy, no log-probabilities, no tools,
no schema, no stop words (one could stand across the break).
"""

from __future__ import annotations

from collections.abc import Mapping

from ramify.serving.gateway.dialects import CHAT, TEXT, Dialect

_PLAIN_CHAT = frozenset(
    {
        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "top_k", "min_p", "seed", "n", "user", "metadata",
    }
)  # fmt: skip
_PLAIN_TEXT = (_PLAIN_CHAT - {"messages", "max_completion_tokens"}) | {"prompt"}


def resumable(dialect: Dialect, body: Mapping[str, object]) -> bool:
    """Would breaking this call off and going on later be invisible but for the time it takes?"""
    plain = {CHAT: _PLAIN_CHAT, TEXT: _PLAIN_TEXT}.get(dialect, frozenset[str]())
    if body.get("stream") is not True or body.get("n", 1) != 1 or any(f not in plain for f in body):
        return False
    if body.get("seed") is not None and body.get("temperature") != 0:
        return False
    if dialect is TEXT:
        return isinstance(body.get("prompt"), str)
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "user"


def continued(dialect: Dialect, body: Mapping[str, object], text: str, tokens: int) -> dict[str, object]:
    """The body that asks for the rest, where `text` of `tokens` tokens is there already."""
    rest = dict(body)
    for limit in ("max_tokens", "max_completion_tokens"):
        asked = rest.get(limit)
        if isinstance(asked, int):
            rest[limit] = max(1, asked - tokens)
    if dialect is TEXT:
        return {**rest, "prompt": f"{body['prompt']}{text}"}
    messages = body["messages"]
    assert isinstance(messages, list)
    begun = {"role": "assistant", "content": text}
    return {**rest, "messages": [*messages, begun], "continue_final_message": True, "add_generation_prompt": False}


def rejoined(chunk: Mapping[str, object], head: Mapping[str, object], tokens: int) -> dict[str, object] | None:
    """A chunk of the second part as the first part's client expects it; None for one that only opens an answer."""
    joined = {**chunk, **head}
    choices = []
    listed = chunk.get("choices")
    for choice in listed if isinstance(listed, list) else []:
        delta = choice.get("delta")
        if isinstance(delta, Mapping) and "role" in delta:
            delta = {k: v for k, v in delta.items() if k != "role" and v}
            if not delta and choice.get("finish_reason") is None:
                continue
            choice = {**choice, "delta": delta}
        choices.append(choice)
    if listed and not choices:
        return None
    usage = chunk.get("usage")
    if isinstance(usage, Mapping):
        made, read = usage.get("completion_tokens"), usage.get("prompt_tokens")
        if isinstance(made, int) and isinstance(read, int):
            joined["usage"] = {**usage, "completion_tokens": made + tokens, "prompt_tokens": max(0, read - tokens)}
    return {**joined, "choices": choices}
