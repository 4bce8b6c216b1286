"""Turn an error into a message for the user: what is wrong, what to do, and a traceback only of the user's own
code.
"""

from __future__ import annotations

import errno
import json
import linecache
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import click

from ramify import paths
from ramify.cli.console import LocationOptions
from ramify.inspect.text import LONGER, SHOWN, escaped, size_of

FAILED, USAGE, WAITING, IN_DOUBT, INTERRUPTED = 1, 2, 3, 4, 130

# The base classes of our errors. The module of a raised error is loaded already: none is imported for this.
ROOTS = (
    ("ramify.runtime.errors", "RunError"),
    ("ramify.fork_engine.errors", "ForkEngineError"),
    ("ramify.sandboxes.errors", "SandboxError"),
    ("ramify.worlds.errors", "WorldError"),
    ("ramify.images.errors", "ImagesError"),
    ("ramify.serving.errors", "ServingError"),
    ("ramify.compiler.errors", "CompileError"),
    ("ramify.compiler.plan", "PlanError"),
    ("ramify.browse.web.responses", "WebError"),
)
EXTRAS = {
    "starlette": "serve",
    "httptools": "web",
    "uvicorn": "serve",
    "xllamacpp": "local",
    "textual": "browse",
    "prometheus_client": "serve",
    "opentelemetry": "otel",
}
OURS = ("ramify.", "asyncio.", "concurrent.", "threading", "contextlib", "importlib", "click.", "sqlalchemy.")


_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Interrupted(click.ClickException):
    """Ctrl-C during a run."""

    exit_code = INTERRUPTED

    def __init__(self, run_id: str | None) -> None:
        super().__init__("interrupted" + (f"; `ramify resume {run_id}` continues" if run_id else ""))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"ramify: {self.message}", file, err=True)


def is_ours(error: BaseException) -> bool:
    known = ((sys.modules.get(module), name) for module, name in ROOTS)
    return any(module is not None and isinstance(error, getattr(module, name)) for module, name in known)


def report(error: Exception, typed: LocationOptions | None = None) -> int:
    """Print an error for the user, and return the exit status.

    Raises the error again if it is a bug of Ramify, or if RAMIFY_TRACEBACK asks for all of it. `typed`: the options
    that named the home, for the commands that the message suggests.
    """
    if os.environ.get("RAMIFY_TRACEBACK", "0") not in ("", "0"):
        raise error
    if isinstance(error, ModuleNotFoundError) and (name := str(error.name).partition(".")[0]) in EXTRAS:
        _say(f"{name} is not installed: pip install 'ramify[{EXTRAS[name]}]'")
        return FAILED
    if isinstance(error, OSError) and error.filename is not None:
        _say(f"{error.filename}: {error.strerror}{_mend(error, typed)}")
        return FAILED
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        _say(f"{error.strerror}: free some space, or write the output elsewhere")
        return FAILED
    if isinstance(error, OSError) and (why := _of_the_system(error)) is not None:
        _say(why)
        return FAILED
    if isinstance(error, json.JSONDecodeError):  # a file or an argument that is not JSON is told by its reader
        what = f"a value in the database is not JSON ({error}), so another program has changed that row"
        _say(f"{what}: restore the database from a copy")
        return FAILED
    if isinstance(error, RecursionError):
        _say("a value in the database is nested too deep to be shown: RAMIFY_TRACEBACK=1 shows where")
        return FAILED
    if not is_ours(error):
        raise error
    doubt = error if hasattr(error, "doubtful_run") else error.__cause__
    if hasattr(doubt, "doubtful_run"):  # not an error in the user's code: the message says what to do
        _say(str(doubt), typed)
        return IN_DOUBT
    if hasattr(error, "broken_target") or hasattr(error, "run_id"):  # the user's code raised
        _show_users_frames(error)
    _say("\n  ".join([str(error).rstrip(), *getattr(error, "__notes__", ())]), typed)  # a node of a fleet is a note
    if hasattr(error, "waiting_run"):
        return WAITING
    return INTERRUPTED if hasattr(error, "cancelled_run") else FAILED


_MENDS = {
    errno.EMFILE: "let a process open more files (`ulimit -n`)",
    errno.ENFILE: "the machine has too many open files: end some programs",
    errno.ENOMEM: "free some memory",
    errno.EAGAIN: "let this user start more processes (`ulimit -u`), or end some",
    errno.EIO: "check the disk, or write the output elsewhere",
}


def _of_the_system(error: OSError) -> str | None:
    """What to say of an error that names no file; None if it is a bug of Ramify's."""
    if error.errno == errno.ENOENT and not _folder_exists():
        return "the current folder was deleted: go to another one"
    mend = _MENDS.get(error.errno or 0)
    return None if mend is None else f"{error.strerror}: {mend}"


def _folder_exists() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  # Path.cwd says the same
    except FileNotFoundError:
        return False
    return True


_OF_ITS_HOME = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST})


def _mend(error: OSError, typed: LocationOptions | None) -> str:
    if error.errno in _NO_SPACE:
        return ": free some space"
    home = None if typed is None else paths.home(typed.home)
    if home is None or error.errno not in _OF_ITS_HOME:
        return ""
    place = Path(os.fsdecode(error.filename)).absolute()
    inside = place == home or home in place.parents or place in home.parents
    return ": check its permissions, or name another home (--home DIR or $RAMIFY_HOME)" if inside else ""


def _say(message: str, typed: LocationOptions | None = None) -> None:
    said = _bounded(message) if typed is None else typed.complete(_bounded(message))
    click.echo(escaped(f"ramify: {said.strip()}"), err=True)


def _bounded(message: str) -> str:
    """A message; of a long one, which quotes a value, both ends and the size."""
    return (
        message if len(message) <= LONGER else f"{message[:SHOWN]}… ({size_of(message)} in all) …{message[-SHOWN:]}"
    )


def _show_users_frames(error: Exception) -> None:
    """The part of the stack that is the user's, of the error that their code raised."""
    cause = error.__cause__
    if cause is None:
        return
    frames = list(_users_frames(cause.__traceback__))
    if frames:
        click.echo("Traceback (most recent call last):", err=True)
        click.echo(escaped("".join(traceback.format_list(frames)).rstrip("\n")), err=True)
        first = "".join(traceback.format_exception_only(cause)).splitlines()[0]
        click.echo(escaped(_bounded(first)), err=True)
    elif isinstance(cause, SyntaxError):
        click.echo(escaped("".join(traceback.format_exception_only(cause)).rstrip("\n")), err=True)


def _users_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    kept = []
    for frame, line in traceback.walk_tb(trace):
        module = str(frame.f_globals.get("__name__", ""))
        if not f"{module}.".startswith(OURS):
            linecache.checkcache(frame.f_code.co_filename)  # the file may have been read before it was changed
            kept.append(traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name))
    return kept
