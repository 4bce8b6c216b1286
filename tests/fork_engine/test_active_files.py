"""A checkout leaves out, and names, what acts on whoever enters the folder."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.active_files import GIT, SET_ID, reason
from ramify.fork_engine.types import Withheld

REPOSITORY = {".git/HEAD": "ref: refs/heads/main\n", ".git/config": "[core]\n", ".git/objects/.keep": "", "a": "1"}


@pytest.mark.parametrize(
    "path",
    [
        ".git", ".git/hooks/post-checkout", ".git/hooks", ".git/config", ".git/config.worktree", ".GIT/Config",
        ".git/modules/sub/config", ".git/worktrees/w/config.worktree", ".git/commondir", "deep/inside/.git/hooks/x",
        ".envrc", "sub/.envrc", ".vscode", ".vscode/tasks.json", "x.code-workspace", ".idea/workspace.xml", ".exrc",
        ".dir-locals.el", ".devcontainer/devcontainer.json", ".mcp.json", ".claude/settings.json", ".hg/hgrc",
        "opencode.json", ".opencode/plugin/a.ts", ".roo/mcp.json", ".kiro/settings/mcp.json", ".qwen/settings.json",
        ".husky/pre-commit", "mise.toml", ".aider.conf.yml", "crush.json", ".kilocode/mcp.json",
        ".jj/repo/config.toml", ".jj/repo", ".jj", ".hg", ".hg/sharedpath", ".hg/hgrc-not-shared", ".sl",
        ".sl/config", ".sl/sharedpath", "_darcs/prefs/defaults", ".pijul/config", ".mise.toml", "mise.local.toml",
        ".mise.local.toml", ".mise.production.toml", "mise.a.local.toml", "mise/config.toml", ".config/mise.toml",
        ".config/mise/config.toml", ".config/mise/conf.d/a.toml", ".config/mise/tasks/build", ".mise/tasks/build",
        "sub/mise/config.local.toml", ".rvmrc", ".shadowenv.d/500.lisp", ".lazy.lua", ".local.vimrc",
        ".miserc.toml", ".autoenv_leave.zsh", ".vs/tasks.vs.json", "x.sublime-project",
        ".vim/coc-settings.json", ".ycm_extra_conf.py", "sub/hie.yaml", ".merlin", ".luarc.json", "omnisharp.json",
        ".externalToolBuilders/a.launch", "a.ipr", ".run/a.run.xml", ".Rprofile", ".kateproject",
        ".github/hooks/a.json", ".github/copilot/settings.json", ".clinerules/hooks/a", ".openhands/setup.sh",
        ".junie/mcp/mcp.json",
        ".pre-commit-config.yaml", "lefthook.yml", ".config/lefthook-local.toml", ".git/rebase-merge/git-rebase-todo",
        ".prototools", ".envrc.local", "sub/.envrc.private", "bin/activate-hermit", "bin/hermit", "_exrc",
        ".gvimrc", ".emacs.desktop", ".bsp/scala-cli.json", "buildServer.json", ".sourcekit-lsp/config.json",
        "rust-analyzer.toml", "rust-project.json", ".lite_project.lua", ".factorypath", ".gitpod.yml",
        ".agent/workflows/a.md", ".bob/mcp.json", "mcp.json", ".opencode.json", ".huskyrc", "captainhook.json",
        "hk.pkl", ".lintstagedrc", ".lintstagedrc.json", "lint-staged.config.mjs", "commitlint.config.js",
        ".repo/repo/main.py", ".gclient", ".reviewboardrc", ".arcconfig", "_MTN/monotonerc",
        ".jj/workspace-config.toml", ".jj/repo/config-id", ".pijul/config.toml", ".git/refs/x/.git/config",
        ".bzr/branch/branch.conf", ".bzr", ".fslckout", "_FOSSIL_", "CVS/Root", "_darcs/prefs/prefs", ".p4config",
    ],
)  # fmt: skip
def test_paths_that_act_on_entry(path: str) -> None:
    assert reason(path, lambda _: False)


@pytest.mark.parametrize(
    "path",
    ["Makefile", "config", "hooks/x", "git/config", ".gitignore", ".github/workflows/ci.yml", ".git/HEAD",
     ".git/refs/heads/config", ".git/objects/hooks", "conftest.py", "vscode/tasks.json",
     "mise/pyproject.toml", "mise/src/config.py", "promise.toml", ".hg/store/00changelog.i", ".sl/requires",
     ".github/dependabot.yml", "cvs", "src/root", "environment", "lefthook.md", ".vim/plugin/a.vim", "rebase-merge/x",
     ".env", ".tool-versions",
     "package.json", ".npmrc", ".cargo/config.toml", ".venv/bin/python", ".nvmrc", "a~1", "b/c~1.txt", "a:b", "...",
     ".git/refs/remotes/origin/config", "hermit", "src/bin/hermits", ".envrc-example", "lint.config.js", "HEAD",
     "lib/head", "sl/config", ".jj/working_copy/tree_state", "config.toml", "repo", "defaults"],
)  # fmt: skip
def test_paths_that_do_not(path: str) -> None:
    assert not reason(path, lambda _: False)


@pytest.mark.parametrize(
    "path",
    [
        ".ENVRC", ".envrc.", ".envrc ", ".envrc. .", ".envrc::$DATA", ".git./config", ".git /hooks/x",
        ".g\u200cit/config", ".git::$INDEX_ALLOCATION/config", "git~1/config", "GIT~2/hooks/x", "ENVRC~1",
        "VSCODE~1/tasks.json",
        "sub/MISE~1.TOM", ".\u212airo/mcp.json", ".\ufeffenvrc", "CVS./Root", ".hg\u2060/hgrc",
        ".vs\u00adcode/tasks.json",
    ],
)  # fmt: skip
def test_other_spellings_that_a_file_system_takes_for_such_a_path(path: str) -> None:
    assert reason(path, lambda _: False)


@pytest.mark.parametrize("path", [".git/logs/HEAD", ".git/index", ".git/objects", ".hg/store", ".jj/working_copy"])
def test_links_inside_a_repository(path: str) -> None:
    """Git appends to its logs through a link, so to any file of the user's."""
    assert reason(path, lambda _: False, link=True)
    assert not reason(path, lambda _: False)


def test_a_folder_that_git_takes_for_a_repository() -> None:
    there = {"data/HEAD", "data/objects"}
    assert reason("data/config", there.__contains__) == reason("data/hooks/post-checkout", there.__contains__) == GIT
    assert not reason("other/config", there.__contains__)


def test_folders_named_head_and_hooks_are_no_repository(bench: Any, tmp_path: Path) -> None:
    """A component `Head` beside `hooks` and `config`, as in many web projects."""
    files = {f"src/{name}": "1" for name in ("Head/index.tsx", "head/a", "hooks/useIt.ts", "config/index.ts")}
    base = bench.base({"HEAD/a": "1", "README": "1"})
    written = bench.store.checkout(bench.after(base, {**files, "hooks/a": "1"}), tmp_path / "dest")
    assert written.withheld == ()
    assert (tmp_path / "dest/src/hooks/useIt.ts").exists() and (tmp_path / "dest/hooks/a").exists()


def evil_repository(tree: Path, *parts: str) -> None:
    """Parts of a bare repository whose configuration runs a program."""
    subprocess.run(["git", "init", "--quiet", "--bare", "made"], cwd=tree, check=True)
    subprocess.run(["git", "-C", "made", "config", "core.fsmonitor", "touch ran;:"], cwd=tree, check=True)
    subprocess.run(["git", "-C", "made", "config", "core.bare", "false"], cwd=tree, check=True)
    subprocess.run(["git", "-C", "made", "config", "core.worktree", ".."], cwd=tree, check=True)
    (tree / "r").mkdir(exist_ok=True)
    for part in parts:
        (tree / "made" / part).rename(tree / "r" / part)
    shutil.rmtree(tree / "made")


PARTS = (("config",), ("HEAD",), ("objects", "refs"))


@pytest.mark.parametrize(
    "order", list(itertools.permutations(PARTS)), ids=lambda order: "-".join(one[0] for one in order)
)
@pytest.mark.parametrize("applied", [True, False], ids=["applied", "forced"])
def test_a_repository_that_comes_in_parts(bench: Any, tmp_path: Path, order: Any, applied: bool) -> None:
    """Of several runs over one folder, each brings a part."""
    dest = tmp_path / "dest"
    dest.mkdir()
    base = bench.base({})
    for parts in order:
        made = bench.after(base, do=lambda tree, parts=parts: evil_repository(tree, *parts))
        how = {"only_changes_from": base} if applied else {"force": True}
        bench.store.checkout(made, dest, **how)
        if applied:
            base = bench.store.import_tree(dest).snapshot
    assert (dest / "r").is_dir() and not ((dest / "r/config").exists() and (dest / "r/HEAD").exists())
    subprocess.run(["git", "status"], cwd=dest / "r", capture_output=True, check=False)
    assert not (dest / "ran").exists()
    everything = bench.after(bench.base({}), do=lambda tree: evil_repository(tree, *itertools.chain(*PARTS)))
    bench.store.checkout(everything, tmp_path / "asked", active_files=True)
    subprocess.run(["git", "status"], cwd=tmp_path / "asked/r", capture_output=True, check=False)
    assert (tmp_path / "asked/ran").exists(), "the attack works where it is let through"


def test_git_status_after_a_checkout_runs_nothing(bench: Any, tmp_path: Path) -> None:
    """Git runs `core.fsmonitor` in `git status`, and `post-checkout` in `git checkout`."""
    base = bench.base({"a": "1"})
    ran = tmp_path / "ran"

    def attack(tree: Path) -> None:
        subprocess.run(["git", "init", "--quiet", "."], cwd=tree, check=True)
        (tree / "run").write_text(f"#!/bin/sh\necho run >> {ran}\n")
        (tree / "run").chmod(0o755)
        subprocess.run(["git", "config", "core.fsmonitor", "./run"], cwd=tree, check=True)
        (tree / ".git/hooks").mkdir(exist_ok=True)
        os.link(tree / "run", tree / ".git/hooks/post-index-change")

    made = bench.after(base, do=attack)
    for dest, how in ((tmp_path / "new", {}), (tmp_path / "applied", {"only_changes_from": base})):
        if how:
            dest.mkdir()
            (dest / "a").write_text("1")
        written = bench.store.checkout(made, dest, **how)
        subprocess.run(["git", "status"], cwd=dest, capture_output=True, check=True)
        assert not ran.exists()
        named = {one.path for one in written.withheld}
        assert {".git/config", ".git/hooks/post-index-change"} <= named
        assert not named & {change.path for change in written}
        assert (dest / "run").exists()
    bench.store.checkout(made, tmp_path / "asked", active_files=True)
    subprocess.run(["git", "status"], cwd=tmp_path / "asked", capture_output=True, check=False)
    assert ran.exists(), "the attack works where it is let through"


def test_what_the_workspace_held_takes_the_place_of_what_a_world_changed(bench: Any, tmp_path: Path) -> None:
    base = bench.base({**REPOSITORY, ".git/hooks/own": "own", ".envrc": "own"})
    made = bench.after(base, {".git/config": "[core]\nfsmonitor = evil\n", ".envrc": "evil", "a": "2"})
    written = bench.store.checkout(made, tmp_path / "new")
    assert written.withheld == (Withheld(".envrc", "a shell runs it on entry"), Withheld(".git/config", GIT))
    assert (tmp_path / "new/.git/config").read_text() == "[core]\n"
    assert (tmp_path / "new/.envrc").read_text() == (tmp_path / "new/.git/hooks/own").read_text() == "own"
    folder = tmp_path / "applied"
    bench.store.materialise(base, folder)
    (folder / ".envrc").write_text("mine, newer")
    written = bench.store.checkout(made, folder, only_changes_from=base)
    assert [change.path for change in written] == ["a"]
    assert (folder / ".envrc").read_text() == "mine, newer"


def test_a_repository_in_other_letters_and_odd_files(bench: Any, tmp_path: Path) -> None:
    """Where case is ignored, `Head` and `OBJECTS` make a repository; git waits for ever for a FIFO."""

    def attack(tree: Path) -> None:
        (tree / ".git").mkdir()
        os.mkfifo(tree / ".git/config")
        (tree / ".git/logs").symlink_to("/tmp")
        (tree / "own").chmod(0o755)
        os.link(tree / "data/CONFIG", tree / "plain")

    base = bench.base({"own": "1", ".husky/pre-commit": "own"})
    made = bench.after(base, {"data/Head": "ref: x", "data/OBJECTS/x": "", "data/CONFIG": "evil"}, do=attack)
    made = bench.after(made, do=lambda tree: (tree / ".husky/pre-commit").chmod(0o755))
    written = bench.store.checkout(made, tmp_path / "new")
    assert [one.path for one in written.withheld] == [
        ".git/config", ".git/logs", ".husky/pre-commit", "data/CONFIG",
    ]  # fmt: skip
    assert (tmp_path / "new/plain").read_text() == "evil"
    assert not (tmp_path / "new/.husky/pre-commit").stat().st_mode & stat.S_IXUSR


def test_links_in_place_of_active_folders_are_left_out(bench: Any, tmp_path: Path) -> None:
    def link(tree: Path) -> None:
        (tree / "data").mkdir()
        (tree / "data/tasks.json").write_text("{}")
        (tree / ".vscode").symlink_to("data")
        (tree / ".git").write_text("gitdir: data\n")

    written = bench.store.checkout(bench.after(bench.base({}), do=link), tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["data"]
    assert [one.path for one in written.withheld] == [".git", ".vscode"]


def test_set_id_bits_are_removed(bench: Any, tmp_path: Path) -> None:
    base = bench.base({"own": "1", "other": "1"})

    def set_bits(tree: Path) -> None:
        (tree / "own").chmod(0o4755)
        (tree / "new").write_text("x")
        (tree / "new").chmod(0o2755)

    made = bench.after(base, do=set_bits)
    written = bench.store.checkout(made, tmp_path / "new")
    assert written.withheld == (Withheld("new", SET_ID), Withheld("own", SET_ID))
    bench.store.materialise(base, tmp_path / "applied")
    bench.store.checkout(made, tmp_path / "applied", only_changes_from=base)
    for dest in ("new", "applied"):
        for name in ("own", "new"):
            assert stat.S_IMODE((tmp_path / dest / name).stat().st_mode) == 0o755
    bench.store.checkout(made, tmp_path / "asked", active_files=True)
    assert stat.S_IMODE((tmp_path / "asked/own").stat().st_mode) == 0o4755
