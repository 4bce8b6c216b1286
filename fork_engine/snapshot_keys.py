"""Snapshot ids (exact, for restoring) and content keys (by content, for reuse)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.manifest import Manifest, canonical_json
from ramify.fork_engine.types import ContentKey, Entry, Snapshot, SnapshotId
from ramify.fork_engine.view import View

DEFAULT_VOLATILE: tuple[str, ...] = (
    "**/__pycache__",
    "**/*.pyc",
    "**/.pytest_cache",
    "**/.mypy_cache",
    "**/.ruff_cache",
    "**/.coverage",
    "**/.coverage.*",
)
"""What tools leave behind as a matter of course, out of the content key. Snapshots hold it all the same."""


class Volatile:
    """Globs over whole paths: `*` and `?` stay within a name, `**/` is any folders or none. A match covers what is
    below it."""

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._pattern = re.compile("|".join(_translate(glob) for glob in globs) or r"(?!)", re.DOTALL)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self._pattern.fullmatch(path) is not None


def _translate(glob: str) -> str:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.strip("/"))
    return "(?:" + "".join(tokens.get(part, re.escape(part)) for part in parts) + ")(?:/.*)?"


VOLATILE_OUTSIDE = Volatile(("tmp", "var/tmp", "run", "**/.cache", *DEFAULT_VOLATILE))
"""The same for what lies beside the workspace: temporary folders and caches."""

UNDEFINED = ContentKey("")
"""The content key of a state whose processes nothing declares: it serves no reuse."""


def snapshot_id(state: Snapshot) -> SnapshotId:
    """Of all that a restore brings back. What version 1 did not know is spelled only where it is there, so that its
    ids hold."""
    return SnapshotId(digest_bytes(canonical_json(identity(state))))


def identity(state: Snapshot) -> dict[str, object]:
    """The fields that the id is the digest of, as docs/snapshot-format.md spells them."""
    spelled: dict[str, object] = {
        "layers": state.layers,
        "env": dict(state.env),
        "env_unset": sorted(state.env_unset),
        "cwd": state.cwd,
        "tier": state.processes.tier.value,
    }
    ran = state.processes
    later: dict[str, object] = {
        "outside": state.outside,
        "image": state.image,
        "shell": ran.shell,
        "process_image": ran.image,
        "commands": ran.commands,
        "dropped": ran.dropped,
    }
    return spelled | {name: value for name, value in later.items() if value}


def base_digest(base: Manifest, volatile: Volatile) -> str:
    """What an imported folder holds, times and volatile paths aside: equal for equal folders, whenever imported."""
    files = _lines(((path, base.entries[path]) for path in base.paths), volatile)
    return digest_bytes(canonical_json([_content(base.root), files]))


@dataclass(frozen=True, slots=True)
class Stacks:
    """A state's two stacks as views, and what they stand on as the content key knows it."""

    view: View
    base: str  # the `base_digest` of the view's base
    outside: View | None = None
    image: str = ""  # the `base_digest` of the image


def content_key(state: Snapshot, stacks: Stacks, volatile: Volatile) -> ContentKey:
    """`UNDEFINED` where the processes are not declared. Costs the paths changed since the base, not the tree."""
    if not state.processes.declared:
        return UNDEFINED
    spelled: dict[str, object] = {
        "base": stacks.base,
        "root": _content(stacks.view.root),
        "files": _differing(stacks.view, volatile),
        "env": dict(state.env),
        "env_unset": sorted(state.env_unset),
        "cwd": state.cwd,
    }
    later: dict[str, object] = {
        "outside": _differing(stacks.outside, VOLATILE_OUTSIDE) if stacks.outside is not None else [],
        "image": stacks.image,
        "shell": state.processes.shell,
        "commands": state.processes.commands,
    }
    return ContentKey(digest_bytes(canonical_json(spelled | {name: value for name, value in later.items() if value})))


def _differing(view: View, volatile: Volatile) -> list[object]:
    """The paths that differ from the view's base, by content."""
    changed = sorted(path for path in view.delta if _content(view.get(path)) != _content(view.base.entries.get(path)))
    return _lines(((path, view.get(path)) for path in changed), volatile)


def _content(entry: Entry | None) -> tuple[object, ...] | None:
    """What a program can see of a path, times and hard links aside."""
    if entry is None:
        return None
    return (*entry.content, entry.xattrs) if entry.xattrs else entry.content


def _lines(entries: Iterable[tuple[str, Entry | None]], volatile: Volatile) -> list[object]:
    return [(path, _content(entry)) for path, entry in entries if path not in volatile]
