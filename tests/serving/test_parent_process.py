"""A process that ends with the one that started it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, sys
from ramify.serving.parent_process import end_with_parent
end_with_parent(int(sys.argv[1]), lambda: os._exit(0), look_s=0.02)
print(os.getpid(), flush=True)
for line in sys.stdin:
    print("lives", flush=True)
"""
PARENT = """
import os, subprocess, sys, threading
command = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
def start():
    global child
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    print(child.stdout.readline().strip(), flush=True)
thread = threading.Thread(target=start)
thread.start()
thread.join()
child.stdin.write("who?\\n")
child.stdin.flush()
print(child.stdout.readline().strip(), flush=True)
os.set_inheritable(child.stdin.fileno(), True)
holder = subprocess.Popen(["sleep", "600"], close_fds=False)  # the child does not see its stdin end
print(holder.pid, flush=True)
holder.wait()
"""


def is_running(pid: int) -> bool:
    """False for a zombie, too: who adopted it may be slow to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_lives_as_long_as_the_process_and_not_the_thread_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, said, holder = [parent.stdout.readline().strip() for _ in range(3)]
        assert said == "lives"
        parent.kill()
        parent.wait()
        try:
            for _ in range(600):
                if not is_running(int(pid)):
                    break
                time.sleep(0.1)
            else:
                pytest.fail(f"process {pid} outlived its parent")
            assert is_running(int(holder)), "the pipe was open until now"
        finally:
            os.kill(int(holder), 9)


def test_it_ends_at_once_if_its_parent_is_gone_already() -> None:
    wrong = "1" if os.getpid() != 1 else "2"
    done = subprocess.run([sys.executable, "-c", CHILD, wrong], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (1, "the parent is gone", "")
