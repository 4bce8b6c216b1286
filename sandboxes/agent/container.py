"""The first process of a container: the world's agent. Run by path, by the host's own Python (portable_python.py).
Stdlib only.

    ld.so --library-path LIBS python3 -I -S container.py

It connects to the host's socket in the world's own folder, which is mounted at PRIVATE. When the host hangs up or
ends, for whatever reason, the agent returns, and the container ends with its PID 1.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import types
from pathlib import Path

PRIVATE = "/ramify/private"
SOCKET = f"{PRIVATE}/agent.sock"


def _find_ramify() -> None:
    """Make `ramify.sandboxes.…` importable from this file's package, without importing `ramify` itself."""
    folder = str(Path(__file__).resolve().parent.parent)
    for name in ("ramify", "ramify.sandboxes"):
        package = types.ModuleType(name)
        package.__path__ = [folder] if name != "ramify" else []
        sys.modules[name] = package


if __name__ == "__main__":
    _find_ramify()

from ramify.sandboxes.agent.agent import Agent  # noqa: E402
from ramify.sandboxes.agent.container_changes import LAYERS, apply  # noqa: E402
from ramify.sandboxes.agent.messages import Failed, Link, Ready, Start  # noqa: E402
from ramify.sandboxes.linux import kernel  # noqa: E402


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python handles it, so it would reach PID 1
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(SOCKET)
    sock.set_inheritable(False)
    link = Link(sock)
    host, _never = os.pipe()  # the host's process is not visible from here: its socket's end shows that it is gone
    kernel.become_subreaper()
    start = link.receive()
    if not isinstance(start, Start):
        return
    if not Path(start.bash).exists():
        link.send(Failed(f"the image has no {start.bash}, which runs the commands: use an image that has it"))
        return
    try:
        apply(Path(LAYERS), Path("/"))
        home = Path(start.env.get("HOME", "/"))
        home.mkdir(parents=True, exist_ok=True)
        agent = Agent(start, link, host, None)
        kernel.shut(closed=True)  # commands have its user and capabilities, and may not trace it
    except OSError as error:
        link.send(Failed(str(error)))
        return
    link.send(Ready(os.getpid()))
    agent.serve()


def extensions() -> list[str]:
    """The extension modules that the agent has loaded: they need libraries beside the interpreter."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted(file for file in files if file is not None and file.endswith(".so"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--extensions"]:
        sys.stdout.write("\n".join(extensions()))
    else:
        main()
