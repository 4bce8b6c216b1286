"""What the kernel forbids of snapshots of living programs is said, method by method."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
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


def test_a_kernel_that_notes_no_writes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(fcntl, "ioctl", refused)
    with pytest.raises(OSError, match=r"Linux 6\.7|userfaultfd is refused"):
        checkpoint_support.track_writes()
    assert any("compares all memory of living programs" in line for line in checkpoint_support.forbidden())
