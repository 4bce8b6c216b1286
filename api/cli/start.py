"""The command `ramify`. Ctrl-C ends it with a status and no traceback from its first moment on, also while its
modules are still being imported."""

from __future__ import annotations

import sys

INTERRUPTED = 130  # as errors.py has it, which would be one more import first


def main() -> None:
    try:
        from ramify.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
