"""What the kernel forbids of snapshots of living programs is said, method by method."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ramify.sandboxes import doctor
from ramify.sandboxes.linux import checkpoint_support

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="live state is kept on x86_64")


def test_each_method_that_is_forbidden_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(checkpoint_support, "TRACE_SCOPE", scope)
    before = checkpoint_support.forbidden()  # a machine with no Yama; other methods may be forbidden here
    scope.write_text("1\n")
    assert checkpoint_support.forbidden() == before
    scope.write_text("3\n")
    monkeypatch.setattr(checkpoint_support, "LAST_PID", tmp_path / "none")
    told = "\n".join(checkpoint_support.forbidden())
    assert f"keep no living programs and no Python sessions: {scope} is 3" in told
    assert "cannot be restored: the kernel was built without CONFIG_CHECKPOINT_RESTORE" in told
    assert str(scope) in "\n".join(doctor.checkpoint_notes())


FILTERED = """
import ctypes, errno, sys
from ramify.sandboxes.linux import checkpoint_support, seccomp
code = seccomp.Assembler()
code.load(seccomp.NUMBER)
code.jump(seccomp.EQUAL, int(sys.argv[1]), "refused")
code.answer(seccomp.ALLOW)
code.answer(seccomp.ERRNO | errno.EPERM, "refused")
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
seccomp._install(code.assemble())
print(*checkpoint_support.forbidden(), sep="\\n")
"""


@pytest.mark.parametrize(("number", "name"), [(101, "ptrace"), (312, "kcmp")])
def test_a_filter_that_forbids_a_call_is_told(number: int, name: str) -> None:
    """As the filters of containers do."""
    done = subprocess.run([sys.executable, "-c", FILTERED, str(number)], capture_output=True, text=True, check=True)
    assert "snapshots keep no living programs and no Python sessions" in done.stdout
    assert name in done.stdout


def test_a_kernel_that_notes_no_writes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(fcntl, "ioctl", refused)
    with pytest.raises(OSError, match=r"Linux 6\.7|userfaultfd is refused"):
        checkpoint_support.track_writes()
    assert any("compares all memory of living programs" in line for line in checkpoint_support.forbidden())
