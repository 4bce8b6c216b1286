"""The entry point of the program `ramify`. Ctrl-C ends it with a status and without a traceback, even while its
modules are being imported.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130  # as in errors.py, which is not imported yet


def main() -> None:
    try:
        from ramify.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
