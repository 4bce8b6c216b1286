"""How a launcher finds a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.sandboxes.agent.launcher import _execute


def test_a_folder_of_path_that_may_not_be_read_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.execve", denied)
    with pytest.raises(FileNotFoundError):
        _execute("missing", ["missing"], {"PATH": f"/unread:{tmp_path}"}, "/bin/bash")
    (tmp_path / "there").touch()
    with pytest.raises(PermissionError):
        _execute("there", ["there"], {"PATH": f"/unread:{tmp_path}"}, "/bin/bash")
