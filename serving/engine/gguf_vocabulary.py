"""How long a token of a GGUF file's model can be, read from the file's header.

A text of n tokens has at most n times as many characters. So it can be known without a tokenizer that a text cannot
fit a context: to find out that 8 MB do not, llama.cpp needs 19 s.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import BinaryIO

_TOKENS = b"tokenizer.ggml.tokens"
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by its type
_OLDEST = 2  # the first version with lengths of 64 bits


@cache  # the replicas of a gateway have the same file
def longest_token(gguf_file: Path) -> int | None:
    """The characters of the longest token; None if the file does not say.

    In the file, a token of bytes has a character for each byte, so the text of a token is never longer than that.
    """
    try:
        with gguf_file.open("rb") as file:
            magic, version, _, fields = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version < _OLDEST:
                return None
            for _ in range(fields):
                name, kind = _text(file), _number(file)
                if name == _TOKENS and kind == _ARRAY and _number(file) == _STRING:
                    return max(
                        (len(_text(file).decode("utf-8", "replace")) for _ in range(_length(file))), default=None
                    )
                _skip(file, kind)
    except (OSError, struct.error, KeyError, OverflowError, MemoryError):
        pass  # the engine says what is wrong with the file
    return None


def _number(file: BinaryIO) -> int:
    return int(struct.unpack("<I", file.read(4))[0])


def _length(file: BinaryIO) -> int:
    return int(struct.unpack("<Q", file.read(8))[0])


def _text(file: BinaryIO) -> bytes:
    return file.read(_length(file))


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_length(file), 1)
    elif kind == _ARRAY:
        of, count = _number(file), _length(file)
        if of in _SIZES:
            file.seek(_SIZES[of] * count, 1)
        else:
            for _ in range(count):
                _skip(file, of)
    else:
        file.seek(_SIZES[kind], 1)
