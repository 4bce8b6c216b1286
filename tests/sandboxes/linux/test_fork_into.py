"""A world's first process is forked into its namespaces by one call; by two forks where its number is unknown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.host import fork_server_client
from ramify.sandboxes.host.fork_server_client import find_bash

pytestmark = pytest.mark.linux_ns

FORKS = """
import os, sys, threading
from ramify.sandboxes.linux import kernel
kernel.unshare(kernel.CLONE_NEWUSER)
pid = kernel.fork_into(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS)
if pid == 0:
    inner = os.fork()  # the interpreter goes on as after any fork
    if inner == 0:
        os._exit(os.getpid())
    said = []
    thread = threading.Thread(target=lambda: said.append(1))
    thread.start()
    thread.join()
    ended = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
    os._exit(7 if os.getpid() == 1 and ended == inner == 2 and said else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    kernel.fork_into(kernel.CLONE_NEWNS | 0x200)  # with CLONE_FS, which contradicts it
except OSError as error:
    print(error.strerror)
"""

WITHOUT = """
import importlib.util, sys
found = importlib.util.spec_from_file_location("agent_main", {agent!r})
module = importlib.util.module_from_spec(found)
found.loader.exec_module(module)
module.make_importable()
from ramify.sandboxes.linux import kernel
kernel.can_fork_into = lambda: False
module.main(*sys.argv[1:])
"""


def test_the_child_is_the_first_of_its_namespace_and_goes_on() -> None:
    told = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert told.stdout.splitlines() == ["7", "clone: Invalid argument"], told.stderr


@pytest.mark.parametrize("known", [True, False])
def test_a_world_is_made_in_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    if not known:
        script = tmp_path / "agent.py"
        script.write_text(WITHOUT.format(agent=str(fork_server_client.AGENT)))
        monkeypatch.setattr(fork_server_client, "AGENT", script)
    place = tmp_path / "world"
    place.mkdir()
    assert doctor.probe(place, find_bash()).failure == ""
