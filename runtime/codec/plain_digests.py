"""Digests of texts in which nothing has to be sorted: a long text is not parsed and written again."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from ramify.runtime.codec import codec
from ramify.runtime.codec.object_state import TAG

_AT_ONCE = 1 << 20  # characters


def digest_of_text(text: str) -> str:
    """Return `codec.digest_text(text)`. A text without objects is its own canonical form."""
    return _sha256(text) if "{" not in text else codec.digest_text(text)


def digest_of_arguments(arguments: Mapping[str, object], text: str) -> str:
    """Return `codec.digest_text(text)`. `text`: the encoded arguments, by name. If none of them holds an object, only
    the names have an order."""
    is_plain = text.count("{") == 1 and f'"{TAG}":' not in text  # so the names are strings
    return _sha256(text) if is_plain and list(arguments) == sorted(arguments) else codec.digest_text(text)


def _sha256(text: str) -> str:
    if len(text) <= _AT_ONCE:
        return hashlib.sha256(text.encode()).hexdigest()
    digest = hashlib.sha256()
    for at in range(0, len(text), _AT_ONCE):  # without another copy of a long text
        digest.update(text[at : at + _AT_ONCE].encode())
    return digest.hexdigest()
