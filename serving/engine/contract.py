"""The contract of an engine that Ramify starts, and the `--engine` options that name one."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ramify.serving.protocol import wire


class Engine(Protocol):
    """A process with an OpenAI-compatible server. An async context manager; entering raises EngineFailed."""

    base_url: str
    slots: int
    alias: str  # the model's name in requests

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def ended(self) -> int:
        """Returns the exit status once the process has ended."""
        ...


class EngineKind(StrEnum):
    LOCAL = "local"  # llama.cpp in a child process
    VLLM = "vllm"  # vLLM with our scheduler in a child process
    URL = "url"  # an OpenAI-compatible server that somebody else runs


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One `--engine`: `local`, `vllm` or a base URL."""

    kind: EngineKind
    url: str = ""

    @classmethod
    def parse(cls, text: str) -> EngineSpec:
        """Parse an option. Raises ValueError, which says what may be given."""
        if text in (EngineKind.LOCAL, EngineKind.VLLM):
            return cls(EngineKind(text))
        try:
            return cls.at(text)
        except ValueError:
            raise ValueError(f"{wire.redacted(text)!r} is not an engine: give local, vllm or a base URL") from None

    @classmethod
    def at(cls, url: str) -> EngineSpec:
        """The engine at a URL. Raises ValueError."""
        return cls(EngineKind.URL, wire.api_root(url))

    @property
    def shown(self) -> str:
        return {EngineKind.LOCAL: "the embedded model", EngineKind.VLLM: "vLLM"}.get(
            self.kind, wire.redacted(self.url)
        )


def ended_early(who: str, status: int, log: Path) -> str:
    """Why an engine is not there that ended before it was ready."""
    why = " (SIGKILL: the kernel does so if memory is short)" if status == -signal.SIGKILL else ""
    return f"{who} ended with status {status}{why} before it was ready; it said last:\n{log_tail(log)}"


def log_tail(log: Path) -> str:
    """The last 20 lines of an engine's log, for error messages."""
    text = log.read_text("utf-8", "replace").splitlines()
    return "\n".join(text[-20:]) or "(nothing)"
