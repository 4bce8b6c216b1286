"""The agent of one world: the parent of its processes, which runs commands for the host. Stdlib only.

In a namespace it is PID 1 and ends with the host; without one (`copy`) it is a child subreaper. Either way all
processes of the world descend from it. This module answers the host's requests; the processes and the event loop are
in `supervisor.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path

from ramify.sandboxes.agent import confinement
from ramify.sandboxes.agent.checkpointing import process_dump, process_restore
from ramify.sandboxes.agent.checkpointing.memory_image import CannotDump
from ramify.sandboxes.agent.checkpointing.process_image import Image, remove_image
from ramify.sandboxes.agent.checkpointing.process_tree import ProcessTree
from ramify.sandboxes.agent.checkpointing.python_sessions import SOURCE, PythonSession
from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.kept_processes import ProcessKeeper
from ramify.sandboxes.agent.messages import (
    Adopt,
    Attach,
    Cancel,
    CloseSession,
    CodeResult,
    Detach,
    Done,
    Dump,
    DumpedSessions,
    DumpSessions,
    Failed,
    ForkSession,
    Freeze,
    Frozen,
    Inspect,
    Inspection,
    Leave,
    Message,
    OpenSession,
    Run,
    RunCode,
    Start,
    Thaw,
)
from ramify.sandboxes.agent.supervisor import Tree
from ramify.sandboxes.linux import processes
from ramify.sandboxes.linux.process_memory import areas

SESSION_STARTS_S = 20.0
INTERRUPT_S = 1.0  # for a session to react to KeyboardInterrupt


class Agent(ProcessKeeper):
    """Answers the host's messages in order, until the host hangs up or ends."""

    def __init__(self, start: Start, link: Link, host: int, tree: Tree | None) -> None:
        super().__init__(start, link, host, tree)
        self._lost = dict(start.lost)
        self._restore_all()

    def _restore_all(self) -> None:
        """Start what the world begins with."""
        if self._tree is not None and self._tree.image >= 0:
            self._restore_processes()
        if self._start.sessions and self._tree is not None:
            self._restore_sessions(Path(self._tree.path_inside(self._start.sessions)))
            if self._start.frozen and not self._frozen:  # those of a whole tree stand still from the first
                self._freeze()

    def serve(self) -> None:
        try:
            while not self._gone:
                self._turn(None)
                self._release_ended_shell()
                self._end_what_exceeded()
                while self._inbox and not self._gone:
                    self._handle(self._inbox.pop(0))
        finally:
            self._started.hang_up()
            if os.getpid() != 1:  # else the kernel does it, before it reports our end
                processes.kill(self._all, self._reap)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Cancel):
            return  # its command ended before it came
        try:
            answer = self._answer(message)
        except (OSError, EOFError, ValueError) as error:  # ValueError: a forged report
            answer = Failed(str(error))
        if not self._gone:
            self._link.send(answer)

    def _answer(self, message: Message) -> Message:
        """Do what a message asks for; the reply."""
        match message:
            case Run():
                return self._run(message)
            case Adopt():
                self._lost = dict(message.lost)
                self._adopt(message)
                self._restore_all()
                return Done()
            case Leave():
                self._end_all()
                return Done()
            case Inspect():
                return self._inspect(message.kept)
            case Detach():
                return Done(self._detach(message))
            case Attach():
                self._attach(message)
                return Done()
            case OpenSession():
                return self._open_session(message)
            case ForkSession():
                return self._fork_session(message)
            case CloseSession():
                self._end_session(self._session(message.session))
                return Done()
            case RunCode():
                return self._run_code(message)
            case Dump():
                return self._dump(message)
            case DumpSessions():
                return self._dump_sessions(message)
            case Freeze():
                (self._freeze_all if message.shell else self._freeze)()
                return Frozen(self._maps_files())
            case Thaw():
                self._thaw()
                self._continue_shell()
                return Done()
            case _:
                return Failed(f"the agent cannot handle {type(message).__name__}")

    # Python sessions

    def _session(self, name: str) -> PythonSession:
        self._sessions.release_ended()
        session = self._sessions.get(name)
        if session is None:
            self._report_loss(name)
            raise OSError(f"this world has no Python session {name!r}: it has ended, or the snapshot did not keep it")
        return session

    def _report_loss(self, name: str) -> None:
        """Report a lost session once: asking again means a new one."""
        reason = self._lost.pop(name, "")
        if reason:
            raise OSError(
                f"the Python session {name!r} of the snapshot could not be restored: {reason}. Ask again for "
                "a new one"
            )

    def _open_session(self, message: OpenSession) -> Message:
        """Start a Python session in the shell's directory and environment, unless it lives."""
        self._sessions.release_ended()
        if self._sessions.get(message.session) is not None:
            return Done()
        self._report_loss(message.session)
        source, python = self._private.path(SOURCE), shlex.quote(message.python)
        self._private.write(SOURCE, message.source)
        shell = self._living_shell()
        session = self._sessions.prepare(message.session)
        words = shlex.join(["-u", source, *self._sessions.pipes(message.session)])
        shell.ask(
            f"command -v {python} >/dev/null && (exec {python} {words} </dev/null &)",
            stdin="/dev/null",
            env={},
            cwd=None,
        )
        self._await_shell(shell)
        if shell.status != 0:
            self._sessions.forget(session)
            return Failed(
                f"no Python session: {message.python} is not available to the world's shell. A virtual "
                f"environment needs the Python that it was made from: name that folder in WorldSpec(visible=...)"
            )
        self._begin_session(session)
        return Done()

    def _begin_session(self, session: PythonSession) -> None:
        """Wait for the session's first message, which has its pid."""
        self._only_shell = False
        begun = self._await_answer(session, time.monotonic() + SESSION_STARTS_S) and session.answer is not None
        pid = session.answer.get("pid") if begun and session.answer is not None else None
        if not isinstance(pid, int) or pid not in {p.pid for p in self._all()}:
            self._sessions.forget(session)
            raise OSError(
                f"the Python session {session.name!r} did not start; run its interpreter in the world to see why"
            )
        self._sessions.begin(session, pid)

    def _fork_session(self, message: ForkSession) -> Message:
        session = self._session(message.session)
        if self._sessions.get(message.child) is not None:
            return Failed(f"a Python session {message.child!r} exists already")
        child = self._sessions.prepare(message.child)
        session.ask({"fork": self._sessions.pipes(message.child)})
        self._await_answer(session, time.monotonic() + SESSION_STARTS_S)
        self._begin_session(child)
        child.image_base = session.image_base.duplicate()
        return Done()

    def _run_code(self, message: RunCode) -> CodeResult:
        """Run code in a session: at the deadline interrupt it, and kill it if it ignores that."""
        session = self._session(message.session)
        self._out.begin()
        self._err.begin()
        session.ask({"code": message.code})
        deadline = None if message.timeout is None else time.monotonic() + message.timeout
        timed_out = not self._await_answer(session, deadline, cancellable=True)
        if timed_out:
            session.interrupt()
            if not self._await_answer(session, time.monotonic() + INTERRUPT_S):
                self._end_session(session)
        answer = session.answer or {}
        value, error = (text if isinstance(text := answer.get(key), str) else None for key in ("value", "error"))
        lives = not session.ended
        self._sessions.release_ended()
        out, err = self._out.end(), self._err.end()
        truncated = self._out.truncated or self._err.truncated
        return CodeResult(value, error, out, err, timed_out, truncated, lives)

    def _await_answer(self, session: PythonSession, deadline: float | None, *, cancellable: bool = False) -> bool:
        """Whether it answered or ended by itself."""
        while session.answer is None and not session.ended:
            if self._gone or (cancellable and any(isinstance(m, Cancel) for m in self._inbox)):
                return False
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._turn(left)
        return True

    def _end_session(self, session: PythonSession) -> None:
        """Kill it with everything that it started."""
        self._kill(lambda: [*processes.descendants(session.pid), *(p for p in self._all() if p.pid == session.pid)])
        session.ended = True
        self._sessions.release_ended()

    # Seals

    def _inspect(self, kept: list[int]) -> Inspection:
        self._release_ended_shell()
        if self._shell is not None and not self._only_shell:
            self._shell.report()  # a trap may have changed its state while it waited
        if self._shell is not None:
            self._await_shell(self._shell)
        self._release_ended_shell()
        others = self._others()
        explained = {p.key for p in others if p.pid in kept}
        strays = [p for p in processes.descendants(os.getpid(), spare=explained) if p.pid not in self._own()]
        return Inspection(self._state(), self._first_state, len(others), len(strays))

    def _detach(self, message: Detach) -> bool:
        """Move the shell out of the tree and unmount the tree; False, with all as before, if something holds it."""
        if self._tree is None:
            raise OSError("this world has no mount of its own")
        if self._shell is not None:
            shell = self._living_shell()
            self._await_shell(shell)
            self._shell_place = (shell.pwd, shell.oldpwd)
            shell.step_aside()
            try:
                self._await_shell(shell)
            except OSError:
                shell.come_back(*self._shell_place)  # once it continues
                raise
        if self._tree.detach(outside=message.outside):
            return True
        self._return_shell()
        return False

    def _attach(self, message: Attach) -> None:
        if self._tree is None:
            raise OSError("this world has no mount of its own")
        self._tree.attach(outside=message.outside)
        self._return_shell()

    def _dump_sessions(self, message: DumpSessions) -> DumpedSessions:
        """Dump every session that can be dumped, of a world that then stands still."""
        self._sessions.release_ended()
        if self._tree is None:
            return DumpedSessions({}, "this world has no mount of its own")
        self._freeze()
        taken: dict[str, int] = {}
        reasons, pids = [], {session.pid for session in self._sessions}
        for session in self._sessions:
            if session.image_base.base is not None and session.image_base.base.inode not in message.bases:
                session.image_base.close()
                session.image_base = replace(session.image_base, base=None)
            place = Path(self._tree.path_inside(f"{message.images}/{session.name}"))
            try:
                self._ephemeral_state().refuse_of_process(session.pid)
                points = self._start.view.points if self._start.view is not None else ()
                made = process_dump.dump(
                    session.name, session.pid, place, self._start.private, session.image_base, pids, points
                )
            except (CannotDump, OSError) as error:
                with contextlib.suppress(OSError):
                    remove_image(place)
                reasons.append(f"the Python session {session.name!r}: {error}")
                continue
            taken[session.name] = (
                0 if made is not None or session.image_base.base is None else session.image_base.base.inode
            )
            if made is not None:
                session.image_base.close()
                session.image_base = replace(session.image_base, base=made)
        return DumpedSessions(taken, "; ".join(reasons), self._maps_files())

    def _restore_sessions(self, images: Path) -> None:
        """Start the Python sessions of an image; remember why, if one cannot be restored."""
        tree = ProcessTree.find(images)
        if tree is not None:
            self._restore_tree(tree, images)
            return
        for folder in sorted(images.iterdir()):
            name = folder.name
            session = self._sessions.prepare(name)
            own = zip((f"{name}.in", f"{name}.out"), session.held, strict=True)
            pipes = {**dict(own), "out": self._out.write_end, "err": self._err.write_end}
            bounds = self._start.bounds
            confined = functools.partial(
                confinement.enter,
                replace(bounds, open_files=None),
                isolated=True,
                image=self._start.view is not None and self._start.view.image,
                filtered=self._criu is None,
                restored=True,
                user=None if self._start.view is None else self._start.view.only_user(),
            )
            try:
                image = Image.read(folder)
                pid = process_restore.restore(image, folder, pipes, confined, bounds.open_files)
                self._sessions.begin(session, pid)
                session.image_base = process_dump.base_of_restored(image, folder, areas(pid))
            except (process_restore.CannotRestore, OSError) as error:
                self._sessions.forget(session)
                self._lost[name] = str(error)
                continue
            self._only_shell = False

    def _return_shell(self) -> None:
        if self._shell is not None:
            self._shell.come_back(*self._shell_place)
            self._await_shell(self._shell)
