"""The analyzer's socket protocol: JSON objects behind a length of four bytes, and our values as such objects.

Reading is strict. A frame that is too long, is not an object or lacks a field raises BadFrame: the server then closes
the connection, and the client counts the analyzer as down.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from pathlib import Path

from ramify.serving.errors import BadFrame
from ramify.serving.lengths import features
from ramify.serving.lengths.types import Ask, Basis, Ended, Forecast
from ramify.serving.protocol.length_sketch import LengthSketch

PROTOCOL = 1
"""The version of the protocol: one higher with each change that another version would misread. A process says it to
whoever asks `hello`, and gateways of other versions keep away."""
MAX_FRAME = 4 * 1024 * 1024
HEAD = struct.Struct(">I")
_NAME = 256

Json = Mapping[str, object]


def pack(message: Json) -> bytes:
    """One frame."""
    body = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(body) > MAX_FRAME:
        raise BadFrame(f"a message of {len(body)} bytes exceeds the {MAX_FRAME} that a frame may have")
    return HEAD.pack(len(body)) + body


def unpack(body: bytes) -> Json:
    """The object in the body of a frame. Raises BadFrame."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadFrame(f"an object was expected, not {type(message).__name__}")
    return message


def body_length(head: bytes) -> int:
    """The length that the first four bytes of a frame give. Raises BadFrame."""
    (length,) = HEAD.unpack(head)
    if length > MAX_FRAME:
        raise BadFrame(f"a frame of {length} bytes exceeds {MAX_FRAME}: this is not a message of ours")
    return int(length)


async def read(reader: asyncio.StreamReader) -> Json | None:
    """The next message; None at the end of the stream. Raises BadFrame."""
    try:
        head = await reader.readexactly(HEAD.size)
        return unpack(await reader.readexactly(body_length(head)))
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadFrame("the stream ended inside a frame") from error
        return None


async def connect(socket: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to a process that speaks this version of the protocol. Raises OSError, and BadFrame if it speaks
    another one."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(pack({"op": "hello", "id": 0}))
        said = await read(reader)
        if said is None:
            raise ConnectionResetError(f"{socket} closed the connection")
        spoken = said.get("protocol", "none, so it is of an earlier Ramify")
        if spoken != PROTOCOL:
            raise BadFrame(f"its protocol is {spoken}, and this gateway's is {PROTOCOL}")
    except BaseException:
        writer.close()
        raise
    return reader, writer


def ask_to_json(ask: Ask) -> Json:
    """Long texts are cut to the part that is looked at, and names to what tells them apart."""
    out: dict[str, object] = {
        "model": ask.model[:_NAME],
        "prompt": features.ends_of(ask.prompt),
        "limit": ask.limit,
        "app": ask.app[:_NAME],
        "stage": ask.stage,
        "prompt_tokens": ask.prompt_tokens,
        "messages": ask.messages,
        "call": ask.call[:_NAME],
    }
    if ask.generated:
        out |= {"generated": ask.generated, "text": features.ends_of(ask.text)}
    return out


def ask_from_json(value: object) -> Ask:
    from_ = obj(value)
    return Ask(
        model=text(from_, "model"),
        prompt=text(from_, "prompt"),
        limit=max(1, count(from_, "limit")),
        app=text(from_, "app", ""),
        stage=count(from_, "stage", 0),
        prompt_tokens=count(from_, "prompt_tokens", 0),
        messages=count(from_, "messages", 1),
        call=text(from_, "call", ""),
        generated=count(from_, "generated", 0),
        text=text(from_, "text", ""),
    )


def forecast_to_json(forecast: Forecast) -> Json:
    return {"basis": forecast.basis.value, "quantiles": list(forecast.sketch.to_wire())}


def forecast_from_json(value: object) -> Forecast:
    from_ = obj(value)
    try:
        return Forecast(sketch_from_json(from_.get("quantiles")), Basis(text(from_, "basis")))
    except ValueError as error:
        raise BadFrame(f"a forecast that cannot be read: {error}") from error


def sketch_from_json(value: object) -> LengthSketch:
    """Raises BadFrame."""
    try:
        return LengthSketch.from_wire([number(v) for v in items(value)])
    except ValueError as error:
        raise BadFrame(f"a sketch that cannot be read: {error}") from error


def ended_to_json(ended: Ended) -> Json:
    bound = None if ended.bound is None else list(ended.bound.to_wire())
    return {"ask": ask_to_json(ended.ask), "length": ended.length, "cut": ended.cut, "bound": bound}


def ended_from_json(value: object) -> Ended:
    from_ = obj(value)
    bound = from_.get("bound")
    return Ended(
        ask=ask_from_json(from_.get("ask")),
        length=count(from_, "length"),
        cut=from_.get("cut") is True,
        bound=None if bound is None else sketch_from_json(bound),
    )


def obj(value: object) -> Json:
    if not isinstance(value, Mapping):
        raise BadFrame(f"an object was expected, not {type(value).__name__}")
    return value


def items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise BadFrame(f"a list was expected, not {type(value).__name__}")
    return value


def text(from_: Json, name: str, default: str | None = None) -> str:
    value = from_.get(name, default)
    if not isinstance(value, str):
        raise BadFrame(f"{name}: a string was expected, not {type(value).__name__}")
    return value


def count(from_: Json, name: str, default: int | None = None) -> int:
    value = from_.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000_000:
        raise BadFrame(f"{name}: a whole number from 0 was expected, not {value!r}"[:200])
    return value


def real(from_: Json, name: str, default: float | None = None) -> float:
    return number(from_.get(name, default))


def number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFrame(f"a number was expected, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError as error:
        raise BadFrame(f"a number was expected: {error}") from error
