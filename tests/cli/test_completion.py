from __future__ import annotations

from pathlib import Path
from typing import Any

from click.shell_completion import ShellComplete

from ramify.cli.main import cli


def offered(home: Path, *words: str, written: str = "") -> list[str]:
    asked = ShellComplete(cli, {}, "ramify", "_RAMIFY_COMPLETE")
    return [one.value for one in asked.get_completions(["--home", str(home), *words], written)]


def test_tab_offers_runs_and_checkpoints(home: Any) -> None:
    run, (first, *_) = home.story.run.id, home.story.checkpoints
    for command in ("log", "show", "diff", "checkout", "fork", "merge", "browse", "resume", "tree", "cancel"):
        assert run in offered(home.path, command), command
    assert offered(home.path, "log") == ["@", run]
    assert offered(home.path, "diff", "@", written=first.id[:8]) == [first.id]
    assert offered(home.path, "explain", written=first.id[:8]) == [], "it wants a run"
    assert offered(home.path, "show", written="zz") == []


def test_tab_is_silent_if_the_home_cannot_be_read(tmp_path: Path) -> None:
    assert offered(tmp_path / "none", "log") == []
    assert not (tmp_path / "none").exists()
    (tmp_path / "ramify.db").write_bytes(b"not a database at all" * 100)
    assert offered(tmp_path, "log") == []
