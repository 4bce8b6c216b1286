"""The blocks of a chat's answer: runs of text, of thoughts, of a refusal, and calls of tools.

A chat's answer is a list of deltas without ends. The other formats name each run, and say when it begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ramify.serving.protocol.wire import Malformed

Json = Mapping[str, object]


class BlockKind(StrEnum):
    THOUGHT = "thought"
    TEXT = "text"
    REFUSAL = "refusal"
    TOOL_CALL = "tool_call"


@dataclass
class Block:
    """One run of the answer."""

    number: int  # in the answer, from 0
    kind: BlockKind
    tool: int = -1  # of a tool call, the chat's own number
    call_id: str = ""
    name: str = ""
    text: str = ""  # so far; of a tool call its arguments
    logprobs: list[Json] = field(default_factory=list)


class Step(StrEnum):
    """What happened to a block."""

    OPENED = "opened"
    GREW = "grew"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class BlockEvent:
    step: Step
    block: Block
    delta: str = ""
    logprobs: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class _Piece:
    kind: BlockKind
    delta: str
    tool: int = -1
    call_id: str = ""
    name: str = ""


class ChatBlocks:
    """Reads the chunks of a stream, or the body of a whole answer. Only the first choice counts."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.id = ""
        self.model = ""
        self.created = 0
        self.finish_reason: str | None = None
        self.stop_reason: object = None  # vLLM's: the stop sequence that ended the answer
        self.usage: Json = {}
        self._open: Block | None = None

    def chunk(self, chunk: Json) -> list[BlockEvent]:
        """The events of one chunk of a stream. Raises Malformed for a tool call that goes on after its end."""
        return self._read(chunk, "delta")

    def whole(self, answer: Json) -> None:
        """Read the body of a whole answer."""
        self._read(answer, "message")
        self.end()

    def end(self) -> list[BlockEvent]:
        """The end of the block that is open."""
        block, self._open = self._open, None
        return [] if block is None else [BlockEvent(Step.CLOSED, block)]

    def _read(self, chunk: Json, part: str) -> list[BlockEvent]:
        self.id = self.id or str(chunk.get("id") or "")
        self.model = str(chunk.get("model") or self.model)
        created = chunk.get("created")
        self.created = created if isinstance(created, int) else self.created
        usage = chunk.get("usage")
        self.usage = usage if isinstance(usage, Mapping) else self.usage
        said: list[BlockEvent] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, Mapping) or choice.get("index", 0) != 0:
                continue
            delta = choice.get(part)
            logprobs = choice.get("logprobs")
            entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
            for piece in _pieces(delta if isinstance(delta, Mapping) else {}):
                said += self._take(piece, tuple(entries or ()) if piece.kind is BlockKind.TEXT else ())
            if isinstance(reason := choice.get("finish_reason"), str):
                self.finish_reason, self.stop_reason = reason, choice.get("stop_reason")
        return said

    def _take(self, piece: _Piece, logprobs: tuple[Json, ...]) -> Iterator[BlockEvent]:
        block = self._open
        if block is None or (block.kind, block.tool) != (piece.kind, piece.tool):
            yield from self.end()
            if piece.kind is BlockKind.TOOL_CALL and not piece.name:
                raise Malformed(f"tool call {piece.tool} goes on after its end, or has no name")
            block = self._open = Block(len(self.blocks), piece.kind, piece.tool, piece.call_id, piece.name)
            self.blocks.append(block)
            yield BlockEvent(Step.OPENED, block)
        if piece.delta:
            block.text += piece.delta
            block.logprobs += logprobs
            yield BlockEvent(Step.GREW, block, piece.delta, logprobs)


_TEXTS = (
    ("reasoning_content", BlockKind.THOUGHT),
    ("reasoning", BlockKind.THOUGHT),
    ("content", BlockKind.TEXT),
    ("refusal", BlockKind.REFUSAL),
)


def _pieces(delta: Json) -> Iterator[_Piece]:
    thought = False
    for name, kind in _TEXTS:
        text = delta.get(name)
        if isinstance(text, str) and text and not (thought and kind is BlockKind.THOUGHT):
            thought = kind is BlockKind.THOUGHT
            yield _Piece(kind, text)
    calls = delta.get("tool_calls")
    for at, call in enumerate(calls if isinstance(calls, list) else ()):
        if not isinstance(call, Mapping):
            continue
        function = call.get("function")
        function = function if isinstance(function, Mapping) else {}
        index = call.get("index", at)
        yield _Piece(
            BlockKind.TOOL_CALL,
            str(function.get("arguments") or ""),
            index if isinstance(index, int) else at,
            str(call.get("id") or ""),
            str(function.get("name") or ""),
        )
