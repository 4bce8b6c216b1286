"""How a string stands in the database: as it is where the database can hold it, else escaped. Pure."""

from __future__ import annotations

ESCAPED = "\x01"


def written(text: str) -> str:
    """What no database holds (a surrogate from a name that is not UTF-8, a NUL) becomes escapes behind a mark;
    all else stays as it is, readable by other tools."""
    return text if _storable(text) else escaped(text)


def escaped(text: str) -> str:
    return ESCAPED + text.encode("unicode_escape").decode("ascii")


def as_read(text: str) -> str:
    """What `written` was given."""
    if not text.startswith(ESCAPED):
        return text
    return text[1:].encode("ascii").decode("unicode_escape")


def _storable(text: str) -> bool:
    if text.isascii():
        return "\0" not in text and not text.startswith(ESCAPED)
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text and not text.startswith(ESCAPED)
