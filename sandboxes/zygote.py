"""The helper process that worlds are forked from. Run by file path: `python -I -S zygote.py CONTROL_FD`.

One for each backend. A fork of this small, single-threaded process costs a millisecond, where a new Python costs
twenty and a fork of the host (threads, a gigabyte of model) is not safe. The host sends it one end of a world's
socket; it forks the world's agent on that socket and tells the host later how the agent ended.

Nothing outlives the host: the agents and this process watch the host's pidfd, and an agent that hangs is killed by
PR_SET_PDEATHSIG when this process goes. A namespace's processes and mounts vanish with its PID 1.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import types
from pathlib import Path


def _find_ramify() -> None:
    """Let `ramify.sandboxes.…` be imported from beside this file, without `ramify` itself: it costs too much."""
    folder = str(Path(__file__).resolve().parent)
    for name in ("ramify", "ramify.sandboxes"):
        package = types.ModuleType(name)
        package.__path__ = [folder] if name != "ramify" else []
        sys.modules[name] = package


if __name__ == "__main__":
    _find_ramify()

from ramify.sandboxes.agent import Agent  # noqa: E402
from ramify.sandboxes.namespaces import kernel  # noqa: E402
from ramify.sandboxes.namespaces.view import Mounts  # noqa: E402
from ramify.sandboxes.wire import Attach, Failed, Link, Ready, Start  # noqa: E402

NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)


def main(control: socket.socket) -> None:
    """Serve the host until it hangs up or ends."""
    control.set_inheritable(False)
    host = os.pidfd_open(os.getppid())
    kernel.adopt_orphans()
    wake, wake_in = os.pipe()
    for end in (wake, wake_in):
        os.set_blocking(end, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    poll = select.poll()
    for descriptor in (control.fileno(), host, wake):
        poll.register(descriptor, select.POLLIN)
    agents: dict[int, int] = {}  # by pid: the host's number for it
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == host:
                return
            if descriptor == wake:
                os.read(wake, 4096)
                _report_the_dead(control, agents)
            else:
                message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
                if not message:
                    return
                os.set_inheritable(descriptors[0], False)
                kind, number = message.split()
                link = Link(socket.socket(fileno=descriptors[0]))
                agents[_spawn(control, link, host, isolate=kind == b"isolate")] = int(number)


def _report_the_dead(control: socket.socket, agents: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = agents.pop(pid, None)
        if number is not None:  # else: an orphan of a world without a namespace
            control.send(f"{number} {os.waitstatus_to_exitcode(status)}".encode())


def _spawn(control: socket.socket, link: Link, host: int, *, isolate: bool) -> int:
    """Fork a world's agent; its pid, 0 for none.

    PID 1 of a pid namespace must be forked after the unshare, so by a child in between.
    """
    go, go_in = os.pipe()
    told, told_in = os.pipe()
    child = os.fork()
    if child == 0:
        control.close()
        os.close(told)
        if isolate:
            _become_namespace(link, host, go, told_in)
        _become_agent(link, host, go)
    os.close(told_in)
    agent = _let_in(child, link, go_in, told) if isolate else child
    if agent:
        os.write(go_in, str(agent).encode())  # only now is it our own child: what it asks to die with is us
    for descriptor in (go, go_in, told):
        os.close(descriptor)
    link.sock.close()
    return agent


def _let_in(between: int, link: Link, go_in: int, told: int) -> int:
    """See the child in between through its unshare, to the pid of the agent that it forks; 0 where it failed."""
    agent = b""
    try:
        if os.read(told, 16) == b"unshared":
            _map_ids(between)
            os.write(go_in, b"mapped")
            agent = os.read(told, 16)
    except OSError as error:
        os.kill(between, signal.SIGKILL)
        link.send(Failed(f"mapping user and group ids: {error}"))
    os.waitpid(between, 0)
    return int(agent or 0)


def _become_namespace(link: Link, host: int, go: int, told: int) -> None:
    try:
        kernel.unshare(NAMESPACES)
        os.write(told, b"unshared")
        os.read(go, 16)
        pid = os.fork()
    except OSError as error:
        link.send(Failed(str(error)))
        os._exit(1)
    if pid == 0:
        os.close(told)
        _become_agent(link, host, go)
    os.write(told, str(pid).encode())
    os._exit(0)


def _map_ids(pid: int) -> None:
    """Everyone keeps their own id inside. Root keeps the whole range, so that `chown` works."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            for kind in ("uid_map", "gid_map"):
                ranges = [line.split() for line in Path(f"/proc/self/{kind}").read_text().splitlines()]
                _write(pid, kind, "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges))
            return
        except PermissionError:
            pass  # root of a container without CAP_SETUID: as any user then
    _write(pid, "setgroups", "deny")
    _write(pid, "uid_map", f"{user} {user} 1\n")
    _write(pid, "gid_map", f"{group} {group} 1\n")


def _write(pid: int, name: str, text: str) -> None:
    Path(f"/proc/{pid}/{name}").write_text(text)


def _become_agent(link: Link, host: int, go: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        pid = int(os.read(go, 16))
        kernel.die_with_parent()
        os.setsid()
        start = link.receive()
        if isinstance(start, Start):
            _serve(start, link, host, pid)
    except BaseException as error:  # noqa: BLE001  (the last frame before the end: the host has to hear of it)
        link.send(Failed(f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def _serve(start: Start, link: Link, host: int, pid: int) -> None:
    mounts: Mounts | None = None
    if start.view is not None and start.layers is not None:
        mounts = Mounts(start.view, start.tree)
        mounts.build()
        mounts.attach(Attach(start.layers.lowers, start.layers.upper, start.layers.work))
    else:
        kernel.adopt_orphans()
    agent = Agent(start, link, host, mounts)
    link.send(Ready(pid))
    agent.serve()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
