"""Uppers that stay in use: what a seal reads and copies. Its results are tested in test_seal_overlayfs.py."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ramify.fork_engine.filesystem import scan as scanning
from ramify.fork_engine.filesystem.scan import scan_upper
from ramify.fork_engine.seal import LastSeal

LARGE = "L" * 200_000


def test_a_second_seal_copies_what_changed_since_the_first(bench: Any) -> None:
    base = bench.base({"a": "1", "d/b": "2"})
    upper, last_seal = bench.upper(base), LastSeal()
    seals = []
    for name in ("large", "small", "small"):
        (upper / name).write_text(LARGE if name == "large" else f"s{len(seals)}")
        seals.append(bench.store.seal_upper(upper, base, **bench.seal, move=False, last_seal=last_seal))
    assert [bench.store.layer_bytes(sealed.layers[-1]) for sealed in seals] == [200_000, 2, 2]
    assert [len(sealed.layers) for sealed in seals] == [2, 3, 4]
    assert bench.texts(seals[-1]) == {"a": "1", "d/b": "2", "large": LARGE, "small": "s2"}
    (upper / "large").unlink()
    gone = bench.store.seal_upper(upper, base, **bench.seal, move=False, last_seal=last_seal)
    assert bench.texts(gone) == {"a": "1", "d/b": "2", "small": "s2"}
    for path in upper.iterdir():
        path.unlink()
    empty = bench.store.seal_upper(upper, base, **bench.seal, move=False, last_seal=last_seal)
    assert bench.texts(empty) == {"a": "1", "d/b": "2"}


def test_a_file_that_is_as_it_was_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text(LARGE)
    monkeypatch.setattr(scanning, "_TICK_NS", 10**12)
    assert scan_upper(tmp_path).stamps == {}  # so new that it could be written again with the same timestamp
    monkeypatch.setattr(scanning, "_TICK_NS", -(10**12))
    scan = scan_upper(tmp_path)
    stamp, digest = scan.stamps["file"]
    assert digest == scan.entries["file"].digest
    believed = {"file": (stamp, "told")}
    assert scan_upper(tmp_path, believed).entries["file"].digest == "told"
    with file.open("r+") as opened:
        opened.write("other")
    assert scan_upper(tmp_path, believed).entries["file"].digest not in ("told", digest)


def test_distrusted_files_are_read_again(bench: Any) -> None:
    base = bench.base({"a": "1"})
    upper, last_seal = bench.upper(base), LastSeal()
    (upper / "file").write_text(LARGE)
    time.sleep(0.06)
    bench.store.seal_upper(upper, base, **bench.seal, move=False, last_seal=last_seal)
    assert list(last_seal.known(upper)) == ["file"]
    last_seal.distrust()
    assert last_seal.known(upper) == {}
    assert last_seal.snapshot is not None
    last_seal.forget()
    assert last_seal.snapshot is None
