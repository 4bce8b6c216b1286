"""What can go wrong with a live world. A command that fails is not among them: that is a `RunResult`.

SandboxError
├── BackendUnavailable    this machine cannot run that backend; the message names the opt-in that can
├── Unsupported           the backend runs here, but has not what was asked of it; its flag says why
├── WorldStartFailed      a world could not be made from its snapshot
├── WorldDied             the world ended under us (killed, out of memory)
├── SealFailed            what changed could not be made into a layer
└── UsedAfterFork         a backend or a world that a forked child has from its parent
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

TOO_MANY_FILES = "this process may open no more files: raise its limit (ulimit -n), or have fewer worlds at once"
TOO_MANY_HERE = "this machine may open no more files: raise its limit (fs.file-max), or have fewer worlds at once"


class SandboxError(Exception):
    """Anything that a sandbox backend reports."""


class BackendUnavailable(SandboxError):
    """This machine cannot run that backend."""


class Unsupported(SandboxError):
    """What was asked of a backend is not among its capabilities. Nothing was done."""

    def __init__(self, backend: str, feature: str, reason: str) -> None:
        super().__init__(f"the {backend} backend has not: {feature}. {reason}")
        self.backend, self.feature, self.reason = backend, feature, reason


class WorldStartFailed(SandboxError):
    """A world could not be made from its snapshot."""


class WorldDied(SandboxError):
    """The world ended while it was in use."""


class SealFailed(SandboxError):
    """What changed in a world could not be made into a layer."""


class UsedAfterFork(SandboxError):
    """A backend or a world of another process was used in a forked child of it."""


@contextmanager
def explain_file_limit(raised: type[SandboxError]) -> Iterator[None]:
    """Where no more files may be opened, say so, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise raised(TOO_MANY_FILES if error.errno == errno.EMFILE else TOO_MANY_HERE) from error
