"""The token pacer, in Python and in JavaScript, on clocks of the tests."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ramify.serving.pacing
from ramify.serving.client import LLMClient
from ramify.serving.pacing import Pacer, paced
from ramify.serving.qoe import Reading
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest, user

COMES = st.lists(st.floats(0, 20), min_size=1, max_size=40).map(sorted)


@given(COMES, st.sampled_from((0.1, 0.25)))
def test_tokens_go_out_when_the_reader_reads_them(comes, tbt_s):
    pacer, reading = Pacer(tbt_s, 1.0), Reading(1.0, tbt_s)
    for at in comes:
        reading = reading.delivered(at)
        assert pacer.due(at) == pytest.approx(reading.read_at)
    assert pacer.next_at == pytest.approx(reading.read_at + tbt_s)


def test_a_pace_needs_time():
    with pytest.raises(ValueError, match="tbt_s"):
        Pacer(0.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


async def burst(count: int, fails: bool = False) -> AsyncGenerator[int, None]:
    for i in range(count):
        yield i
    if fails:
        raise ConnectionError("gone")


async def test_a_burst_is_given_out_smoothly_and_whole():
    clock, seen = Clock(), list[tuple[float, int]]()
    async for piece in paced(burst(5), Pacer(0.5), clock, clock.sleep):
        seen.append((clock.now, piece))
    assert seen == [(0.0, 0), (0.5, 1), (1.0, 2), (1.5, 3), (2.0, 4)]


async def test_what_came_before_a_failure_is_given_out_before_it():
    clock, seen = Clock(), list[int]()
    with pytest.raises(ConnectionError, match="gone"):
        async for piece in paced(burst(3, fails=True), Pacer(0.5), clock, clock.sleep):
            seen.append(piece)
    assert seen == [0, 1, 2]


async def test_a_client_that_asks_for_a_pace_gets_the_whole_answer_at_it():
    clock = Clock()
    model = ScriptedModel(lambda _: "one two three four")
    async with LLMClient("http://model", transport=model, clock=clock, sleep=clock.sleep) as client:
        async with client.stream(ChatRequest(user("?")), pace_tbt_s=0.5) as stream:
            seen = [(clock.now, piece) async for piece in stream]
        assert "".join([piece for _, piece in seen]) == stream.result.text == "one two three four"
    assert [at for at, _ in seen] == [0.5 * i for i in range(len(seen))]
    assert len(seen) > 1


JS = """
import {Pacer, paced} from %s;
let now = 0; const seen = [];
async function* burst() { for (let i = 0; i < 4; i++) yield i; }
const smooth = paced(burst(), new Pacer(500, 1000), () => now, async (ms) => { now += ms; });
for await (const piece of smooth) seen.push([now, piece]);
async function* fails() { yield 9; throw new Error('gone'); }
try { for await (const piece of paced(fails(), new Pacer(1), () => now, async () => {})) seen.push([now, piece]); }
catch (error) { seen.push(error.message); }
async function* long() { yield "x".repeat(44); yield "y"; }
const slow = paced(long(), new Pacer(100, now), () => now, async (ms) => { now += ms; });
for await (const piece of slow) seen.push([now, piece[0]]);
try { new Pacer(0); } catch (error) { seen.push(error.name); }
console.log(JSON.stringify(seen));
"""


def test_the_javascript_module_does_the_same(tmp_path: Path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    module = Path(ramify.serving.pacing.__file__).with_name("pacer.js")
    (tmp_path / "pacer.mjs").write_text(module.read_text("utf-8"), "utf-8")
    (tmp_path / "use.mjs").write_text(JS % json.dumps("./pacer.mjs"), "utf-8")
    done = subprocess.run([node, tmp_path / "use.mjs"], capture_output=True, text=True, check=True, timeout=60)
    at_pace = [[1000, 0], [1500, 1], [2000, 2], [2500, 3]]
    assert json.loads(done.stdout) == [*at_pace, [2500, 9], "gone", [2500, "x"], [3500, "y"], "RangeError"]
