"""Starting the user's web browser on the page, without telling its address to everybody on the machine."""

from __future__ import annotations

import html
import os
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def has_screen() -> bool:
    """Whether a browser with a window can be started; one in the terminal would take the terminal away."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


@contextmanager
def opened(address: str) -> Iterator[None]:
    """Open the address in the user's browser, if there is a screen.

    Any user can read the arguments of any process, and the address holds the token: so the browser is given the name
    of a file that only this user can read, which leads on to the page. It lives as long as this context.
    """
    if not has_screen():
        yield
        return
    with TemporaryDirectory(prefix="ramify-browse-") as folder:  # mode 0700
        file = Path(folder) / "page.html"
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(address)}">\n')
        webbrowser.open(file.as_uri())
        yield
