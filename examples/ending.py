"""How an example's program ends where something went wrong that is no bug: with one line, and status 1."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ramify.fork_engine.errors import ForkEngineError
from ramify.runtime.errors import RunError
from ramify.sandboxes.errors import SandboxError
from ramify.serving.errors import ServingError


@contextmanager
def errors_told() -> Iterator[None]:
    try:
        yield
    except (RunError, ServingError, SandboxError, ForkEngineError) as error:
        sys.exit(f"error: {error}")
