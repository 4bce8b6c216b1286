"""`make criu` without the packages: which folders count as CRIU, and the reasons for refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramify.sandboxes.host.criu import InstallFailed, working_command

ANSWERS = """#!/bin/sh
case "$4" in
  --version) echo "Version: {version}" ;;
  check) echo "{complaint}" >&2; [ -z "{complaint}" ] ;;
esac
"""


def unpacked(folder: Path, version: str, complaint: str = "") -> Path:
    """A folder as the packages leave it; a script in the dynamic linker's place answers for the program."""
    loader, program = folder / "usr/lib/any-linux-gnu/ld-linux-any.so.2", folder / "usr/sbin/criu"
    for path in (loader, program):
        path.parent.mkdir(parents=True)
    loader.write_text(ANSWERS.format(version=version, complaint=complaint))
    loader.chmod(0o755)
    program.touch()
    return folder


@pytest.mark.parametrize("version", ["4.1.1", "4.0", "10.2"])
def test_criu_4_is_accepted(tmp_path: Path, version: str) -> None:
    words = working_command(unpacked(tmp_path, version))
    assert words[-1] == str(tmp_path / "usr/sbin/criu") and all(Path(word).exists() for word in words[:1] + words[2:])


@pytest.mark.parametrize("version", ["3.17.1", "", "unknown"])
def test_older_criu_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(InstallFailed, match=f"'Version: ?{version}': CRIU 4 or later is needed"):
        working_command(unpacked(tmp_path, version))


def test_criu_that_does_not_work_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallFailed, match="criu check says: no such luck"):
        working_command(unpacked(tmp_path, "4.1", "no such luck"))


def test_a_folder_without_criu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallFailed, match="contain no criu"):
        working_command(tmp_path)
