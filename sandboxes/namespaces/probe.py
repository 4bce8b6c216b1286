"""Whether worlds in namespaces can be made here: by making one, without an event loop. `ramify doctor` asks."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from ramify.sandboxes.helper import PATIENCE_S, end, launch
from ramify.sandboxes.namespaces.orders import BIGGEST, Answer, Mount, Order, Over, pack, unpack
from ramify.sandboxes.namespaces.view import PRIVATE, ROOT
from ramify.sandboxes.wire import Failed, Link, Ran, Ready, Run, Start, View

INSIDE = "/tmp/tree"


@dataclass(slots=True)
class Found:
    """What came of making a world."""

    failure: str = ""  # "": it works
    uncovered: list[str] = field(default_factory=list)  # places of the host's that locks and watches reach, and why


def probe(folder: Path, bash: str) -> Found:
    """Make a world in the empty `folder` and write a file in it. Blocks."""
    found = Found()
    for name in (ROOT, "lower"):
        (folder / name).mkdir()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeping, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    log = folder / "log"
    with log.open("wb") as complaints, control, keeping:
        with theirs, keepers:
            process = launch(theirs, complaints.fileno(), keepers, [folder])
        try:
            found.failure = _try(folder, bash, control, keeping, found)
        except OSError as error:
            found.failure = log.read_text(errors="replace").strip() or f"the helper process did not answer: {error}"
    end(process)
    if not found.failure and not (folder / "upper" / "file").exists():
        found.failure = "what a world wrote did not come to its upper folder"
    return found


def _try(folder: Path, bash: str, control: socket.socket, keeping: socket.socket, found: Found) -> str:
    keeping.settimeout(PATIENCE_S)
    answer, given = _order(
        keeping, Mount([str(folder / "lower")], [Over(str(folder / "upper"), str(folder / "work"), "")])
    )
    if answer.error:
        return answer.error
    view = View(str(folder), str(folder), [INSIDE], hidden=[str(folder)], visible=[])
    start = Start(INSIDE, PRIVATE, bash, env={}, cwd="", max_output=4096, view=view)
    ours, its = socket.socketpair()
    ours.settimeout(PATIENCE_S)
    with ours:
        with its:
            socket.send_fds(control, [b"isolated 0"], [its.fileno()])
        return _converse(Link(ours), start, given, found)


def _order(keeping: socket.socket, order: Order) -> tuple[Answer, list[int]]:
    keeping.send(pack(order))
    data, given, _, _ = socket.recv_fds(keeping, BIGGEST, 1, socket.MSG_CMSG_CLOEXEC)
    answer = unpack(data) if data else None
    if not isinstance(answer, Answer):
        raise OSError("it hung up")
    return answer, given


def _converse(link: Link, start: Start, given: list[int], found: Found) -> str:
    link.send(start, given)
    for descriptor in given:
        os.close(descriptor)
    answer = link.receive()
    if isinstance(answer, Failed):
        return answer.message
    if not isinstance(answer, Ready):
        return "the world ended while it was set up"
    found.uncovered = answer.uncovered
    link.send(Run("echo works > file"))
    answer = link.receive()
    if not isinstance(answer, Ran) or answer.exit_code != 0:
        return f"a world could not run a command: {answer}"
    return ""
