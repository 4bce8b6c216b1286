"""Locks and sockets of a parent are not inherited by forked children."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMON = """
import fcntl, os, resource, socket, sys, tempfile, threading
from pathlib import Path
from ramify.fork_engine import close_on_fork

folder = Path(tempfile.mkdtemp())

def in_child(check):
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def is_free(path):
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)

def locked(name="lock"):
    fd = close_on_fork.open_lock(folder / name, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd

def wait_for(pipe):
    return os.read(pipe, 1)
"""

CASES = {
    "a lock is its parent's alone": """
fd = locked()
def check():
    assert not is_free(folder / "lock")      # the parent has it
    assert os.fstat(fd).st_ino != os.stat(folder / "lock").st_ino
    os.close(fd)                              # what an object's end would do
in_child(check)
assert not is_free(folder / "lock")
close_on_fork.close_lock(fd)
assert is_free(folder / "lock")
""",
    "a lock goes with its parent, though the child lives": """
go, go_in = os.pipe()
said, said_in = os.pipe()
middle = os.fork()
if middle == 0:
    fd = locked()
    if os.fork() == 0:
        os.write(said_in, b"x")
        os.close(go_in)
        wait_for(go)
        os._exit(0)
    wait_for(said)
    os._exit(0)                               # as by a kill: nothing is unlocked
os.waitpid(middle, 0)
assert is_free(folder / "lock")
os.close(go_in)
""",
    "a lock that C code's child has a copy of is given back": """
fd = locked()
copy = os.dup(fd)                             # what such a child would hold
close_on_fork.close_lock(fd)
assert is_free(folder / "lock")
""",
    "a number that is another file's since is left alone": """
fd = locked()
os.close(fd)                                  # not by close_lock
(folder / "other").write_text("kept")
again = os.open(folder / "other", os.O_RDONLY)
assert again == fd
in_child(lambda: [None for _ in [0] if os.read(again, 9) != b"kept" and sys.exit(1)])
""",
    "a socket's other end is nobody": """
ours, theirs = socket.socketpair()
close_on_fork.close_in_children(ours.fileno())
def check():
    theirs.close()
    assert ours.recv(10) == b""
    try:
        ours.send(b"goodbye", socket.MSG_NOSIGNAL)
    except BrokenPipeError:
        return
    raise AssertionError("somebody heard it")
in_child(check)
ours.send(b"hello")
assert theirs.recv(10) == b"hello"
""",
    "nothing of it is inherited by a program that the child starts": """
fd = locked()
in_child(lambda: [None for _ in [0] if os.get_inheritable(fd) and sys.exit(1)])
""",
    "where no more files may be opened": """
fd = locked()
resource.setrlimit(resource.RLIMIT_NOFILE, (fd + 1, fd + 1))
def check():
    try:
        os.fstat(fd)
    except OSError:
        return
    raise AssertionError("it is open")
in_child(check)
""",
    "a fork beside a lock that is just being opened": """
stop = threading.Event()
def opening():
    while not stop.is_set():
        close_on_fork.close_lock(locked(f"lock{threading.get_ident()}"))
threads = [threading.Thread(target=opening) for _ in range(3)]
for thread in threads: thread.start()
def check():
    for path in folder.glob("lock*"):
        ours = {os.stat(f"/proc/self/fd/{fd}").st_ino for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")}
        assert path.stat().st_ino not in ours
for _ in range(60): in_child(check)
stop.set()
for thread in threads: thread.join()
""",
    "a child's child, and what the child locks itself": """
fd = locked()
def check():
    own = locked("own")
    in_child(lambda: [None for _ in [0] if os.fstat(own).st_ino == os.stat(folder / "own").st_ino and sys.exit(1)])
    assert not is_free(folder / "own")
    assert not is_free(folder / "lock")
in_child(check)
""",
    "no hook before there is something to drop": """
import ramify.session, ramify.runtime.store, ramify.sandboxes.host.fork_server_client
assert not close_on_fork._hooked
calls = []
os.register_at_fork = lambda **hooks: calls.append(hooks)
locked()
locked("two")
assert len(calls) == 1
""",
}


@pytest.mark.parametrize("case", CASES)
def test_a_forked_child_inherits_nothing_registered(case: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", COMMON + CASES[case]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
