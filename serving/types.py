"""What goes to a model and what comes back, as plain data: the client's own view of the OpenAI chat API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One chat completion. Every field changes the result, so every field is part of its digest."""

    messages: tuple[Message, ...]
    model: str = "default"
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0  # 0: none asked; else the k most likely tokens of each position (OpenAI: at most 20)
    sample: int = 0  # which of several samples of the same request; never sent, only keyed


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One generated token and the most likely tokens at its place, by log-probability (natural log)."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where one call's time went, as the gateway measured it. Seconds."""

    queue_s: float
    first_token_s: float  # from arrival at the gateway to the first token
    total_s: float
    deadline_s: float | None = None  # what was left at arrival, None for best effort
    met: bool | None = None  # None for best effort
    attempts: int = 1
    prefill_s: float = 0.0  # from admission to the first token
    decode_s: float = 0.0  # from the first token to the end, in the engine
    preempted_s: float = 0.0  # begun, and without its slot until it came on with the next token
    thought_s: float | None = None  # from the first thought to the first word of the answer; None: it did not think
    preemptions: int = 0
    replica: int = 0


@dataclass(frozen=True, slots=True)
class ChatResult:
    text: str
    finish_reason: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    ledger: Ledger | None = None


def user(content: str, *, system: str | None = None) -> tuple[Message, ...]:
    """The commonest conversation: one user message, after an optional system message."""
    head: Sequence[Message] = (Message("system", system),) if system else ()
    return (*head, Message("user", content))
