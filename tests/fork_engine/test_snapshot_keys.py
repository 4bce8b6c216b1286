"""Volatile globs, and the content key's golden."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.snapshot_keys import (
    DEFAULT_VOLATILE,
    UNDEFINED,
    StackViews,
    VolatileGlobs,
    base_digest,
    content_key,
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


def test_golden() -> None:
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
