"""The host's handle of a Python session in a world."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ramify.sandboxes.agent.messages import CloseSession, CodeResult, Done, ForkSession, Message, RunCode
from ramify.sandboxes.contract import ReplResult, check_seconds

SESSION = Path(__file__).parents[1] / "agent" / "checkpointing" / "python_session.py"
SESSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

T = TypeVar("T")


class Ask(Protocol):
    """Send a message to the session's world, under the world's lock, and return the reply."""

    def __call__(self, message: Message, kind: type[T]) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class AgentRepl:
    """A session of a world that has an agent."""

    ask: Ask
    name: str

    async def run(self, code: str, *, timeout: float | None = None) -> ReplResult:
        check_seconds(timeout)
        told = await self.ask(RunCode(self.name, code, timeout), CodeResult)
        stdout, stderr = (stream.decode("utf-8", "replace") for stream in (told.stdout, told.stderr))
        return ReplResult(told.value, told.error, stdout, stderr, told.timed_out, told.truncated, told.lives)

    async def fork(self, name: str) -> AgentRepl:
        if not SESSION_NAME.fullmatch(name):
            raise ValueError(f"not a name for a Python session: {name!r}")
        await self.ask(ForkSession(self.name, name), Done)
        return AgentRepl(self.ask, name)

    async def close(self) -> None:
        await self.ask(CloseSession(self.name), Done)
