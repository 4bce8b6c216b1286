"""What a repository's own configuration has git run from its work tree is left out of a checkout, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.active_files import GIT
from ramify.fork_engine.git_settings import named_by_repository, named_in
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
        "scripts/hooks", "tools/watch", ".gitconfig", "tools/clean.py", "build/do.sh", "bin/show",
    }  # fmt: skip
    assert named_in(b"\xff[core\nhooksPath\n= x\n[core]\nhookspath=\n", "/x") == set()


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
    assert named_by_repository(repository) == {"scripts/hooks"}
    assert named_by_repository(repository / "scripts") == {"hooks"}
    assert named_by_repository(repository / "scripts/hooks/x") == set()
    as_me = ["git", "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*as_me, "commit", "--quiet", "--allow-empty", "-mx"], cwd=repository, check=True)
    subprocess.run(["git", "worktree", "add", "--quiet", str(tmp_path / "more")], cwd=repository, check=True)
    assert named_by_repository(tmp_path / "more") == {"scripts/hooks"}
    pipe = tmp_path / "pipe"
    (pipe / ".git").mkdir(parents=True)
    os.mkfifo(pipe / ".git/config")
    assert named_by_repository(pipe) == set()


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
