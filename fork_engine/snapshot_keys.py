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
"""Files that tools leave behind routinely. Content keys leave them out; snapshots hold them."""


class VolatileGlobs:
    """Globs that match whole paths: `*` and `?` match within a name, `**/` any number of folders. A match includes
    everything below it."""

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._pattern = re.compile("|".join(_translate(glob) for glob in globs) or r"(?!)", re.DOTALL)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and self._pattern.fullmatch(path) is not None


def _translate(glob: str) -> str:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob.strip("/"))
    return "(?:" + "".join(tokens.get(part, re.escape(part)) for part in parts) + ")(?:/.*)?"


VOLATILE_OUTSIDE = VolatileGlobs(("tmp", "var/tmp", "run", "**/.cache", *DEFAULT_VOLATILE))
"""Default volatile globs outside the workspace: temporary folders and caches."""

UNDEFINED = ContentKey("")
"""The content key of a state with undeclared processes: nothing can be reused from it."""


def snapshot_id(state: Snapshot) -> SnapshotId:
    """Return the digest of everything that a restore brings back.

    Fields that format version 1 did not have are included only if they are set, so that the ids of version 1 stay
    valid.
    """
    return SnapshotId(digest_bytes(canonical_json(identity(state))))


def identity(state: Snapshot) -> dict[str, object]:
    """Return the fields that the id is the digest of, as docs/snapshot-format.md defines them."""
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
        "image_layers": state.image_layers,
        "shell": ran.shell,
        "shells": ran.shells,
        "process_image": ran.image,
        "commands": ran.commands,
        "dropped": ran.dropped,
    }
    return spelled | {name: value for name, value in later.items() if value}


def base_digest(base: Manifest, volatile: VolatileGlobs) -> str:
    """Digest an imported folder without times and volatile paths: equal folders have equal digests, whenever they
    were imported."""
    files = _lines(((path, base.entries[path]) for path in base.paths), volatile)
    return digest_bytes(canonical_json([_content(base.root), files]))


@dataclass(frozen=True, slots=True)
class StackViews:
    """A state's two stacks as views, and the digests of their bases for the content key."""

    view: View
    base: str  # the `base_digest` of the view's base
    outside: View | None = None
    image: str = ""  # the `base_digest` of the image, all its layers stacked


def content_key(state: Snapshot, stacks: StackViews, volatile: VolatileGlobs) -> ContentKey:
    """Return the content key, or `UNDEFINED` if the processes are not declared. Costs the paths changed since the
    base."""
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
        "shells": state.processes.shells,
        "commands": state.processes.commands,
    }
    return ContentKey(digest_bytes(canonical_json(spelled | {name: value for name, value in later.items() if value})))


def _differing(view: View, volatile: VolatileGlobs) -> list[object]:
    """Return the paths whose content differs from the view's base."""
    changed = sorted(path for path in view.delta if _content(view.get(path)) != _content(view.base.entries.get(path)))
    return _lines(((path, view.get(path)) for path in changed), volatile)


def _content(entry: Entry | None) -> tuple[object, ...] | None:
    """Return what a program can see at a path, without times and hard links."""
    if entry is None:
        return None
    return (*entry.content, entry.xattrs) if entry.xattrs else entry.content


def _lines(entries: Iterable[tuple[str, Entry | None]], volatile: VolatileGlobs) -> list[object]:
    return [(path, _content(entry)) for path, entry in entries if path not in volatile]
