"""Run the agent's code by file path, with any Python 3.11 and without an installed Ramify. Stdlib only.

The programs and their arguments:

    python -I -S agent/__main__.py fork-server CONTROL_FD [MOUNT_SERVER_FD ANCHOR…]   see fork_server.py
    python -I -S agent/__main__.py container LAYERS [host-network]                    see container.py
    python -I -S agent/__main__.py capture LIST TO                                    see container_changes.py
    python -I -S agent/__main__.py extensions                                         see container.py

The fork server makes isolated worlds if it has a mount server. Anchors are the folders of layers and uppers; the last
one holds the mount point of worlds' roots.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path


def make_importable() -> None:
    """Let `ramify.sandboxes.…` be imported from beside this folder, without `ramify` itself, which takes too long."""
    folder = str(Path(__file__).resolve().parents[1])
    for name in ("ramify", "ramify.sandboxes"):
        package = types.ModuleType(name)
        package.__path__ = [folder] if name != "ramify" else []
        sys.modules[name] = package


def main(program: str, *arguments: str) -> None:
    """Run one of the programs listed above."""
    match program:
        case "fork-server":
            from ramify.sandboxes.agent import fork_server

            fork_server.run(*arguments)
        case "container":
            from ramify.sandboxes.agent import container

            container.run(*arguments)
        case "capture":
            from ramify.sandboxes.agent import container_changes

            container_changes.run(*arguments)
        case "extensions":
            from ramify.sandboxes.agent import container

            sys.stdout.write("\n".join(container.extensions()))
        case _:
            sys.exit(f"no such program: {program}")


if __name__ == "__main__":
    make_importable()
    main(*sys.argv[1:])
