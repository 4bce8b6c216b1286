"""How the program of an example ends: with a command to look at the run, or with one line for an expected error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramify.fork_engine.errors import ForkEngineError
from ramify.runtime.errors import RunError
from ramify.sandboxes.errors import SandboxError
from ramify.serving.errors import ServingError
from ramify.tree_search.types import SearchError
from ramify.worlds.errors import WorldError


@contextmanager
def report_errors() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("stopped: what was done is kept, and `ramify resume` goes on", file=sys.stderr)
        sys.exit(130)
    except (RunError, ServingError, SandboxError, ForkEngineError, WorldError, SearchError) as error:
        sys.exit(f"error: {error}")


def command(words: str, home: Path | None) -> str:
    """The command line that looks at a run in that home."""
    return f"ramify {words}" if home is None else f"ramify --home {home} {words}"
