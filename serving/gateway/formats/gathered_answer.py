"""One whole answer of the chunks of a stream.

llama.cpp counts the tokens of the first answer only when it is asked for several and does not stream. In a stream it
counts each. So the gateway asks for a stream then, and joins the chunks for its client.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import CHAT, Dialect
from ramify.serving.gateway.errors import broken_off
from ramify.serving.gateway.formats.apis import usage_of_all
from ramify.serving.protocol import wire

Json = Mapping[str, object]
_GIVEN_ONCE = frozenset({"role", "type", "id", "name", "index", "finish_reason"})
_OBJECTS = {"chat.completion.chunk": "chat.completion"}


def as_stream(body: Json) -> dict[str, object]:
    """The request for the chunks in place of the whole answer."""
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


async def gathered(
    stream: AsyncGenerator[list[sse.Event], None], dialect: Dialect, of_each: int
) -> dict[str, object] | None:
    """The whole answer of a stream; None if the stream ends before it. `of_each`: answers to each prompt."""
    answer, usages = GatheredAnswer(dialect), list[Json]()
    async with aclosing(stream) as batches:
        async for event in (event async for batch in batches for event in batch):
            if event.data == sse.DONE:
                return answer.whole(usage_of_all(usages, of_each) if usages else None)
            if not event.data:
                continue
            chunk = wire.parse_object(event.data)
            if (failed := dialect.read(chunk).failed) is not None:
                raise broken_off(failed)
            answer.add(chunk)
            if isinstance(chunk.get("usage"), Mapping):
                usages.append(chunk)
    return None


class GatheredAnswer:
    """The whole answer, as far as its chunks have come."""

    def __init__(self, dialect: Dialect) -> None:
        self._chat = dialect is CHAT
        self._head: dict[str, object] = {}
        self._choices: dict[int, dict[str, object]] = {}

    def add(self, chunk: Json) -> None:
        self._head.update(
            {name: value for name, value in chunk.items() if name not in ("choices", "usage", "timings")}
        )
        listed = chunk.get("choices")
        for choice in listed if isinstance(listed, list) else ():
            number = choice.get("index") if isinstance(choice, Mapping) else None
            if isinstance(number, int):
                self._choices[number] = _joined(self._choices.get(number, {}), choice)

    def whole(self, usage: Json | None) -> dict[str, object]:
        """The answer, with the usage of all choices."""
        choices = [self._whole_choice(choice) for _, choice in sorted(self._choices.items())]
        kind = self._head.get("object")
        named = {**self._head, "object": _OBJECTS.get(str(kind), kind), "choices": choices}
        return {**named, **({} if usage is None else {"usage": usage})}

    def _whole_choice(self, choice: dict[str, object]) -> dict[str, object]:
        if not self._chat:
            return {"logprobs": None, **choice}
        delta = choice.get("delta")
        message: dict[str, object] = {
            "role": "assistant",
            "content": None,
            **(delta if isinstance(delta, Mapping) else {}),
        }
        if message["content"] is None and not message.get("tool_calls"):
            message["content"] = ""
        if isinstance(calls := message.get("tool_calls"), list):
            message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in calls]
        return {"message": message, **{name: value for name, value in choice.items() if name != "delta"}}


def _joined(known: Mapping[str, object], more: Json) -> dict[str, object]:
    """Texts and lists go on where they ended; the parts of a list that have numbers go on one by one."""
    made = dict(known)
    for name, value in more.items():
        before = made.get(name)
        if value is None:
            made.setdefault(name, None)
        elif before is None and not isinstance(value, list):
            made[name] = value
        elif name in _GIVEN_ONCE:
            made[name] = value or before
        elif isinstance(before, str) and isinstance(value, str):
            made[name] = before + value
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            made[name] = _joined(before, value)
        elif isinstance(value, list):
            made[name] = _longer(before if isinstance(before, list) else [], value)
        else:
            made[name] = value
    return made


def _longer(known: list[object], more: list[object]) -> list[object]:
    made = list(known)
    for part in more:
        number = part.get("index") if isinstance(part, Mapping) else None
        at = next((at for at, one in enumerate(made) if number is not None and _index(one) == number), None)
        if at is None:
            made.append(part)
            continue
        before = made[at]
        assert isinstance(before, Mapping) and isinstance(part, Mapping)
        made[at] = _joined(before, part)
    return made


def _index(part: object) -> object:
    return part.get("index") if isinstance(part, Mapping) else None
