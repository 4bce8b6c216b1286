"""A layer's manifest: exactly what its folder holds. Its sha256 is the layer's id (docs/snapshot-format.md)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.filesystem.openat import split_path
from ramify.fork_engine.types import Entry, EntryKind, LayerId

FORMAT = 1

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)
"""The exceptions that reading JSON raises if it is malformed or lacks what it should hold."""

_DEFAULTS = {f.name: f.default for f in fields(Entry) if f.name != "kind"}


def canonical_json(value: object) -> bytes:
    """Encode a value in its only spelling: sorted keys, no spaces, ASCII (non-UTF-8 names as escapes)."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True)
class Manifest:
    """The content of a layer. `entries` are as stored: they include whiteouts and opaque folders."""

    entries: Mapping[str, Entry]
    root: Entry  # the layer's top folder: its mode and time

    @functools.cached_property
    def encoded(self) -> bytes:
        """The canonical JSON that is stored on disk."""
        entries = [{"path": path, **_entry_fields(self.entries[path])} for path in self.paths]
        return canonical_json({"format": FORMAT, "root": _entry_fields(self.root), "entries": entries})

    @functools.cached_property
    def id(self) -> LayerId:
        return LayerId(digest_bytes(self.encoded))

    def layer_of(self, path: str) -> LayerId:
        """Return the layer whose folder holds a path."""
        return self.id

    @functools.cached_property
    def paths(self) -> tuple[str, ...]:
        """All paths, sorted, so that the paths below a folder are one slice."""
        return tuple(sorted(self.entries))

    @functools.cached_property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """For each path of a hard-linked file, all paths of that file, sorted."""
        return link_groups(self.entries)


@dataclass(frozen=True)
class StackManifest(Manifest):
    """What a stack of layers shows, as if it were one: the layers of an image. It is never stored."""

    layers: Mapping[str, LayerId]  # by path
    stack: tuple[LayerId, ...]

    @functools.cached_property
    def id(self) -> LayerId:
        return LayerId("+".join(self.stack))

    def layer_of(self, path: str) -> LayerId:
        return self.layers[path]


def link_groups(entries: Mapping[str, Entry]) -> dict[str, tuple[str, ...]]:
    members: dict[str, list[str]] = {}
    for path, entry in entries.items():
        if entry.link:
            members.setdefault(entry.link, [entry.link]).append(path)
    return {path: tuple(sorted(group)) for group in members.values() for path in group}


def _entry_fields(entry: Entry) -> dict[str, object]:
    shown: dict[str, object] = {"kind": entry.kind.value}
    for name, default in _DEFAULTS.items():
        value = getattr(entry, name)
        if value != default:
            shown[name] = value
    return shown


def decode(encoded: bytes, expected: LayerId) -> Manifest:
    """Decode a manifest. Raises `SnapshotCorrupt` if the bytes do not match `expected` or are not a manifest."""
    if digest_bytes(encoded) != expected:
        raise SnapshotCorrupt(
            f"layer {expected}: its manifest does not match its digest. Delete the snapshots that use it, or restore "
            f"the layer's folder from a copy of the store"
        )
    try:
        raw = json.loads(encoded)
        if raw["format"] != FORMAT:
            raise SnapshotCorrupt(
                f"layer {expected}: manifest format {raw['format']!r}, this version of Ramify reads {FORMAT}"
            )
        entries = {item["path"]: _entry(item) for item in raw["entries"]}
        manifest = Manifest(entries, _entry(raw["root"]))
    except MALFORMED:
        raise SnapshotCorrupt(
            f"layer {expected}: its manifest is malformed, though it matches its digest. Nothing can use this layer: "
            f"`ramify fsck --repair` moves it aside"
        ) from None
    for path, entry in entries.items():
        _check_path(path, entries, expected)
        _check_link(path, entry, entries, expected)
    manifest.__dict__["id"] = expected  # known, so it need not be encoded and hashed again
    return manifest


def _entry(item: dict[str, object]) -> Entry:
    """Decode one entry. Raises one of `MALFORMED`."""
    known = {name: value for name, value in item.items() if name not in ("path", "kind", "xattrs")}
    for name, value in known.items():
        if type(value) is not type(_DEFAULTS[name]):
            raise TypeError(name)
    xattrs = item.get("xattrs", [])
    if not isinstance(xattrs, list):
        raise TypeError("xattrs")
    return Entry(
        kind=EntryKind(str(item["kind"])),
        xattrs=tuple((name, value) for name, value in xattrs),
        **known,  # type: ignore[arg-type]
    )


def _check_path(path: str, entries: Mapping[str, Entry], layer: LayerId) -> None:
    """Refuse a path outside the layer's folder, whoever wrote the manifest."""
    above, name = split_path(path)
    parent = entries.get(above)
    inside = not above or (parent is not None and parent.kind is EntryKind.DIR)
    if name in ("", ".", "..") or path.startswith("/") or "\0" in path or not inside:
        raise SnapshotCorrupt(f"layer {layer}: its manifest names {path!r}, which no folder of the layer holds")


def _check_link(path: str, entry: Entry, entries: Mapping[str, Entry], layer: LayerId) -> None:
    """Refuse a hard link that does not name the first path of a file in the same layer."""
    if not entry.link:
        return
    first = entries.get(entry.link)
    if first is None or first.link or not first.kind is entry.kind is EntryKind.FILE or entry.link >= path:
        raise SnapshotCorrupt(
            f"layer {layer}: its manifest links {path!r} to {entry.link!r}, which is not a file's first path"
        )
