"""Whether processes can be dumped whole here: the host's side of tier (a).

`make criu` puts CRIU into a folder of its own (`install_criu.py`), with the libraries that it was built against: it
needs neither root nor a change of the system.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ramify import paths
from ramify.sandboxes.contract import WorldSpec

COMMAND = "command.json"
"""The file that the installation ends with: the command's words, absolute."""


def folder() -> Path:
    """$RAMIFY_CRIU, else `criu` in Ramify's home."""
    named = os.environ.get("RAMIFY_CRIU")
    return Path(named).expanduser().absolute() if named else paths.home() / "criu"


def command() -> tuple[str, ...]:
    """CRIU's own words, to which a verb is added; none where it is not installed."""
    try:
        return tuple(json.loads((folder() / COMMAND).read_text()))
    except FileNotFoundError:
        return ()


def why_not(spec: WorldSpec) -> str:
    """Why worlds after `spec` are not dumped; "" where they are."""
    if not spec.dumpable:
        return "the world was not made to be dumped: WorldSpec(dumpable=True)"
    if spec.secrets:
        return "the world holds secrets, and an image of its memory would keep them"
    if not command():
        return f"CRIU is not installed in {folder()}: make criu"
    return ""
