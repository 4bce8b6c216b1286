"""What a repository's own configuration has git run from its work tree is left out of a checkout, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.active_files import GIT
from ramify.fork_engine.git_settings import named_for, named_in
from ramify.fork_engine.types import Withheld

CONFIG = r"""
[core]
	hooksPath = scripts/hooks
	fsmonitor = "./tools/watch --fast"
[core] pager = less -FRX
[include]
	path = ../.gitconfig
[filter "x"]
	clean = python tools/clean.py %f
	smudge = cat
[alias]
	st = status
	do = !sh build/do.sh
[remote "origin"]
	url = ../elsewhere/x.git
[user]
	email = a@b.c
[diff "img"] textconv = /work/tree/bin/show
[includeIf "gitdir:~/x/"] path = ~/other
"""


def test_paths_that_a_configuration_names() -> None:
    assert named_in(CONFIG.encode(), "/work/tree") == {
        "scripts/hooks", "tools/watch", ".gitconfig", "tools/clean.py", "bin/show",
    }  # fmt: skip
    assert named_in(b"\xff[core\nhooksPath\n= x\n[core]\nhookspath=\n", "/x") == set()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("hooks # ours", "hooks"), ("hooks;ours", "hooks"), ('"a b" ; x', "a b"), (r'"a\"#b"/c', 'a"#b/c'),
        ("sc\\\nripts", "scripts"), ("/work/tree/a", "a"), ("~/tree/a", "a"), ("~/elsewhere", None), ("", None),
    ],
)  # fmt: skip
def test_a_value_is_read_as_git_reads_it(value: str, named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/work")
    found = named_in(f"[core]\n\thooksPath = {value}\n".encode(), "/work/tree")
    assert found == (set() if named is None else {named})


def test_folders_that_an_alias_names_are_no_hooks() -> None:
    """An alias runs when its user types it, as a Makefile does."""
    assert named_in(b"[alias]\n\ttodo = !grep -rn TODO src/\n\tlint = !ruff check src/a.py\n", "/x") == set()


def test_the_users_configuration_for_all_repositories(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("[core]\n\thooksPath = tools/hooks\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "own"))
    assert named_for(repository) == {"scripts/hooks", "tools/hooks"}
    assert named_for(repository / "tools") == {"hooks", "tools/hooks"}  # it may become a repository itself
    assert named_for(tmp_path / "none") == {"tools/hooks"}
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "git").mkdir()
    (tmp_path / "own").rename(tmp_path / "git/config")
    assert named_for(tmp_path / "none") == {"tools/hooks"}


@pytest.fixture(autouse=True)
def no_configuration_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run(["git", "config", "core.hooksPath", "scripts/hooks"], cwd=folder, check=True)
    (folder / "scripts/hooks").mkdir(parents=True)
    (folder / "scripts/hooks/pre-commit").write_text("own\n")
    (folder / "scripts/build").write_text("own\n")
    return folder


def test_the_repository_around_a_folder(repository: Path, tmp_path: Path) -> None:
    assert named_for(repository) == {"scripts/hooks"}
    subprocess.run(["git", "config", "extensions.worktreeConfig", "true"], cwd=repository, check=True)
    subprocess.run(["git", "config", "--worktree", "core.fsmonitor", "tools/watch"], cwd=repository, check=True)
    assert named_for(repository) == {"scripts/hooks", "tools/watch"}
    assert named_for(repository / "scripts") == {"hooks"}
    assert named_for(repository / "scripts/hooks/x") == set()
    as_me = ["git", "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*as_me, "commit", "--quiet", "--allow-empty", "-mx"], cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "--quiet", str(tmp_path / "more")], cwd=repository, check=True)
    assert named_for(tmp_path / "more") == {"scripts/hooks", "tools/watch"}  # git copies it
    pipe = tmp_path / "pipe"
    (pipe / ".git").mkdir(parents=True)
    os.mkfifo(pipe / ".git/config")
    assert named_for(pipe) == set()


@pytest.mark.parametrize("how", ["applied", "new", "a folder of it"])
def test_hooks_in_a_folder_of_the_users_choice(bench: Any, repository: Path, tmp_path: Path, how: str) -> None:
    own = repository if how != "a folder of it" else repository / "scripts"
    prefix = "scripts/" if own == repository else ""
    base = bench.store.import_tree(own).snapshot
    hook, build = f"{prefix}hooks/pre-commit", f"{prefix}build"
    made = bench.after(base, {hook: "evil\n", f"{prefix}hooks/new": "evil\n", build: "changed\n"})
    if how == "new":
        dest, written = tmp_path / "new", bench.store.checkout(made, tmp_path / "new")
    else:
        dest, written = own, bench.store.checkout(made, own, only_changes_from=base)
    assert written.withheld == (Withheld(f"{prefix}hooks/new", GIT), Withheld(hook, GIT))
    assert (dest / hook).read_text() == "own\n" and not (dest / f"{prefix}hooks/new").exists()
    assert (dest / build).read_text() == "changed\n"


def test_a_link_that_leads_to_other_hooks(bench: Any, repository: Path) -> None:
    base = bench.store.import_tree(repository).snapshot

    def lead(tree: Path) -> None:
        (tree / "scripts").rename(tree / "own")
        (tree / "evil/hooks").mkdir(parents=True)
        (tree / "scripts").symlink_to("evil")

    written = bench.store.checkout(bench.after(base, do=lead), repository, only_changes_from=base)
    assert Withheld("scripts", GIT) in written.withheld
    assert not (repository / "scripts").is_symlink()
