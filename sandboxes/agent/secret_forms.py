"""Recognise a world's secrets in texts, in the forms that commands bring them into. Stdlib only.

The forms: quoted, in lines, in parts, escaped, in hexadecimal and base64. Texts are compared as their letters and
digits in lower case, so quotes, blanks, newlines and case make no difference. What a command computes from a secret
in other ways (compressed, encrypted, every letter by itself) is not recognised.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

LEAST_SECRET = 4  # bytes: shorter values would be found everywhere, so such a secret is recognised only by its name
_MIXED, _ANY, _ENCODED = 8, 12, 16
"""Lengths of a part by which a longer secret is recognised: of letters and digits, of either alone, of an encoding.
Shorter parts would be found in texts that have nothing to do with it: "password", "localhost"."""

_OTHER = bytes(code for code in range(128) if not chr(code).isalnum())
_INDEX = re.compile(rb"\[[0-9]+\]=")
_ESCAPE = re.compile(
    rb"\\x([0-9A-Fa-f]{2})|%([0-9A-Fa-f]{2})|\\u00([0-9A-Fa-f]{2})|\\u\{0*([0-9A-Fa-f]{2})\}|\\U0{6}([0-9A-Fa-f]{2})"
    rb"|\\u([0-9A-Fa-f]{2})(?![0-9A-Fa-f])|\\0?([0-3][0-7]{2})|\\[abefnrtv]"
)
_PREFIX = re.compile(rb"0[xX](?=[0-9A-Fa-f]{2})")
_QUOTING = b"'\"\\ \t\r\n"


def _plain(text: bytes) -> bytes:
    """Its letters, digits and bytes beyond ASCII, in lower case."""
    return text.lower().translate(None, _OTHER)


@lru_cache(maxsize=16)
def forms_of(values: tuple[bytes, ...]) -> SecretForms:
    """The forms of the secrets of a world. A seal asks for them each time."""
    return SecretForms(values)


class SecretForms:
    """Recognises secrets in texts."""

    def __init__(self, values: Iterable[bytes]) -> None:
        self._exact: list[bytes] = []
        self._unquoted: list[bytes] = []  # of values with hardly a letter or digit
        self._whole: list[bytes] = []
        self._parts: dict[int, set[bytes]] = {_MIXED: set(), _ANY: set(), _ENCODED: set()}
        for value in values:
            if len(value) < LEAST_SECRET:
                continue
            self._exact.append(value)
            for plain in {_plain(value), *map(_plain, _other_cases(value))}:
                if len(plain) >= LEAST_SECRET:
                    self._whole += [plain, plain[::-1]]
                    self._add_parts(plain)
                    self._add_parts(plain[::-1])
            unquoted = value.translate(None, _QUOTING)
            if len(_plain(value)) < LEAST_SECRET <= len(unquoted):
                self._unquoted.append(unquoted)
            for encoded in _encodings(value):
                if len(encoded) >= _ENCODED:
                    self._add(_ENCODED, _plain(encoded))
                elif len(encoded) >= _MIXED:
                    self._whole.append(_plain(encoded))

    def _add_parts(self, plain: bytes) -> None:
        self._add(_ANY, plain)
        self._parts[_MIXED].update(part for part in _windows(plain, _MIXED) if not (part.isdigit() or part.isalpha()))

    def _add(self, size: int, plain: bytes) -> None:
        self._parts[size].update(_windows(plain, size))

    def __bool__(self) -> bool:
        return bool(self._exact)

    def are_in(self, text: bytes) -> bool:
        """Whether a text holds a secret, or a part of one that is long enough to be recognised."""
        if not self._exact:
            return False
        if self.are_whole_in(text):
            return True
        unquoted = text.translate(None, _QUOTING) if self._unquoted else b""
        if any(value in unquoted for value in self._unquoted):
            return True
        forms = (text, _decoded(text), _PREFIX.sub(b"", text))
        return any(map(self._are_in_plain, {_plain(form) for form in forms}))

    def are_whole_in(self, text: bytes) -> bool:
        """Whether a text holds a secret as it is."""
        return any(value in text for value in self._exact)

    def _are_in_plain(self, plain: bytes) -> bool:
        if any(value in plain for value in self._whole):
            return True
        return any(not known.isdisjoint(_windows(plain, size)) for size, known in self._parts.items() if known)


def _other_cases(value: bytes) -> Iterable[bytes]:
    """The value with its letters beyond ASCII in other case."""
    if value.isascii():
        return ()
    text = value.decode("utf-8", "surrogateescape")
    return (form.encode("utf-8", "surrogateescape") for form in (text.upper(), text.lower(), text.casefold()))


def _windows(text: bytes, size: int) -> Iterable[bytes]:
    return (text[at : at + size] for at in range(len(text) - size + 1))


def _decoded(text: bytes) -> bytes:
    """Without the indexes of bash's arrays and the escapes of bash, JSON and URLs."""

    def byte(match: re.Match[bytes]) -> bytes:
        *hexadecimal, octal = match.groups()
        if octal:
            return bytes([int(octal, 8)])
        return b"".join(bytes([int(digits, 16)]) for digits in hexadecimal if digits)

    return _ESCAPE.sub(byte, _INDEX.sub(b"", text))


def _encodings(value: bytes) -> Iterable[bytes]:
    """The secret in hexadecimal, base64 and base32, in all positions within a longer text."""
    import base64  # the agent, which is forked often, has no use for it

    for form in {value, value.strip()}:
        yield form.hex().encode()
        for before in range(3):
            yield _middle(base64.b64encode(bytes(before) + form), before, len(form), 6)
        for before in range(5):
            yield _middle(base64.b32encode(bytes(before) + form), before, len(form), 5)


def _middle(encoded: bytes, before: int, size: int, bits: int) -> bytes:
    """The characters that depend on the `size` bytes after the first `before` ones, and on nothing else."""
    return encoded[-(-before * 8 // bits) : (before + size) * 8 // bits]


def forms_in(secrets: Mapping[str, str]) -> SecretForms:
    """The forms of these secrets, by name."""
    return forms_of(tuple(map(os.fsencode, secrets.values())))


def environment_without(env: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The variables that are no secret by name and hold none, in their names or values."""
    forms = forms_in(secrets)
    return {
        k: v
        for k, v in env.items()
        if k not in secrets and not forms.are_in(os.fsencode(k)) and not forms.are_in(os.fsencode(v))
    }


def place_without(place: str, secrets: Mapping[str, str]) -> str:
    """A directory; "" if its path holds a secret.

    A path below the top of the tree is relative, and the snapshot holds its names anyway. So only a whole secret
    counts there: a folder has the name of the repository in whose address the secret is.
    """
    forms, path = forms_in(secrets), os.fsencode(place)
    return "" if (forms.are_in(path) if path.startswith(b"/") else forms.are_whole_in(path)) else place
