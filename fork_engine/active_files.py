"""Files that act on whoever enters a folder or looks at it: hooks and configuration of git, `.envrc`, editors' tasks.

A world writes them like any other file. In the user's own folder they run as the user, without being started: `git
status` runs what `.git/config` names as `core.fsmonitor`. So a checkout leaves them out unless it is told otherwise.
What a command has to be started for, such as a Makefile or a test, is none of them.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable
from dataclasses import replace

from ramify.fork_engine.types import Entry, EntryKind, Withheld
from ramify.fork_engine.view import LocatedEntry, View

GIT = "git runs what it names"
SHELL = "a shell runs it on entry"
EDITOR = "an editor runs what it names"
AGENT = "a coding agent runs what it names"

_NAMES = {
    **dict.fromkeys((".envrc", ".autoenv", ".autoenv.zsh", ".mise", ".rtx.toml", ".rvmrc", ".shadowenv.d"), SHELL),
    **dict.fromkeys(
        (
            ".vscode", ".idea", ".zed", ".fleet", ".helix", ".nova", ".devcontainer", ".devcontainer.json",
            ".vimrc", "_vimrc", ".exrc", ".nvimrc", ".nvim.lua", ".lvimrc", ".local.vimrc", ".lazy.lua",
            ".dir-locals.el", ".dir-locals-2.el",
        ),
        EDITOR,
    ),
    **dict.fromkeys(
        (
            ".cursor", ".claude", ".codex", ".gemini", ".mcp.json", ".opencode", "opencode.json", "opencode.jsonc",
            ".roo", ".kiro", ".qwen", ".amazonq", ".windsurf", ".kilocode", ".trae", ".factory", ".continue",
            ".aider.conf.yml", ".crush.json", "crush.json",
        ),
        AGENT,
    ),
    **dict.fromkeys((".husky", ".githooks"), GIT),
}  # fmt: skip
"""Names of files, and of folders with all that is in them."""
_SUFFIXES = {".code-workspace": EDITOR}
_MISE = re.compile(r"(?:^|/)(?:\.?mise(?:\.[^/]+)?\.toml|\.config/mise/.+|mise/(?:config[^/]*\.toml|conf\.d/.+))$")
"""The places where mise looks for its configuration: https://mise.jdx.dev/configuration.html."""
_METADATA = {
    ".hg": ("Mercurial", ("hgrc", "hgrc-not-shared", "sharedpath")),
    ".sl": ("Sapling", ("config", "hgrc", "sharedpath")),
    ".jj": ("Jujutsu", ("config.toml", "repo")),
    "_darcs": ("Darcs", ("defaults",)),
    ".pijul": ("Pijul", ("config",)),
}
"""Folders of version control: whose they are, and the names in them of what runs commands or leads to another such
folder. A file or link in the place of the folder leads elsewhere, too."""
_GIT_NAMES = ("config", "config.worktree", "hooks", "commondir")
_GIT_DATA = ("refs", "logs", "objects")  # hold names that others chose
SET_ID = "it had the rights of its owner (set-uid, set-gid)"


def reason(path: str, holds: Callable[[str], bool]) -> str:
    """Why a file or link at the path would act on entry; "" if it would not. `holds`: whether another path exists."""
    parts = path.casefold().split("/")
    for part in parts:
        if part in _NAMES:
            return _NAMES[part]
    if name := next((suffix for suffix in _SUFFIXES if parts[-1].endswith(suffix)), ""):
        return _SUFFIXES[name]
    if _MISE.search("/".join(parts)):
        return SHELL
    for folder, (program, names) in _METADATA.items():
        if parts[-1] == folder or (folder in parts and parts[-1] in names):
            return f"{program} runs what it names"
    return GIT if _acts_in_git(path, parts, holds) else ""


def _acts_in_git(path: str, parts: list[str], holds: Callable[[str], bool]) -> bool:
    if parts[-1] == ".git":
        return True  # a file or link in place of the folder leads git elsewhere
    if ".git" in parts:
        inside = parts[parts.index(".git") + 1 :]
        return inside[0] not in _GIT_DATA and any(part in _GIT_NAMES for part in inside)
    real = path.split("/")
    above = ["/".join(real[:at]) for at, part in enumerate(parts) if part in _GIT_NAMES]
    return any(_is_bare_repository(f"{folder}/" if folder else "", holds) for folder in above)


def _is_bare_repository(prefix: str, holds: Callable[[str], bool]) -> bool:
    return holds(f"{prefix}HEAD") and (holds(f"{prefix}objects") or holds(f"{prefix}commondir"))


def without_active_files(view: View) -> tuple[View, tuple[Withheld, ...]]:
    """The view without what would act on entry, and what that is. Costs what differs from the view's base.

    The base is the user's own folder as it was imported: what it holds stays, and takes the place of what a world
    changed. Files that got set-uid or set-gid bits in a world lose them.
    """
    changes: dict[str, LocatedEntry | None] = {}
    withheld: list[Withheld] = []
    for path in sorted(view.delta):
        found = view.delta[path]
        if found is None or found.entry.kind not in (EntryKind.FILE, EntryKind.SYMLINK):
            continue
        own = view.base.entries.get(path)
        if own is not None and _same(own, found.entry):
            continue
        if why := reason(path, view.__contains__):
            withheld.append(Withheld(path, why))
            keeps = own is not None and own.kind is not EntryKind.DIR
            changes[path] = LocatedEntry(own, view.base.layer_of(path)) if own is not None and keeps else None
        elif found.entry.kind is EntryKind.FILE and found.entry.mode & (stat.S_ISUID | stat.S_ISGID):
            withheld.append(Withheld(path, SET_ID))
            mode = found.entry.mode & ~(stat.S_ISUID | stat.S_ISGID)
            changes[path] = LocatedEntry(replace(found.entry, mode=mode), found.layer)
    return (view.changed(changes, view.root, {}) if changes else view), tuple(withheld)


def _same(one: Entry, other: Entry) -> bool:
    return (one.content, one.xattrs) == (other.content, other.xattrs)
