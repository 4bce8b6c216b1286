"""Files that act on whoever enters a folder or looks at it: hooks and configuration of git, `.envrc`, editors' tasks.

A world writes them like any other file. In the user's own folder they run as the user, without being started: `git
status` runs what `.git/config` names as `core.fsmonitor`. So a checkout leaves them out unless it is told otherwise.
What a command has to be started for, such as a Makefile or a test, is none of them. `.env` and `.tool-versions` are
written, too: nearly all that read them take values only, and the plug-ins of shells that run `.env` ask first.
"""

from __future__ import annotations

import functools
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import replace

from ramify.fork_engine.types import Entry, EntryKind, Withheld
from ramify.fork_engine.view import LocatedEntry, View

GIT = "git runs what it names"
SHELL = "a shell runs it on entry"
EDITOR = "an editor runs what it names"
AGENT = "a coding agent runs what it names"

_NAMES = {
    name: why
    for why, names in {
        SHELL: """
            .envrc .env.leave .autoenv .autoenv.zsh .autoenv_leave.zsh .mise .rtx.toml .rvmrc .shadowenv.d .prototools
        """,
        EDITOR: """
            .vscode .vs .idea .zed .fleet .helix .nova .lapce .theia .devcontainer .devcontainer.json .vimrc _vimrc
            .exrc .nvimrc .nvim.lua .lvimrc .local.vimrc .lazy.lua .ycm_extra_conf.py .neoconf.json .dir-locals.el
            .dir-locals-2.el .externaltoolbuilders .kateproject .kateproject.local hie.yaml .hie-bios .merlin
            .luarc.json .luarc.jsonc omnisharp.json .rprofile .renviron .rdata _exrc .gvimrc _gvimrc .vimrc.local
            _vimrc_local.vim .nvim .emacs.desktop .emacs-dirvars .bsp buildserver.json .sourcekit-lsp
            rust-analyzer.toml .rust-analyzer.toml rust-project.json .rust-project.json .factorypath
            .lite_project.lua .lite_project gtags.conf .globalrc .idx .codesandbox .gitpod.yml .replit
        """,
        AGENT: """
            .cursor .claude .codex .gemini .mcp.json .opencode opencode.json opencode.jsonc .roo .kiro .qwen .amazonq
            .windsurf .kilocode .trae .factory .continue .aider.conf.yml .crush.json crush.json .agents .amp .augment
            .cline .clinerules .codebuddy .copilot .goose .grok .iflow .junie .openhands .pi .qoder .rovodev .vibe
            .warp .zencoder .adal .agent .aider-desk .autohand .bob .codeartsdoer .codemaker .codestudio .comate
            .commandcode .continuerc.json .cortex .deepagents .devin .eca .firebender .forge .hermes .jazz .kimi .kode
            .letta .lingma .mcpjam .moxby .mux .neovate .ona .opencode.json .pochi .qodo .reasonix .tabnine .terramind
            .zcode mcp.json fastagent.config.yaml mcp_agent.config.yaml
        """,
        GIT: """
            .husky .githooks .git-hooks .pre-commit-config.yaml prek.toml .overcommit.yml .lefthook .lefthook-local
            .huskyrc .huskyrc.json .huskyrc.js husky.config.js captainhook.json grumphp.yml grumphp.yml.dist .gitlint
            .rusty-hook.toml hk.pkl .hk-hooks
        """,
        "Fossil runs what it names": ".fslckout _fossil_ .fossil-settings",
        "Monotone runs what it names": "_mtn",
        "a tool of version control runs what it names": """
            .repo .west .gclient .mrconfig .arcconfig .reviewboardrc
        """,
        "Perforce runs what it names": ".p4config p4config.txt",
    }.items()
    for name in names.split()
}
"""Names of files, and of folders with all that is in them."""
_OF_EDITORS = (".code-workspace", ".sublime-project", ".sublime-workspace", ".ipr", ".iws", ".run.xml")
_PLACES = tuple(
    (word, re.compile(rf"(?:^|/)(?:{place})"), why)
    for word, place, why in (
        # where mise looks for its configuration: https://mise.jdx.dev/configuration.html
        (
            "mise",
            r"\.?mise(?:rc)?(?:\.[^/]+)?\.toml$|\.config/mise/.|mise/(?:config[^/]*\.toml$|conf\.d/.)",
            SHELL,
        ),
        ("coc-settings", r"\.vim/coc-settings\.json$", EDITOR),
        (".github", r"\.github/(?:(?:hooks|copilot|agents|extensions)/.|mcp\.json$)", AGENT),
        ("lefthook", r"\.?lefthook(?:-local)?\.(?:ya?ml|toml|jsonc?)$", GIT),
        ("lint", r"(?:\.lintstagedrc|lint-staged\.config|\.commitlintrc|commitlint\.config)(?:\.[^/]+)?$", GIT),
        ("cvs", r"cvs/root$", "CVS runs what it names"),
        ("envrc", r"\.envrc\.[^/]+$", SHELL),  # what an `.envrc` of the user's includes: `.envrc.local`
        ("hermit", r"bin/(?:activate-)?hermit$", SHELL),
    )
)
"""Places below any folder, each with a word that is in all of its paths."""
_METADATA = {
    ".hg": ("Mercurial", ("hgrc", "hgrc-not-shared", "sharedpath")),
    ".sl": ("Sapling", ("config", "hgrc", "sharedpath")),
    ".jj": ("Jujutsu", ("config.toml", "workspace-config.toml", "config-id", "workspace-config-id", "repo")),
    "_darcs": ("Darcs", ("defaults", "prefs")),
    ".pijul": ("Pijul", ("config", "config.toml")),
    ".bzr": ("Breezy", ("branch.conf", "location")),
}
"""Folders of version control: whose they are, and the names in them of what runs commands or leads to another such
folder. A file in the place of the folder, and a link there or inside, lead elsewhere, too."""
_GIT_NAMES = ("config", "config.worktree", "hooks", "commondir", "rebase-merge")
_GIT_DATA = ("refs", "logs", "objects")  # hold names that others chose
SET_ID = "it had the rights of its owner (set-uid, set-gid)"


def reason(
    path: str, holds: Callable[[str], bool], *, link: bool = False, keeps: Callable[[str], bool] = lambda _: False
) -> str:
    """Why a file or link at the path would act on entry; "" if it would not.

    holds: whether another path is a file or a link. link: whether a symbolic link is at the path. keeps: whether
    another path is the user's own, and stays.
    """
    given = path.split("/")
    path = spelled(path)
    parts = path.split("/")
    for part in parts:
        if part in _NAMES:
            return _NAMES[part]
    if path.endswith(_OF_EDITORS):
        return EDITOR
    for word, place, why in _PLACES:
        if word in path and place.search(path):
            return why
    for folder, (program, names) in _METADATA.items():
        if parts[-1] == folder or (folder in parts and (link or parts[-1] in names)):
            return f"{program} runs what it names"
    return GIT if _acts_in_git(given, parts, holds, keeps, link) else ""


_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""The characters that Unicode lets programs ignore (Default_Ignorable_Code_Point)."""
_DROPPED = re.compile(r"(?::[^/]*|[. ]+)(?=/|$)")
_SHORT = re.compile(r"(?:^|(?<=/))([^/~]{1,6})~[1-9](\.[^/]{1,3})?(?=/|$)")


def spelled(path: str) -> str:
    """Return a path as the file system may understand it that it is written to.

    Case is ignored by many. ext4 with `casefold` and HFS+ also ignore invisible characters and how a letter is
    composed. NTFS drops dots and blanks at the end of a name, reads what follows a colon as a stream of the file, and
    knows most files by a short name as well (`git~1`).
    """
    if not path.isascii():
        path = _INVISIBLE.sub("", unicodedata.normalize("NFC", path))
    path = path.casefold()
    if ":" in path or " " in path or "./" in path or path.endswith("."):
        path = _DROPPED.sub("", path)
    return _SHORT.sub(_long_name, path) if "~" in path else path


def _long_name(found: re.Match[str]) -> str:
    return _SHORT_NAMES.get((found[1], found[2] or ""), found[0])


def _short_name(name: str) -> tuple[str, str]:
    """Return how NTFS's short name of a file begins, and its suffix."""
    stem, dot, suffix = name.lstrip(".").rpartition(".")
    return (stem if dot else suffix).replace(".", "")[:6], f".{suffix[:3]}" if dot else ""


_SHORT_NAMES = {_short_name(name): name for name in (".git", "mise.toml", "lefthook.yml", *_NAMES, *_METADATA)}


def _acts_in_git(
    given: list[str], parts: list[str], holds: Callable[[str], bool], keeps: Callable[[str], bool], link: bool
) -> bool:
    if parts[-1] == ".git":
        return True  # a file or link in place of the folder leads git elsewhere
    for inside in (parts[at + 1 :] for at, part in enumerate(parts) if part == ".git"):
        # git writes through links: one in place of a log would have it write to any file of the user's
        if link or (inside[0] not in _GIT_DATA and any(part in _GIT_NAMES for part in inside)):
            return True
    if ".git" in parts:
        return False
    # A bare repository is any folder with HEAD, `objects` and such a file. Its parts may come one by one.
    above = ["/".join([*given[:at], ""]) for at, part in enumerate(parts) if part in _GIT_NAMES]
    if any(holds(f"{folder}HEAD") for folder in above):
        return True
    beside = "/".join([*given[:-1], ""])
    return parts[-1] == "head" and any(keeps(f"{beside}{name}") for name in _GIT_NAMES)


def without_active_files(
    view: View, there: Callable[[str], bool] = lambda _: False, named: Iterable[str] = ()
) -> tuple[View, tuple[Withheld, ...]]:
    """The view without what would act on entry, and what that is. Costs what differs from the view's base.

    The base is the user's own folder as it was imported: what it holds stays, and takes the place of what a world
    changed. Files that got set-uid or set-gid bits in a world lose them. there: whether the folder that the view is
    written to has a path already. named: what the user's own settings of git have it run.
    """
    changes: dict[str, LocatedEntry | None] = {}
    withheld: list[Withheld] = []
    run = [spelled(path) for path in named]
    changed = functools.cache(lambda: {spelled(path) for path, found in view.delta.items() if _is_file(found)})

    @functools.cache
    def keeps(path: str) -> bool:
        return path in view.base.entries or there(path)

    @functools.cache
    def holds(path: str) -> bool:
        return _is_file(view.locate(path)) or spelled(path) in changed() or there(path)

    for path in sorted(view.delta):
        found = view.delta[path]
        if found is None or found.entry.kind is EntryKind.DIR:
            continue
        own = view.base.entries.get(path)
        if own is not None and _same(own, found.entry):
            continue
        link = found.entry.kind is EntryKind.SYMLINK
        why = GIT if any(_is_run(spelled(path), one, link) for one in run) else ""
        if why := why or reason(path, holds, link=link, keeps=keeps):
            withheld.append(Withheld(path, why))
            stays = own is not None and own.kind is not EntryKind.DIR
            changes[path] = LocatedEntry(own, view.base.layer_of(path)) if own is not None and stays else None
        elif found.entry.kind is EntryKind.FILE and found.entry.mode & (stat.S_ISUID | stat.S_ISGID):
            withheld.append(Withheld(path, SET_ID))
            mode = found.entry.mode & ~(stat.S_ISUID | stat.S_ISGID)
            changes[path] = LocatedEntry(replace(found.entry, mode=mode), found.layer)
    return (view.changed(changes, view.root, {}) if changes else view), tuple(withheld)


def _is_file(found: LocatedEntry | None) -> bool:
    """Whether it is a file or a link. A folder `Head` beside `hooks` makes no repository."""
    return found is not None and found.entry.kind is not EntryKind.DIR


def _is_run(path: str, run: str, link: bool) -> bool:
    """Whether a file of this path is run, or a link there leads to what is run instead."""
    return path == run or path.startswith(f"{run}/") or (link and run.startswith(f"{path}/"))


def _same(one: Entry, other: Entry) -> bool:
    return (one.content, one.xattrs) == (other.content, other.xattrs)
