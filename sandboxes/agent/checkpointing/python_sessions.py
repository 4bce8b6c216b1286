"""The agent's side of Python sessions: start them, send them requests, notice their end. Stdlib only.

A session is an ordinary process of the world and a descendant of the shell, so it is dumped with the shell. Its two
named pipes lie in the agent's private folder; the agent of a restored world creates them again.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from ramify.sandboxes.agent.checkpointing.process_dump import ImageBase
from ramify.sandboxes.agent.private_folder import PrivateFolder

CHUNK = 1 << 16
SOURCE = "session.py"


@dataclass(slots=True)
class PythonSession:
    """One Python session. It does not read by itself: the agent's loop calls `read_reply`."""

    name: str
    requests: int  # we write here
    answers: int  # we read here
    held: tuple[int, ...]  # the session's own ends, kept open until it has opened them
    pid: int = 0
    watch: int = -1  # a pidfd
    answer: dict[str, object] | None = None
    ended: bool = False
    image_base: ImageBase = field(default_factory=ImageBase)
    _heard: bytearray = field(default_factory=bytearray)

    def ask(self, request: dict[str, object]) -> None:
        """Send a request. `answer` is set when the session has replied, `ended` if it ends first."""
        self.answer = None
        data = json.dumps(request).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self.requests, data) :]
        except BrokenPipeError:
            self.ended = True

    def read_reply(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._heard += os.read(self.answers, CHUNK)
        line, end, rest = self._heard.partition(b"\n")
        if end:
            self._heard = rest
            self.answer = json.loads(line)

    def started(self, pid: int) -> None:
        """Note that it lives, with this pid. Raises `ProcessLookupError` if it does not."""
        self.pid, self.watch = pid, os.pidfd_open(pid)
        for descriptor in self.held:
            os.close(descriptor)
        self.held = ()

    def interrupt(self) -> None:
        self.send(signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.watch, number)

    def close(self) -> None:
        for descriptor in (self.requests, self.answers, self.watch, *self.held):
            if descriptor >= 0:
                os.close(descriptor)
        self.image_base.close()


class PythonSessions:
    """The sessions of one world, by name."""

    def __init__(self, private: PrivateFolder, poll: select.poll) -> None:
        self._private, self._poll = private, poll
        self._sessions: dict[str, PythonSession] = {}

    def __iter__(self) -> Iterator[PythonSession]:
        return iter(self._sessions.values())

    def get(self, name: str) -> PythonSession | None:
        return self._sessions.get(name)

    def pipes(self, name: str) -> tuple[str, str]:
        return (self._private.path(f"{name}.in"), self._private.path(f"{name}.out"))

    def prepare(self, name: str) -> PythonSession:
        """Create the pipes of a session that is about to start."""
        requests, answers = (self._private.pipe(f"{name}.{end}") for end in ("in", "out"))
        os.set_blocking(answers[0], False)
        session = self._sessions[name] = PythonSession(name, requests[1], answers[0], (requests[0], answers[1]))
        self._poll.register(session.answers, select.POLLIN)
        return session

    def begin(self, session: PythonSession, pid: int) -> None:
        session.started(pid)
        self._poll.register(session.watch, select.POLLIN)

    def forget(self, session: PythonSession) -> None:
        for descriptor in (session.answers, session.watch):
            if descriptor >= 0:
                self._poll.unregister(descriptor)
        session.close()
        del self._sessions[session.name]
        for end in ("in", "out"):
            self._private.remove(f"{session.name}.{end}")

    def handle_ready(self, descriptor: int) -> None:
        """Handle a descriptor that the loop found ready, if it is a session's."""
        for session in self:
            if descriptor == session.answers:
                session.read_reply()
            elif descriptor == session.watch:
                session.ended = True
                self._poll.unregister(session.watch)
                os.close(session.watch)
                session.watch = -1

    def release_ended(self) -> None:
        for session in [s for s in self if s.ended]:
            self.forget(session)
