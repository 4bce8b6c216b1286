"""The first process of a container: the world's agent, run by the host's own Python (docker/host_programs.py). Stdlib
only.

It connects to the host's socket in the world's own folder, which is mounted at PRIVATE. When the host hangs up or
ends, for whatever reason, the agent returns, and the container ends with its PID 1.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from ramify.sandboxes.agent.agent import Agent
from ramify.sandboxes.agent.container_changes import apply, layer_folders
from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.messages import Failed, Ready, Start
from ramify.sandboxes.linux import kernel, landlock

PRIVATE = "/ramify/private"
SOCKET = f"{PRIVATE}/agent.sock"
HOST_NETWORK = "host-network"


def run(layers: str, network: str = "") -> None:
    """Connect to the host, apply the changes of that many layers, and serve until the host ends.

    With HOST_NETWORK, commands do not reach the host's abstract sockets, if the kernel and the engine let the agent
    forbid it.
    """
    if network == HOST_NETWORK:
        landlock.make_ruleset_for_sockets()
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
        apply(layer_folders(int(layers)), Path("/"))
        home = Path(start.env.get("HOME", "/"))
        home.mkdir(parents=True, exist_ok=True)
        agent = Agent(start, link, host, None)
        kernel.set_undumpable(closed=True)  # commands have its user and capabilities, and may not trace it
    except OSError as error:
        link.send(Failed(str(error)))
        return
    link.send(Ready(os.getpid()))
    agent.serve()


def extensions() -> list[str]:
    """The extension modules that the agent has loaded: they need libraries beside the interpreter."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted(file for file in files if file is not None and file.endswith(".so"))
