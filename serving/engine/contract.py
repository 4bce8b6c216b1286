"""What an engine is to those that run one: a process with an OpenAI-compatible server, which can end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from ramify.serving.protocol import wire


class Engine(Protocol):
    """An async context manager. Entering raises EngineFailed where it does not start."""

    base_url: str
    slots: int
    alias: str  # the model's name in requests

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def ended(self) -> int:
        """Returns when the process is no more: its exit status."""
        ...


class EngineKind(StrEnum):
    LOCAL = "local"  # llama.cpp in a child process
    VLLM = "vllm"  # vLLM with our scheduler in a child process
    URL = "url"  # any OpenAI-compatible server, which runs by itself


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One `--engine`: `local`, `vllm` or a base URL."""

    kind: EngineKind
    url: str = ""

    @classmethod
    def parse(cls, text: str) -> EngineSpec:
        """Raises ValueError, saying what may be given."""
        if text in (EngineKind.LOCAL, EngineKind.VLLM):
            return cls(EngineKind(text))
        try:
            return cls(EngineKind.URL, wire.api_root(text))
        except ValueError:
            raise ValueError(f"{wire.redacted(text)!r} is no engine: give local, vllm or a base URL") from None

    @property
    def shown(self) -> str:
        return {EngineKind.LOCAL: "the embedded model", EngineKind.VLLM: "vLLM"}.get(
            self.kind, wire.redacted(self.url)
        )
