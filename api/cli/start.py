"""The entry point of the program `ramify`. Ctrl-C ends it with a status and without a traceback, even while its
modules are being imported.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # as in errors.py, which is not imported yet


def main() -> None:
    try:
        import signal

        ends = signal.getsignal(signal.SIGINT)
        if own := ends is signal.default_int_handler:  # a KeyboardInterrupt in an import may become another error
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        try:
            from ramify.cli.main import main as run
        finally:
            if own:
                signal.signal(signal.SIGINT, ends)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
