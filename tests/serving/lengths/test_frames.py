"""The analyzer's protocol: values survive a round trip, and anything else is refused by name."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadFrame
from ramify.serving.lengths import frames
from ramify.serving.lengths.pattern_graph import Kind, Node
from ramify.serving.lengths.service import estimates_from_json, estimates_to_json, stages_from_json, stages_to_json
from ramify.serving.lengths.types import Ask, Basis, Ended, Estimates, Forecast
from ramify.serving.policy.types import StageEstimate
from ramify.serving.protocol.length_sketch import LengthSketch

asks = st.builds(
    Ask,
    model=st.text(max_size=20),
    prompt=st.text(max_size=200),
    limit=st.integers(1, 100_000),
    app=st.text(max_size=20),
    stage=st.integers(0, 50),
    prompt_tokens=st.integers(0, 100_000),
    messages=st.integers(0, 100),
    call=st.text(max_size=20),
    generated=st.integers(1, 10_000),
    text=st.text(max_size=200),
)


def _sent(message: frames.Json) -> frames.Json:
    packed = frames.pack(message)
    assert frames.body_length(packed[:4]) == len(packed) - 4
    return frames.unpack(packed[4:])


@given(asks)
def test_ask_survives_a_round_trip(ask: Ask) -> None:
    assert frames.ask_from_json(_sent(frames.ask_to_json(ask))) == ask


@given(asks, st.integers(0, 10_000), st.booleans())
def test_ended_call_survives_a_round_trip(ask: Ask, length: int, cut: bool) -> None:
    ended = Ended(ask, length, cut=cut, bound=LengthSketch.cold(100))
    assert frames.ended_from_json(_sent(frames.ended_to_json(ended))) == ended


def test_forecast_survives_a_round_trip() -> None:
    forecast = Forecast(LengthSketch.cold(512), Basis.THIN)
    assert frames.forecast_from_json(_sent(frames.forecast_to_json(forecast))) == forecast


def test_stages_and_estimates_survive_a_round_trip() -> None:
    stages = ((Node(Kind.LLM, "m", 0, 10, 20, 1.5),), (Node(Kind.TOOL, "t", 1, seconds=0.25),))
    assert stages_from_json(_sent({"stages": stages_to_json(stages)})["stages"]) == stages
    estimates = Estimates(1, (1.0, 2.0), (StageEstimate(2, 100, 50, 0.5),), 0.9)
    assert estimates_from_json(_sent(estimates_to_json(estimates))) == estimates


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"prompt": "x", "limit": 1}, "model"),
        ({"model": "m", "prompt": 7, "limit": 1}, "prompt"),
        ({"model": "m", "prompt": "x", "limit": "many"}, "limit"),
        ({"model": "m", "prompt": "x", "limit": True}, "limit"),
        ({"model": "m", "prompt": "x", "limit": 1, "generated": -1}, "generated"),
        ([], "object"),
    ],
)
def test_wrong_field_is_named(value: object, named: str) -> None:
    with pytest.raises(BadFrame, match=named):
        frames.ask_from_json(value)


def test_a_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(BadFrame, match="too large"):
        frames.sketch_from_json([10**400])


@given(st.binary(max_size=100))
def test_invalid_bytes_are_refused(data: bytes) -> None:
    try:
        message = frames.unpack(data)
    except BadFrame:
        return
    assert isinstance(json.loads(data), dict)
    assert isinstance(message, dict)


@pytest.mark.parametrize("value", [[], [[["x"]]], [[[9, "m", 0, 0, 0.0]]], [[[0, "m", 0, 0, -1.0]]], "no"])
def test_invalid_stages_are_refused(value: object) -> None:
    if value == []:
        assert stages_from_json(value) == ()
        return
    with pytest.raises(BadFrame):
        stages_from_json(value)


async def test_stream_that_ends_inside_a_frame_is_an_error() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(frames.pack({"op": "stats"})[:-2])
    reader.feed_eof()
    with pytest.raises(BadFrame, match="inside a frame"):
        await frames.read(reader)


async def test_too_long_frame_is_refused_before_it_is_read() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"GET / HTTP/1.1\r\n")
    with pytest.raises(BadFrame, match="not a message of ours"):
        await frames.read(reader)


def test_long_name_is_shortened() -> None:
    ask = Ask(model="m" * 10_000_000, prompt="x" * 10_000_000, limit=1)
    assert len(frames.pack(frames.ask_to_json(ask))) < 10_000
