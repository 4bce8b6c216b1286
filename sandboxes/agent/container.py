"""The first process of a container: a world's agent. Run by path, by the host's own Python (carrier.py). Stdlib only.

    ld.so --library-path LIBS python3 -I -S inside.py

It connects to the socket that the host listens on in the world's own folder, mounted at PRIVATE. That connection is
its life: where the host hangs up or ends, however it ends, the agent returns, and with PID 1 the container.
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
    """Let `ramify.sandboxes.…` be imported from this file's package, without `ramify` itself."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python handles it, so that PID 1 would not be spared
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(SOCKET)
    sock.set_inheritable(False)
    link = Link(sock)
    host, _never = os.pipe()  # the host's process cannot be seen from here: its socket's end says that it has gone
    kernel.become_subreaper()
    start = link.receive()
    if not isinstance(start, Start):
        return
    if not Path(start.bash).exists():
        link.send(Failed(f"the image has no {start.bash}, which runs the commands: use one that has it"))
        return
    try:
        apply(Path(LAYERS), Path("/"))
        home = Path(start.env.get("HOME", "/"))
        home.mkdir(parents=True, exist_ok=True)
        agent = Agent(start, link, host, None)
        kernel.shut(closed=True)  # commands, of its user and with its capabilities, may not trace it
    except OSError as error:
        link.send(Failed(str(error)))
        return
    link.send(Ready(os.getpid()))
    agent.serve()


def extensions() -> list[str]:
    """The extension modules that the agent has loaded: what needs libraries beside the interpreter."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted(file for file in files if file is not None and file.endswith(".so"))


if __name__ == "__main__":
    if sys.argv[1:] == ["--extensions"]:
        sys.stdout.write("\n".join(extensions()))
    else:
        main()
