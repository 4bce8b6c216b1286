"""The longest token of a GGUF file, read without the package `gguf`."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ramify.serving.engine.gguf_files import longest_token


def text(said: str) -> bytes:
    data = said.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind: int, *values: bytes) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


TOKENS = array(8, text("a"), text("ĠĠĠĠ"), text("the"))  # a token of four spaces: eight bytes here
FIELDS = [  # name, type, value
    ("general.architecture", 8, text("llama")),
    ("general.alignment", 4, struct.pack("<I", 32)),
    ("tokenizer.ggml.merges", 9, array(8, text("a longer text than any token"))),
    ("tokenizer.ggml.scores", 9, array(6, struct.pack("<f", 1.0), struct.pack("<f", 2.0))),
    ("tokenizer.ggml.tokens", 9, TOKENS),
]


def gguf(fields: list[tuple[str, int, bytes]], version: int = 3) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, 0, len(fields))
    return head + b"".join(text(name) + struct.pack("<I", kind) + value for name, kind, value in fields)


@pytest.mark.parametrize(
    ("data", "longest"),
    [
        (gguf(FIELDS), 4),
        (gguf(FIELDS[:-1]), None),
        (gguf(FIELDS, version=1), None),
        (gguf(FIELDS)[:-5], None),
        (gguf([("x", 77, b"")]), None),
        (b"GGUF", None),
    ],
)
def test_longest_token(tmp_path: Path, data: bytes, longest: int | None) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(data)
    assert longest_token(file) == longest
