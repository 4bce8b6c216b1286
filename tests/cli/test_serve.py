from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest


def test_it_says_where_it_listens_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ramify.cli.main", "--home", str(tmp_path), "serve", "--port", "0"]
    process = subprocess.Popen([*command, "--base-url", "http://127.0.0.1:9/v1"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("serving http://127.0.0.1:9/v1 at http://127.0.0.1:")
    assert httpx.get(line.rsplit(" ", 1)[1].strip() + "/nothing-here", trust_env=False).status_code == 404
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in rest) == (0, False)


@pytest.mark.usefixtures("no_weights")
def test_without_weights_it_says_how_to_get_them(ramify: Any) -> None:
    said = ramify("serve", "--port", "0")
    assert (said.status, said.out) == (1, "")
    assert "ramify models pull" in said.err


def test_a_port_that_is_taken(ramify: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = ramify("serve", "--port", port, "--base-url", "http://127.0.0.1:9/v1")
    assert said.status == 1
    assert str(port) in said.err
    assert os.linesep not in said.err.strip()
