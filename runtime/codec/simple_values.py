"""Values of the standard library that are stored as one text or a few numbers: how they are encoded and decoded.

Bytes, decimals, UUIDs, fractions, complex numbers, paths, addresses (`ip`), ranges, slices, patterns and constants.
Dates and times are in `times.py`.
"""

from __future__ import annotations

import base64
import ipaddress
import pathlib
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any
from uuid import UUID, SafeUUID

from ramify.runtime.codec.coders import Decodes, Encodes
from ramify.runtime.codec.object_parts import ASIDE, TAG
from ramify.runtime.errors import NotSerialisable

_IPS = ("IPv4Address", "IPv4Interface", "IPv4Network", "IPv6Address", "IPv6Interface", "IPv6Network")
_CONSTANTS: Mapping[str, Any] = {"Ellipsis": ..., "NotImplemented": NotImplemented}


def encode_bytes(encoder: Encodes, value: bytes | bytearray, _: str) -> Any:
    encoder.size += 4 * len(value) // 3
    return {TAG: type(value).__name__, "v": bytes(value)}  # a thread may change a bytearray meanwhile


def decode_bytes(_decoder: Decodes, body: str | bytes, _: Any) -> bytes:
    return body if isinstance(body, bytes) else base64.b64decode(body)  # long bytes are decoded already


def decode_bytearray(decoder: Decodes, body: str | bytes, value: Any) -> bytearray:
    return bytearray(decode_bytes(decoder, body, value))


def encode_text(_encoder: Encodes, value: object, _: str) -> Any:
    """Encode a value whose kind is the name of its class, and whose text says all of it."""
    return {TAG: type(value).__name__.lower(), "v": str(value)}


def encode_uuid(encoder: Encodes, value: UUID, _: str) -> Any:
    kept = {TAG: "uuid", "v": str(value)}
    if value.is_safe is SafeUUID.unknown:
        return kept
    encoder.uncanonical = True
    return kept | {ASIDE: {"safe": value.is_safe.value}}


def decode_uuid(_decoder: Decodes, body: str, value: Any) -> UUID:
    return UUID(body, is_safe=SafeUUID(value.get(ASIDE, {}).get("safe")))


def encode_complex(encoder: Encodes, value: complex, where: str) -> Any:
    return {TAG: "complex", "v": [encoder.part(one, where) for one in (value.real, value.imag)]}


def decode_complex(decoder: Decodes, body: Any, _: Any) -> complex:
    return complex(*decoder.items(body))


def encode_fraction(_encoder: Encodes, value: Fraction, _: str) -> Any:
    return {TAG: "fraction", "v": [value.numerator, value.denominator]}


def encode_path(encoder: Encodes, value: pathlib.PurePath, _: str) -> Any:
    return {TAG: "path", "v": encoder.string(str(value))}


def decode_path(decoder: Decodes, body: Any, _: Any) -> pathlib.Path:
    return pathlib.Path(decoder.decode(body))


def encode_purepath(encoder: Encodes, value: pathlib.PurePath, _: str) -> Any:
    return {TAG: "purepath", "t": type(value).__name__, "v": encoder.string(str(value))}


def decode_purepath(decoder: Decodes, body: Any, value: Any) -> pathlib.PurePath:
    windows = value["t"] == "PureWindowsPath"
    return (pathlib.PureWindowsPath if windows else pathlib.PurePosixPath)(decoder.decode(body))


def is_ip(cls: type) -> bool:
    return cls.__module__ == "ipaddress" and cls.__name__ in _IPS


def encode_ip(_encoder: Encodes, value: Any, _: str) -> Any:
    return {TAG: "ip", "t": type(value).__name__, "v": str(value)}


def decode_ip(_decoder: Decodes, body: str, value: Any) -> Any:
    if value["t"] not in _IPS:
        raise NotSerialisable(f"a stored value names {value['t']!r} as an address, but it is not a valid one")
    return getattr(ipaddress, value["t"])(body)


def encode_range(encoder: Encodes, value: range | slice, where: str) -> Any:
    parts = [encoder.part(one, where) for one in (value.start, value.stop, value.step)]
    return {TAG: type(value).__name__, "v": parts}


def decode_range(decoder: Decodes, body: Any, _: Any) -> range:
    return range(*decoder.items(body))


def decode_slice(decoder: Decodes, body: Any, _: Any) -> slice:
    return slice(*decoder.items(body))


def encode_pattern(encoder: Encodes, value: re.Pattern[Any], where: str) -> Any:
    return {TAG: "pattern", "v": encoder.part(value.pattern, where), "n": value.flags & ~re.DEBUG}


def decode_pattern(decoder: Decodes, body: Any, value: Any) -> re.Pattern[Any]:
    return re.compile(decoder.decode(body), value["n"])


def encode_constant(_encoder: Encodes, value: object, _: str) -> Any:
    return {TAG: "const", "v": repr(value)}


def decode_constant(_decoder: Decodes, body: str, _: Any) -> Any:
    return _CONSTANTS[body]
