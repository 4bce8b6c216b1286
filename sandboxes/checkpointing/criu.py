"""Whether whole processes can be dumped here with CRIU: the host side of checkpoint tier (a).

`make criu` installs CRIU into a folder of its own (`install_criu.py`), with the libraries that it was built against.
This needs no root and changes nothing else on the system.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ramify import paths
from ramify.sandboxes.contract import WorldSpec

COMMAND = "command.json"
"""The file that completes an installation. It holds the command's words, with absolute paths."""


def folder() -> Path:
    """$RAMIFY_CRIU, else `criu` in Ramify's home."""
    named = os.environ.get("RAMIFY_CRIU")
    return paths.expanded(named).absolute() if named else paths.home() / "criu"


def command() -> tuple[str, ...]:
    """CRIU's command line, to which a verb is added; empty if CRIU is not installed."""
    try:
        return tuple(json.loads((folder() / COMMAND).read_text()))
    except FileNotFoundError:
        return ()


def why_not(spec: WorldSpec) -> str:
    """Why worlds of this specification cannot be dumped; "" if they can."""
    if not spec.dumpable:
        return "the world was not made to be dumped: make it with dumpable=True"
    if spec.secrets:
        return "the world holds secrets, and an image of its memory would keep them"
    if not command():
        return f"CRIU is not installed in {folder()}: make criu"
    return ""
