"""The format on disk, byte for byte: what is tested here must never change without a new format number."""

from __future__ import annotations

import hashlib
import json

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt
from ramify.fork_engine.filesystem.file_content import digest_bytes
from ramify.fork_engine.manifest import Manifest, canonical_json, decode
from ramify.fork_engine.types import Entry, EntryKind, LayerId

GOLDEN = Manifest(
    {
        "d": Entry(EntryKind.DIR, 0o755, mtime_ns=1, opaque=True),
        "d/a": Entry(EntryKind.FILE, 0o644, 3, 2, "ab" * 32, xattrs=(("user.x", "00ff"),)),
        "d/b": Entry(EntryKind.FILE, 0o644, 3, 2, "ab" * 32, link="d/a", xattrs=(("user.x", "00ff"),)),
        "gone": Entry(EntryKind.WHITEOUT),
        "l\udcff\n": Entry(EntryKind.SYMLINK, 0o777, 1, 4, "cd" * 32, target="\udcfe"),
        "p": Entry(EntryKind.FIFO, 0o600, mtime_ns=-5),
    },
    Entry(EntryKind.DIR, 0o755, mtime_ns=9),
)
ENCODED = (
    b'{"entries":['
    b'{"kind":"dir","mode":493,"mtime_ns":1,"opaque":true,"path":"d"},'
    b'{"digest":"' + b"ab" * 32 + b'","kind":"file","mode":420,"mtime_ns":2,"path":"d/a","size":3,'
    b'"xattrs":[["user.x","00ff"]]},'
    b'{"digest":"' + b"ab" * 32 + b'","kind":"file","link":"d/a","mode":420,"mtime_ns":2,"path":"d/b","size":3,'
    b'"xattrs":[["user.x","00ff"]]},'
    b'{"kind":"whiteout","path":"gone"},'
    b'{"digest":"' + b"cd" * 32 + b'","kind":"symlink","mode":511,"mtime_ns":4,"path":"l\\udcff\\n","size":1,'
    b'"target":"\\udcfe"},'
    b'{"kind":"fifo","mode":384,"mtime_ns":-5,"path":"p"}],'
    b'"format":1,"root":{"kind":"dir","mode":493,"mtime_ns":9}}'
)


def test_golden() -> None:
    assert GOLDEN.encoded == ENCODED
    assert GOLDEN.id == hashlib.sha256(ENCODED).hexdigest()
    assert GOLDEN.id == "49480029ab73e03b92f575da5a729cd8216a00621af7dcdf2ce048c6f7531cf9"


def test_round_trip() -> None:
    again = decode(ENCODED, GOLDEN.id)
    assert again == GOLDEN and again.id == GOLDEN.id and again.encoded == ENCODED
    assert again.groups == {"d/a": ("d/a", "d/b"), "d/b": ("d/a", "d/b")}


def test_any_damage_to_a_manifest_is_detected() -> None:
    for at in range(0, len(ENCODED), 7):
        with pytest.raises(SnapshotCorrupt, match=GOLDEN.id):
            decode(ENCODED[:at] + bytes([ENCODED[at] ^ 1]) + ENCODED[at + 1 :], GOLDEN.id)


@pytest.mark.parametrize(
    "path", ["../x", "/x", "d/../x", "d//x", "d/", ".", "", "d/.", "a\0b", "file/x", "nowhere/x"]
)
def test_a_manifest_path_outside_the_layer_is_refused(path: str) -> None:
    entries = {"d": Entry(EntryKind.DIR), "file": Entry(EntryKind.FILE), path: Entry(EntryKind.FILE)}
    evil = Manifest(entries, Entry(EntryKind.DIR))
    with pytest.raises(SnapshotCorrupt, match="no folder of the layer"):
        decode(evil.encoded, evil.id)


def test_a_newer_manifest_format_is_refused_by_name() -> None:
    encoded = canonical_json({**json.loads(ENCODED), "format": 2})
    with pytest.raises(SnapshotCorrupt, match="format 2"):
        decode(encoded, LayerId(hashlib.sha256(encoded).hexdigest()))


NO_MANIFESTS = [
    b"{}", b"[]", b"null", b"not JSON", b"[" * 100_000,
    b'{"format":1}',
    b'{"format":1,"root":{},"entries":[]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"x","kind":"weird"}]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"x","kind":"file","size":"big"}]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"x","kind":"file","xattrs":5}]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"x","kind":"file","more":1}]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"x","kind":"file","link":"nowhere"}]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"a","kind":"file","link":"b"},{"path":"b","kind":"file"}]}',
    b'{"format":1,"root":{"kind":"dir"},"entries":[{"path":"a","kind":"dir"},{"path":"b","kind":"file","link":"a"}]}',
]  # fmt: skip


@pytest.mark.parametrize("encoded", NO_MANIFESTS, ids=lambda encoded: encoded[:60].decode())
def test_a_malformed_manifest_with_a_right_digest_is_refused(encoded: bytes) -> None:
    with pytest.raises(SnapshotCorrupt):
        decode(encoded, LayerId(digest_bytes(encoded)))
