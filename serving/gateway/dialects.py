"""OpenAI's three endpoints for answers, and what the gateway must understand of their streams.

Everything else in an answer (tools, structured output, log-probabilities, usage) passes through as the engine sent
it. The last part of the module resumes an interrupted answer on engines that can continue a given text: `resumable`
says which calls allow it, `continued` makes the request for the rest, and `rejoin_chunk` fits its chunks to the first
part, so that the client gets one answer under one id. Only calls for which the break stays invisible are resumable:
one plain text, without a seed unless greedy, without log-probabilities, tools, schema or stop words (a stop word
could span the break).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ramify.serving.protocol.wire import refusal_from_line

MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """The content of one event of a stream."""

    answers: bool = False  # a part of the answer that a client can show; tool calls count
    thinks: bool = False  # reasoning, which comes before the answer
    text: str = ""  # the answer text of the first choice
    ends: bool = False  # nothing of the answer follows
    cut: bool = False  # if it ends: at its limit
    whole: bool = True  # if it ends: as the engine wanted, not by a failure
    refused: tuple[str, float | None] | None = None  # by the engine's scheduler: reason, and least feasible deadline
    failed: object = None  # the engine's own account of why it broke off
    tokens: int | None = None  # generated so far, if the event says so
    prompt_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One of the three endpoints."""

    path: str  # after /v1
    prompt_field: str
    read: Callable[[Mapping[str, object]], StreamPiece]
    last_is_whole: bool = False  # the last event holds the whole answer, and no [DONE] follows


def _chat(chunk: Mapping[str, object]) -> StreamPiece:
    answers = thinks = False
    text = ""
    choices = _objects(chunk.get("choices"))
    for choice in choices:
        delta = choice.get("delta")
        for name, value in delta.items() if isinstance(delta, Mapping) else ():
            if not value or name == "role":
                continue
            if name in ("reasoning_content", "reasoning"):
                thinks = True
            else:
                answers = True
                if name == "content" and isinstance(value, str) and not choice.get("index"):
                    text += value
    return _piece(chunk, choices, answers=answers, thinks=thinks, text=text)


def _text(chunk: Mapping[str, object]) -> StreamPiece:
    choices = _objects(chunk.get("choices"))
    said = [text for c in choices if isinstance(text := c.get("text"), str) and text and not c.get("index")]
    return _piece(chunk, choices, answers=any(c.get("text") for c in choices), thinks=False, text="".join(said))


def _piece(
    chunk: Mapping[str, object],
    choices: list[Mapping[str, object]],
    *,
    answers: bool,
    thinks: bool,
    text: str,
) -> StreamPiece:
    """The parts that chat and text completions share."""
    reasons = [reason for c in choices if (reason := c.get("finish_reason")) is not None]
    made, read = usage_of(chunk)
    return StreamPiece(
        answers=answers,
        thinks=thinks,
        text=text,
        ends=bool(reasons),
        cut="length" in reasons,
        refused=refusal_of(choices) if reasons else None,
        failed=chunk.get("error"),
        tokens=made,
        prompt_tokens=read,
    )


def _response(chunk: Mapping[str, object]) -> StreamPiece:
    kind = chunk.get("type")
    kind = kind if isinstance(kind, str) else ""
    if kind == "error" or (not kind and "error" in chunk):
        return StreamPiece(failed=chunk.get("error") or chunk.get("message") or "no reason given")
    if kind in ("response.completed", "response.incomplete", "response.failed"):
        response = chunk.get("response")
        made, read = usage_of(response if isinstance(response, Mapping) else {})
        cut = kind == "response.incomplete"
        return StreamPiece(ends=True, cut=cut, whole=kind != "response.failed", tokens=made, prompt_tokens=read)
    if not kind.endswith(".delta"):
        return StreamPiece()
    thinks = kind.startswith("response.reasoning")
    delta = chunk.get("delta")
    text = delta if kind == "response.output_text.delta" and isinstance(delta, str) else ""
    return StreamPiece(answers=not thinks, thinks=thinks, text=text)


def refusal_of(answer: object) -> tuple[str, float | None] | None:
    """The refusal by the engine's scheduler, if a choice holds one (see `wire.refusal_to_line`)."""
    for choice in _objects(answer):
        if (refused := refusal_from_line(choice.get("stop_reason"))) is not None:
            return refused
    return None


def answer_id(chunk: Mapping[str, object]) -> str | None:
    """The engine's id of its answer, if this event has it; in a typed stream only some events do."""
    response = chunk.get("response")
    said = (response if isinstance(response, Mapping) else chunk).get("id")
    return said if isinstance(said, str) else None


def was_cut(answer: Mapping[str, object]) -> bool:
    """True if an answer that came as a whole ended at its limit."""
    reasons = [choice.get("finish_reason") for choice in _objects(answer.get("choices"))]
    return "length" in reasons or answer.get("status") == "incomplete"


def usage_of(body: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Tokens generated and tokens of the prompt, as an answer reports them."""
    usage = body.get("usage")
    if not isinstance(usage, Mapping):
        return None, None
    made = usage.get("completion_tokens", usage.get("output_tokens"))
    read = usage.get("prompt_tokens", usage.get("input_tokens"))
    return _count(made), _count(read)


@dataclass(frozen=True, slots=True)
class Times:
    """An engine's own account of the time that one answer took, without any wait."""

    prompt_tokens: int  # that it computed
    prompt_s: float
    tokens: int
    decode_s: float  # from the first token to the last


@dataclass(frozen=True, slots=True)
class Details:
    """What an engine reports beyond the numbers of tokens, if it does."""

    cached: int | None = None  # tokens of the prompt that came from its cache
    times: Times | None = None


def details_of(body: Mapping[str, object]) -> Details:
    """The details in a whole answer, or in the event of a stream that holds the usage."""
    usage, said = body.get("usage"), body.get("timings")
    cached = None
    for name in ("prompt_tokens_details", "input_tokens_details"):
        parts = usage.get(name) if isinstance(usage, Mapping) else None
        if isinstance(parts, Mapping) and cached is None:
            cached = _count(parts.get("cached_tokens"))
    return Details(cached, _times(said) if isinstance(said, Mapping) else None)


def _times(said: Mapping[str, object]) -> Times | None:
    """The times as llama.cpp reports them; None if any of them is missing or impossible."""
    read, made = _count(said.get("prompt_n")), _count(said.get("predicted_n"))
    prompt_ms, decode_ms = said.get("prompt_ms"), said.get("predicted_ms")
    if read is None or made is None or type(prompt_ms) not in (int, float) or type(decode_ms) not in (int, float):
        return None
    assert isinstance(prompt_ms, int | float) and isinstance(decode_ms, int | float)
    if not (0.0 <= prompt_ms < 1e12 and 0.0 <= decode_ms < 1e12):
        return None
    return Times(read, prompt_ms / 1000, made, decode_ms / 1000)


def _count(said: object) -> int | None:
    """The value as a number of tokens, if it can be one."""
    return said if type(said) is int and 0 <= said <= MOST_TOKENS else None


def _objects(value: object) -> list[Mapping[str, object]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


CHAT = Dialect("/chat/completions", "messages", _chat)
TEXT = Dialect("/completions", "prompt", _text)
RESPONSES = Dialect("/responses", "input", _response, last_is_whole=True)


_IN_A_PART = ("response.content_part.", "response.output_text.", "response.refusal.")


class ResponseEventNumbers:
    """Of one stream: the number of each event, and the item and the part of it that the event is about."""

    def __init__(self) -> None:
        self._number = 0
        self._items: dict[str, int] = {}
        self._parts: dict[str, int] = {}

    def completed(self, event: Mapping[str, object]) -> dict[str, object] | None:
        """The event with all of them; None where it has its number, and with it the rest, and for what is none of
        OpenAI's."""
        kind = event.get("type")
        ours = isinstance(kind, str) and kind.startswith("response.") and kind.isascii() and kind.isprintable()
        if not ours or "sequence_number" in event:
            return None
        whole = {**event, "sequence_number": self._number}
        self._number += 1
        kind, item = str(kind), event.get("item")
        name = item.get("id") if isinstance(item, Mapping) else event.get("item_id")
        if not isinstance(name, str):
            return whole
        whole.setdefault("output_index", self._items.setdefault(name, len(self._items)))
        if kind == "response.content_part.added":
            self._parts[name] = self._parts.get(name, -1) + 1
        if kind.startswith(_IN_A_PART):
            whole.setdefault("content_index", self._parts.get(name, 0))
        if kind in ("response.output_text.delta", "response.output_text.done"):
            whole.setdefault("logprobs", [])
        return whole


_PLAIN_CHAT = frozenset(
    {
        "model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature",
        "top_p", "top_k", "min_p", "seed", "n", "user", "metadata",
    }
)  # fmt: skip
_PLAIN_TEXT = (_PLAIN_CHAT - {"messages", "max_completion_tokens"}) | {"prompt"}


def resumable(dialect: Dialect, body: Mapping[str, object]) -> bool:
    """Would interrupting this call and continuing it later be invisible, except for the time that it takes?"""
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
    """The body of a request for the rest of an answer, of which `text` (`tokens` tokens) is there already."""
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


def rejoin_chunk(chunk: Mapping[str, object], head: Mapping[str, object], tokens: int) -> dict[str, object] | None:
    """A chunk of the second part as the client of the first part expects it; None for one that only opens an
    answer."""
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
