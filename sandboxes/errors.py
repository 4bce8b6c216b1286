"""Errors of live worlds. A failing command is not an error, but a `RunResult`.

SandboxError
├── BackendUnavailable    this machine cannot run that backend; the message names an alternative
├── Unsupported           the backend runs here but lacks the feature; the message says why
├── WorldStartFailed      a world could not be made from its snapshot
├── WorldDied             the world ended while in use (killed, out of memory)
├── SealFailed            changes could not be made into a layer
├── CommandRefused        a process could not be started: its folder is missing, there are no terminals
│   ├── UnknownUser       the world has no such user
│   └── ForbiddenUser     the kernel does not let the world have this user
├── NothingListens        no program in the world listens on the port
├── InputClosed           nothing reads a process's input any more
└── UsedAfterFork         a forked child used a backend or world of its parent
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

TOO_MANY_FILES = "this process cannot open more files: raise its limit (ulimit -n), or use fewer worlds at once"
TOO_MANY_HERE = "this machine cannot open more files: raise its limit (fs.file-max), or use fewer worlds at once"


class SandboxError(Exception):
    """Base class of all errors of sandbox backends."""


class BackendUnavailable(SandboxError):
    """This machine cannot run that backend."""


class Unsupported(SandboxError):
    """The backend lacks a feature that was asked for. Nothing was done."""

    def __init__(self, backend: str, feature: str, reason: str) -> None:
        super().__init__(f"the {backend} backend lacks the feature '{feature}': {reason}")
        self.backend, self.feature, self.reason = backend, feature, reason


class WorldStartFailed(SandboxError):
    """A world could not be made from its snapshot."""


class WorldDied(SandboxError):
    """The world ended while it was in use."""


class SealFailed(SandboxError):
    """The changes in a world could not be made into a layer."""


class CommandRefused(SandboxError):
    """A process could not be started in a world. A program that is not found is no error, but exit code 127."""


class UnknownUser(CommandRefused):
    """The world has no user or group of this name."""


class ForbiddenUser(CommandRefused):
    """The kernel does not let a process of this world become this user."""


class NothingListens(SandboxError):
    """No program in the world accepts connections on the port."""


class InputClosed(SandboxError):
    """A process has ended, or closed its input, before it has read what was written to it."""


class UsedAfterFork(SandboxError):
    """A forked child used a backend or a world of its parent."""


@contextmanager
def explain_file_limit(raised: type[SandboxError]) -> Iterator[None]:
    """Translate "too many open files" into an error that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise raised(TOO_MANY_FILES if error.errno == errno.EMFILE else TOO_MANY_HERE) from error
