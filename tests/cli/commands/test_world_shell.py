"""`ramify world shell` and `exec -t` in a real terminal; `exec` with streams."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.warm_process import WarmInterpreter

PATIENCE_S = 60.0
RAMIFY = [sys.executable, "-m", "ramify.cli.main"]


class Typist:
    """A program in a terminal, and who types into it."""

    def __init__(self, words: list[str], env: dict[str, str], cwd: Path) -> None:
        self.master, slave = os.openpty()
        self.resize(33, 99)
        self.before = termios.tcgetattr(slave)
        self.program = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # type: ignore[arg-type]
        )
        self.slave = slave
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str) -> str:
        """What is shown up to this text, which comes within a minute."""
        deadline = time.monotonic() + PATIENCE_S
        while text.encode() not in self.seen:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.master], [], [], max(0.0, left))
            assert ready, f"{text!r} was not shown: {self.seen!r}"
            self.seen += os.read(self.master, 1 << 16)
        shown, _, self.seen = self.seen.partition(text.encode())
        return shown.decode()

    def ended(self) -> int:
        status = self.program.wait(PATIENCE_S)
        assert termios.tcgetattr(self.slave) == self.before, "the terminal was not restored"
        return status

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def env(tmp_path: Path, warm: WarmInterpreter) -> dict[str, str]:
    env = {**os.environ, "RAMIFY_HOME": str(tmp_path / "home"), "RAMIFY_SANDBOX": "copy"}
    made = warm.run(["world", "new", "--name", "one"], env=env, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    return env


@pytest.fixture
def typist(env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Typist]]:
    made: list[Typist] = []

    def start(*words: str) -> Typist:
        made.append(Typist([*RAMIFY, *words], env, tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.close()


Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def call(env: dict[str, str], tmp_path: Path, warm: WarmInterpreter) -> Call:
    """A command without a terminal."""

    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return warm.run(words, env=env, cwd=tmp_path, stdin=stdin)

    return run


def test_a_shell_is_a_terminal_of_the_world(typist: Callable[..., Typist], call: Call) -> None:
    one = typist("world", "shell", "-e", "PS1=ready> ", "one")
    one.expect("# " if os.geteuid() == 0 else "$ ")
    one.type("PS1='rea''dy> '\n")
    one.expect("ready> ")
    one.type("stty size; tty\n")
    one.expect("33 99")
    one.expect("/dev/pts/")
    one.expect("ready> ")
    one.resize(44, 111)
    os.kill(one.program.pid, signal.SIGWINCH)
    one.type("until stty size | grep '^44 1[1]1'; do sleep 0.05; done\n")  # what is typed is shown, too
    one.expect("44 111")
    one.expect("ready> ")
    one.type("sh -c 'echo be''gun; exec sleep 1000'\n")
    one.expect("begun")
    one.type("\x03")  # Ctrl-C goes inside
    one.expect("ready> ")
    one.type("echo code=$?\n")
    one.expect("code=130")
    one.expect("ready> ")
    one.type("sh -c 'echo be''gun; exec sleep 1000'\n")
    one.expect("begun")
    one.type("\x1a")  # and so does Ctrl-Z
    one.expect("Stopped")
    one.expect("ready> ")
    one.type("echo written > file; kill %1; (exit 5); exit\n")
    assert one.ended() == 5
    assert call("world", "exec", "one", "cat file").stdout == "written\n"


def test_ctrl_d_ends_a_shell_and_what_it_wrote_is_kept(typist: Callable[..., Typist], call: Call) -> None:
    one = typist("world", "shell", "one")
    one.type("PS1='rea''dy> '; echo kept > kept; false; echo al''most\n")
    one.expect("almost")
    one.expect("ready> ")  # bash reads by itself now: an end that the terminal reads before is lost
    one.type("\x04")
    assert one.ended() == 0
    assert call("world", "exec", "one", "ls").stdout == "kept\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_if_the_command_is_told_to_end(typist: Callable[..., Typist], how: int) -> None:
    one = typist("world", "shell", "one")
    one.type("echo be''gun\n")
    one.expect("begun")
    one.program.send_signal(how)
    assert one.ended() != 0


def test_a_command_in_a_terminal_passes_its_status_on(typist: Callable[..., Typist]) -> None:
    one = typist("world", "exec", "-t", "one", "tty; exit 7")
    one.expect("/dev/pts/")
    assert one.ended() == 7


def test_without_a_terminal_a_shell_reads_a_script(call: Call) -> None:
    done = call("world", "shell", "one", stdin="echo out; echo err >&2; cd /; pwd; exit 4\n")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n/\n", "err\n", 4)
    refused = call("world", "exec", "-t", "one", "true")
    assert refused.returncode == 2 and "terminal" in refused.stderr


def test_exec_streams_and_passes_input_and_status(env: dict[str, str], call: Call, tmp_path: Path) -> None:
    words = ["world", "exec", "-i", "-e", "A=b", "--cwd", "/", "one"]
    line = "echo $A; pwd; while read x; do echo got $x; done; exit 3"
    with subprocess.Popen(
        [*RAMIFY, *words, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=tmp_path
    ) as running:
        assert running.stdin is not None and running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == [b"b\n", b"/\n"]  # before its input has come
        running.stdin.write(b"one\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"got one\n"
        running.stdin.close()
        assert running.wait(PATIENCE_S) == 3
    for patience in ("0.3", "3", "30"):
        late = call("world", "exec", "--timeout", patience, "one", "echo early; sleep 1000")
        if late.stdout:
            break  # else the machine was so busy that the command had not begun
    assert (late.stdout, late.returncode) == ("early\n", 124) and f"after {patience} s" in late.stderr
    unknown = call("world", "exec", "--user", "nobody-at-all", "one", "id")
    assert unknown.returncode == 1 and "no user 'nobody-at-all'" in unknown.stderr


def test_a_command_that_is_told_to_end_leaves_what_it_wrote(env: dict[str, str], call: Call, tmp_path: Path) -> None:
    words = [*RAMIFY, "world", "exec", "one", "echo kept > kept; echo begun; sleep 1000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as running:
        assert running.stdout is not None and running.stdout.readline() == b"begun\n"
        running.terminate()
        assert running.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert call("world", "exec", "one", "ls").stdout == "kept\n"
