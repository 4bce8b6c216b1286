"""Volatile globs, and the content key's golden."""

from __future__ import annotations

import hashlib

import pytest

from ramify.fork_engine.keys import DEFAULT_VOLATILE, Volatile, base_digest, content_key
from ramify.fork_engine.manifest import Manifest
from ramify.fork_engine.types import Entry, EntryKind, LayerId
from ramify.fork_engine.view import Located, View


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
    assert (path in Volatile(DEFAULT_VOLATILE)) is volatile


def test_globs() -> None:
    globs = Volatile(["tmp/*/x?", "**/[a].log"])
    assert "tmp/1/xy" in globs and "tmp/1/xy/below" in globs and "q/[a].log" in globs
    assert "tmp/1/2/xy" not in globs and "tmp/1/x" not in globs and "a.log" not in globs
    assert "anything" not in Volatile([])


def test_golden() -> None:
    top = Entry(EntryKind.DIR, 0o755, mtime_ns=1)
    base = Manifest({"a": Entry(EntryKind.FILE, 0o644, 1, 5, "aa"), "x.pyc": Entry(EntryKind.FILE)}, top)
    volatile = Volatile(DEFAULT_VOLATILE)
    digest = base_digest(base, volatile)
    assert digest == sha256(b'[["dir",493,""],[["a",["file",420,"aa"]]]]')
    delta = {"a": None, "b": Located(Entry(EntryKind.FIFO, 0o600, mtime_ns=7), LayerId("l"))}
    assert content_key(View(base, delta), digest, volatile, {"E": "1"}, ("U",), "") == sha256(
        b'{"base":"' + digest.encode() + b'","cwd":"","env":{"E":"1"},"env_unset":["U"],'
        b'"files":[["a",null],["b",["fifo",384,""]]],"root":["dir",493,""]}'
    )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
