"""Chat requests and results as plain data: the client's view of OpenAI's chat API.

Recorded runs store these classes by their qualified names (`ramify.serving.types:ChatResult`): do not rename or move
them without an alias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion. Every field changes the result, so every field belongs to the request's digest."""

    messages: tuple[Message, ...]
    model: str = "default"
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0  # the k most likely tokens of each position (OpenAI: at most 20); 0 asks for none
    sample: int = 0  # tells samples of the same request apart; part of the digest, never sent


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One generated token, and the most likely tokens at its position with their natural-log probabilities."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where one call's time went, as measured by the gateway. All times in seconds."""

    queue_s: float
    first_token_s: float  # from arrival at the gateway to the first token
    total_s: float
    deadline_s: float | None = None  # time left at arrival; None: best effort
    met: bool | None = None  # None for best effort
    attempts: int = 1
    prefill_s: float = 0.0  # from admission to the first token
    decode_s: float = 0.0  # from the first token to the end, in the engine
    preempted_s: float = 0.0  # preempted after its first token, until the next token came
    thought_s: float | None = None  # from the first thought to the first word of the answer; None: no thinking
    preemptions: int = 0
    replica: int = 0
    qoe: float | None = None  # quality of experience of a stream, from 0 to 1 (ramify.serving.qoe); None for others


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The whole answer to a ChatRequest."""

    text: str
    finish_reason: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    ledger: Ledger | None = None


def user(content: str, *, system: str | None = None) -> tuple[Message, ...]:
    """A conversation of one user message, after an optional system message."""
    head: Sequence[Message] = (Message("system", system),) if system else ()
    return (*head, Message("user", content))
