"""A snapshot's record, byte for byte, and damage to it; volatile globs, and the content key's golden."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from ramify.fork_engine.errors import SnapshotCorrupt, SnapshotNotFound
from ramify.fork_engine.manifest import Manifest, canonical_json
from ramify.fork_engine.snapshots import (
    DEFAULT_VOLATILE,
    UNDEFINED,
    StackViews,
    VolatileGlobs,
    base_digest,
    content_key,
    decode,
    encode,
    snapshot_id,
)
from ramify.fork_engine.types import (
    ContentKey,
    Entry,
    EntryKind,
    LayerId,
    Processes,
    ProcessTier,
    Snapshot,
    SnapshotId,
)
from ramify.fork_engine.view import HostOverlayView, LocatedEntry, View


@pytest.mark.parametrize(
    ("path", "volatile"),
    [
        ("__pycache__", True),
        ("a/b/__pycache__", True),
        ("a/__pycache__/m.cpython-311.pyc", True),
        ("a.pyc", True),
        (".coverage", True),
        ("sub/.coverage.host.123", True),
        (".coveragerc", False),
        ("my__pycache__", False),
        ("a/b.py", False),
        ("a.pyc.txt", False),
        ("new\nline/__pycache__/x", True),
    ],
)
def test_default_globs(path: str, volatile: bool) -> None:
    assert (path in VolatileGlobs(DEFAULT_VOLATILE)) is volatile


def test_globs() -> None:
    globs = VolatileGlobs(["tmp/*/x?", "**/[a].log"])
    assert "tmp/1/xy" in globs and "tmp/1/xy/below" in globs and "q/[a].log" in globs
    assert "tmp/1/2/xy" not in globs and "tmp/1/x" not in globs and "a.log" not in globs
    assert "anything" not in VolatileGlobs([])


def test_golden_of_the_content_key() -> None:
    top = Entry(EntryKind.DIR, 0o755, mtime_ns=1)
    base = Manifest({"a": Entry(EntryKind.FILE, 0o644, 1, 5, "aa"), "x.pyc": Entry(EntryKind.FILE)}, top)
    volatile = VolatileGlobs(DEFAULT_VOLATILE)
    digest = base_digest(base, volatile)
    assert digest == sha256(b'[["dir",493,""],[["a",["file",420,"aa"]]]]')
    delta = {"a": None, "b": LocatedEntry(Entry(EntryKind.FIFO, 0o600, mtime_ns=7), LayerId("l"))}
    state = Snapshot(SnapshotId(""), (base.id,), ContentKey(""), {"E": "1"}, ("U",))
    stacks = StackViews(View(base, delta), digest)
    assert content_key(state, stacks, volatile) == sha256(
        b'{"base":"' + digest.encode() + b'","cwd":"","env":{"E":"1"},"env_unset":["U"],'
        b'"files":[["a",null],["b",["fifo",384,""]]],"root":["dir",493,""]}'
    )
    tiers = (ProcessTier.REPL, ProcessTier.CRIU, ProcessTier.TREE)
    for live in (Processes(ProcessTier.DROPPED, dropped=1), *map(Processes, tiers)):
        assert content_key(replace(state, processes=live), stacks, volatile) == UNDEFINED
    outside = Manifest({"tmp": top, "tmp/x": Entry(EntryKind.FIFO), "h": Entry(EntryKind.WHITEOUT)}, top)
    declared = Processes(ProcessTier.COMMANDS, shell="5", commands=("serve",), reason="not said")
    assert content_key(
        replace(state, processes=declared),
        replace(stacks, outside=HostOverlayView().stacked(outside), image="8"),
        volatile,
    ) == sha256(
        b'{"base":"' + digest.encode() + b'","commands":["serve"],"cwd":"","env":{"E":"1"},"env_unset":["U"],'
        b'"files":[["a",null],["b",["fifo",384,""]]],"image":"8","outside":[["h",["whiteout",0,""]]],'
        b'"root":["dir",493,""],"shell":"5"}'
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


LAYERS = (LayerId("1" * 64), LayerId("2" * 64))
ENV = {"B": "\udcff", "A": "1"}
SPELLED = (
    '{"cwd":"d","env":{"A":"1","B":"\\udcff"},"env_unset":["X","Y"],"layers":["'
    + "1" * 64
    + '","'
    + "2" * 64
    + '"],"tier":"dropped"}'
)


def made(**fields: Any) -> Snapshot:
    plain = Snapshot(
        id=SnapshotId(""),
        layers=LAYERS,
        content_key=ContentKey("3" * 64),
        env=ENV,
        env_unset=("X", "Y"),
        cwd="d",
        processes=Processes(ProcessTier.DROPPED),
    )
    draft = replace(plain, **fields)
    return replace(draft, id=snapshot_id(draft))


def test_golden() -> None:
    """Fields of version 1 are spelled as in version 1, so that its ids stay valid."""
    snapshot = made()
    assert snapshot.id == hashlib.sha256(SPELLED.encode()).hexdigest()
    assert made(env_unset=("Y", "X")).id == snapshot.id
    fields = {
        **json.loads(SPELLED),
        "format": 2,
        "content_key": "3" * 64,
        "volatile": ["*.pyc"],
        "parents": [],
        "reason": "",
    }
    check = hashlib.sha256(canonical_json(fields)).hexdigest()
    assert encode(snapshot, ("*.pyc",)) == canonical_json({**fields, "check": check})


WHOLE = Processes(ProcessTier.CRIU, "5" * 64, "6" * 64, ("serve &",), 2, "why")


def test_golden_of_all_that_version_2_knows() -> None:
    snapshot = made(
        outside=(LayerId("7" * 64),),
        image=LayerId("8" * 64),
        processes=WHOLE,
        parents=(SnapshotId("9" * 64),),
        merges=((SnapshotId("a" * 64), SnapshotId("b" * 64)),),
    )
    spelled = {
        **json.loads(SPELLED),
        "tier": "criu",
        "outside": ["7" * 64],
        "image": "8" * 64,
        "shell": "5" * 64,
        "process_image": "6" * 64,
        "commands": ["serve &"],
        "dropped": 2,
    }
    assert snapshot.id == hashlib.sha256(canonical_json(spelled)).hexdigest()
    fields = {
        **spelled,
        "format": 2,
        "content_key": "3" * 64,
        "volatile": [],
        "parents": ["9" * 64],
        "merges": [["a" * 64, "b" * 64]],
        "reason": "why",
    }
    check = hashlib.sha256(canonical_json(fields)).hexdigest()
    encoded = encode(snapshot, ())
    assert encoded == canonical_json({**fields, "check": check})
    back, _ = decode(encoded, snapshot.id)
    assert back == snapshot and (back.parents, back.merges) == (snapshot.parents, snapshot.merges)
    assert back.processes.reason == "why"


def test_version_1_is_read() -> None:
    fields = {**json.loads(SPELLED), "format": 1, "content_key": "3" * 64, "volatile": ["*.pyc"]}
    check = hashlib.sha256(canonical_json(fields)).hexdigest()
    assert decode(canonical_json({**fields, "check": check}), made().id) == (made(), ("*.pyc",))


def test_round_trip() -> None:
    assert decode(encode(made(), ("*.pyc",)), made().id) == (made(), ("*.pyc",))


def test_damage_to_a_record_is_detected() -> None:
    encoded = encode(made(), ())
    for broken in (
        encoded.replace(b"3333", b"3433"),
        encoded.replace(b'"tier":"dropped"', b'"tier":"none"'),
        encoded[:-9],
        b"[]",
        b"",
        b"\xff",
    ):
        with pytest.raises(SnapshotCorrupt, match=made().id):
            decode(broken, made().id)
    with pytest.raises(SnapshotCorrupt):
        decode(encoded, SnapshotId("4" * 64))


def test_unknown_and_impossible_ids(bench: Any) -> None:
    for id in ("0" * 64, "../layers", "", "A" * 64):
        with pytest.raises(SnapshotNotFound):
            bench.store.get(SnapshotId(id))
