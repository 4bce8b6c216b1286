"""Snapshot ids (exact, for restoring) and content keys (by content, for reuse)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from ramify.fork_engine.content import digest_bytes
from ramify.fork_engine.manifest import Manifest, canonical_json
from ramify.fork_engine.types import ContentKey, Entry, LayerId, ProcessTier, SnapshotId
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


def snapshot_id(
    layers: Sequence[LayerId], env: Mapping[str, str], env_unset: Sequence[str], cwd: str, tier: ProcessTier
) -> SnapshotId:
    return SnapshotId(
        digest_bytes(
            canonical_json(
                {"layers": layers, "env": env, "env_unset": sorted(env_unset), "cwd": cwd, "tier": tier.value}
            )
        )
    )


def base_digest(base: Manifest, volatile: Volatile) -> str:
    """What an imported folder holds, times and volatile paths aside: equal for equal folders, whenever imported."""
    files = _lines(((path, base.entries[path]) for path in base.paths), volatile)
    return digest_bytes(canonical_json([base.root.content, files]))


def content_key(
    view: View, base: str, volatile: Volatile, env: Mapping[str, str], env_unset: Sequence[str], cwd: str
) -> ContentKey:
    """`base` is the `base_digest` of the view's base. Costs the paths changed since the base, not the tree."""
    changed = sorted(path for path in view.delta if _content(view.get(path)) != _content(view.base.entries.get(path)))
    files = _lines(((path, view.get(path)) for path in changed), volatile)
    return ContentKey(
        digest_bytes(
            canonical_json(
                {
                    "base": base,
                    "root": view.root.content,
                    "files": files,
                    "env": env,
                    "env_unset": sorted(env_unset),
                    "cwd": cwd,
                }
            )
        )
    )


def _content(entry: Entry | None) -> tuple[str, int, str] | None:
    return None if entry is None else entry.content


def _lines(entries: Iterable[tuple[str, Entry | None]], volatile: Volatile) -> list[object]:
    return [(path, _content(entry)) for path, entry in entries if path not in volatile]
