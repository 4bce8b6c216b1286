"""A home that cannot be written is looked at all the same: a backup, another user's, a disk that was mounted so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from disks import read_only

from ramify.fork_engine import store_folder

LOOKS = ("ls", "inbox", "tree", "log", "show", "show @~1", "diff @", "effects", "explain", "fsck")


def test_read_only_commands_print_the_same_in_a_read_only_home(
    home: Any, ramify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = {words: ramify(*words.split()) for words in LOOKS}
    with read_only(home.path):
        monkeypatch.setattr(store_folder, "boot_id", lambda: "another boot's")
        for words, before in looks.items():
            said = ramify(*words.split())
            assert said == before, words
        assert ramify("checkout", "@", tmp_path / "out").status == 0
        assert sorted(path.name for path in (tmp_path / "out").iterdir())
        said = ramify("gc")
        assert (said.status, str(home.path) in said.err) == (1, True), said.err
