"""The helper process that worlds are forked from. Stdlib only.

There is one for each backend. Forking this small, single-threaded process takes a millisecond; a new Python takes
twenty, and forking the host (threads, a gigabyte of model) is not safe. The host sends one end of a world's socket;
this process forks the world's agent on that socket, and later reports how the agent ended.

All isolated worlds of a backend share one user namespace, this process's own, and are separate in all others. Its
second child is the mount server, which mounts their trees (mount_server.py).

Nothing outlives the host. The agents, the mount server and this process watch the host's pidfd, and one that hangs is
killed by PR_SET_PDEATHSIG when this process ends. A namespace's processes and mounts end with its PID 1.
"""

from __future__ import annotations

import codecs
import contextlib
import gc
import os
import select
import signal
import socket
import sys
from pathlib import Path

from ramify.sandboxes.agent import confinement
from ramify.sandboxes.agent.agent import Agent
from ramify.sandboxes.agent.framing import Link
from ramify.sandboxes.agent.messages import Failed, Ready, Start
from ramify.sandboxes.agent.mount_server import serve_mounts
from ramify.sandboxes.agent.mount_view import ROOT, MountView
from ramify.sandboxes.agent.ports import Listeners
from ramify.sandboxes.linux import kernel

OWN_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
LATE_CODECS = ("unicode_escape", "latin-1", "idna")  # Python loads them on demand, and an image may hold no Python
KINDS = {
    b"plain": 0,  # no isolation
    b"isolated": OWN_NAMESPACES | kernel.CLONE_NEWNET,
    b"online": OWN_NAMESPACES,  # with the host's network
}


def run(control: str, mount_server: str = "", *anchors: str) -> None:
    """Serve with the descriptors of the control socket and, for isolated worlds, of the mount server's socket."""
    serve(
        socket.socket(fileno=int(control)),
        socket.socket(fileno=int(mount_server)) if mount_server else None,
        list(anchors),
    )


def serve(control: socket.socket, mount_server: socket.socket | None, anchors: list[str]) -> None:
    """Serve the host until it hangs up or ends, or the mount server ends."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the host blocks and ignores is inherited
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in LATE_CODECS:
        codecs.lookup(name)
    control.set_inheritable(False)
    host = os.pidfd_open(os.getppid())
    kernel.become_subreaper()
    confinement.prepare()
    gc.freeze()  # a collection in an agent would copy every page that holds an object
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    mount_server_pid = 0
    if mount_server is not None:
        mount_server.set_inheritable(False)
        _enter_user_namespace()
        mount_server_pid = _start_mount_server(mount_server, control, host, anchors)
    wake, wake_in = os.pipe()
    for end in (wake, wake_in):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_in, warn_on_full_buffer=False)
    poll = select.poll()
    for descriptor in (control.fileno(), host, wake):
        poll.register(descriptor, select.POLLIN)
    agents: dict[int, int] = {}  # by pid: the host's number of the agent
    root = f"{anchors[-1]}/{ROOT}" if anchors else ""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == host:
                return
            if descriptor == wake:
                os.read(wake, 4096)
                if not _report_ended_agents(control, agents, mount_server_pid):
                    return
            else:
                message, descriptors, _, _ = socket.recv_fds(control, 64, 1)
                if not message:
                    return
                os.set_inheritable(descriptors[0], False)
                kind, number = message.split()
                link = Link(socket.socket(fileno=descriptors[0]))
                pid = _spawn(control, link, host, KINDS[kind], root)
                if pid:
                    agents[pid] = int(number)
                control.send(f"born {int(number)} {pid}".encode() if pid else f"dead {int(number)} 1".encode())


def _start_mount_server(mount_server: socket.socket, control: socket.socket, host: int, anchors: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            control.close()
            kernel.die_with_parent()
            serve_mounts(mount_server, host, anchors)
        except OSError as error:
            os.write(2, f"{error}\n".encode())
        finally:
            os._exit(1)
    mount_server.close()
    return pid


def _report_ended_agents(control: socket.socket, agents: dict[int, int], mount_server: int) -> bool:
    """Report to the host which agents ended and how. False if the mount server ended: without it no world can be
    made."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return True
        if pid == mount_server:
            return False
        number = agents.pop(pid, None)
        if number is not None:  # else an orphan of a world without a namespace
            control.send(f"dead {number} {os.waitstatus_to_exitcode(status)}".encode())


def _spawn(control: socket.socket, link: Link, host: int, namespaces: int, root: str) -> int:
    """Fork a world's agent; return its pid, 0 if that fails.

    PID 1 of a pid namespace must be forked after an unshare. So where both are not one call, a child in between forks
    it.
    """
    go, go_in = os.pipe()
    told, told_in = os.pipe()
    at_once = namespaces and kernel.can_fork_into()
    try:
        child = kernel.fork_into(namespaces) if at_once else os.fork()
    except OSError as error:  # no processes are left: report it, and keep existing worlds running
        link.send(Failed(str(error)))
        for descriptor in (go, go_in, told, told_in, link.sock.detach()):
            os.close(descriptor)
        return 0
    if child == 0:
        control.close()
        os.close(told)
        os.close(go_in)  # so that we notice if our parent ends before it has written
        if at_once:
            os.close(told_in)
            _become_agent(link, host, go, MountView(root, link))
        if namespaces:
            _become_namespace(link, host, go, told_in, namespaces, root)
        _become_agent(link, host, go)
    os.close(told_in)
    agent = child
    if namespaces and not at_once:
        agent = int(os.read(told, 16) or 0)
        os.waitpid(child, 0)
    if agent:
        os.write(go_in, str(agent).encode())  # it is our own child only now: PR_SET_PDEATHSIG refers to us
    for descriptor in (go, go_in, told):
        os.close(descriptor)
    link.sock.close()
    return agent


def _become_namespace(link: Link, host: int, go: int, told: int, namespaces: int, root: str) -> None:
    try:
        kernel.unshare(namespaces)
        pid = os.fork()
    except OSError as error:
        link.send(Failed(str(error)))
        os._exit(1)
    if pid == 0:
        os.close(told)
        _become_agent(link, host, go, MountView(root, link))
    os.write(told, str(pid).encode())
    os._exit(0)


def _enter_user_namespace() -> None:
    """Enter a new user namespace in which all ids stay the same. A child that stays outside writes its map."""
    me = os.getpid()
    go, go_in = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go_in)
            os.read(go, 1)
            _map_ids(me)
            os._exit(0)
        except OSError as error:
            os.write(2, f"mapping user and group ids: {error}\n".encode())
        finally:
            os._exit(1)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER)
    except OSError as error:
        os.kill(child, signal.SIGKILL)
        sys.exit(str(error))
    for descriptor in (go, go_in):
        os.close(descriptor)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(1)
    _reserve_inotify_for_host()


def _reserve_inotify_for_host() -> None:
    """Leave the host a share of what the kernel counts per user over all namespaces: a world's user is the host's
    too."""
    for kind in ("instances", "watches"):
        with contextlib.suppress(OSError, ValueError):  # the kernel has no such limit, or nobody may set it
            all_of_it = int(Path(f"/proc/sys/fs/inotify/max_user_{kind}").read_text())
            Path(f"/proc/sys/user/max_inotify_{kind}").write_text(str(all_of_it - all_of_it // 4))


def _map_ids(pid: int) -> None:
    """Map the ids. Root keeps the whole range, so that `chown` works."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            for kind in ("uid_map", "gid_map"):
                ranges = [line.split() for line in Path(f"/proc/self/{kind}").read_text().splitlines()]
                _write(pid, kind, "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges))
            return
        except PermissionError:
            pass  # root of a container without CAP_SETUID is treated like any user
    _write(pid, "setgroups", "deny")
    _write(pid, "uid_map", f"{user} {user} 1\n")
    _write(pid, "gid_map", f"{group} {group} 1\n")


def _write(pid: int, name: str, text: str) -> None:
    Path(f"/proc/{pid}/{name}").write_text(text)


def _become_agent(link: Link, host: int, go: int, mounts: MountView | None = None) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        pid = int(os.read(go, 16))
        kernel.die_with_parent()
        os.setsid()
        if mounts is not None:
            with contextlib.suppress(OSError):  # it is tried again, and reported, when a world is made
                mounts.prepare()
        start = link.receive()  # a spare waits here until it is needed
        if isinstance(start, Start):
            _serve(start, link, host, pid, mounts)
    except BaseException as error:  # noqa: BLE001  # the last frame: the host must get the error
        link.send(Failed(f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def _serve(start: Start, link: Link, host: int, pid: int, mounts: MountView | None) -> None:
    listeners = Listeners(link.passed.pop()) if start.view is not None and start.view.egress else None
    if mounts is not None and start.view is not None:
        mounts.build(start.view, start.image, waits=start.waits)
    else:
        kernel.become_subreaper()
    if listeners is not None:
        listeners.serve()  # before processes of a snapshot could take a port
    agent = Agent(start, link, host, mounts)
    if listeners is not None:
        agent.open_ports(listeners)
    if start.waits and not start.whole:
        agent.prepare_shell()
    if start.frozen:
        agent.begin_ahead()
    link.send(Ready(pid, mounts.uncovered, mounts.made) if mounts is not None else Ready(pid))
    agent.serve()
