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
const clock = () => now, sleep = async (ms) => { now += ms; };
async function* burst() { for (let i = 0; i < 4; i++) yield i; }
const smooth = paced(burst(), new Pacer(500, 1000), {now: clock, sleep});
for await (const piece of smooth) seen.push([now, piece]);
async function* fails() { yield 9; throw new Error('gone'); }
const ends = paced(fails(), new Pacer(1), {now: clock, sleep: async () => {}});
try { for await (const piece of ends) seen.push([now, piece]); }
catch (error) { seen.push(error.message); }
async function* long() { yield "x".repeat(44); yield "y"; }
const slow = paced(long(), new Pacer(100, now), {now: clock, sleep});
for await (const piece of slow) seen.push([now, piece[0]]);
try { new Pacer(0); } catch (error) { seen.push(error.name); }
console.log(JSON.stringify(seen));
"""


def said_by_node(folder: Path, program: str) -> object:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    module = Path(ramify.serving.pacing.__file__).with_name("pacer.js")
    (folder / "pacer.mjs").write_text(module.read_text("utf-8"), "utf-8")
    (folder / "use.mjs").write_text(program % json.dumps("./pacer.mjs"), "utf-8")
    done = subprocess.run([node, folder / "use.mjs"], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_the_javascript_module_does_the_same(tmp_path: Path):
    at_pace = [[1000, 0], [1500, 1], [2000, 2], [2500, 3]]
    assert said_by_node(tmp_path, JS) == [*at_pace, [2500, 9], "gone", [2500, "x"], [3500, "y"], "RangeError"]


LEAVING_JS = """
import {Pacer, paced} from %s;
const never = new Promise(() => {});
const ways = {
  return: (one) => one.return('mine'),
  throw: (one) => one.throw(new Error('mine')),
  abort: (one, stop) => { stop.abort(new Error('mine')); return one.next(); },
};
const show = (promise) => promise.then((got) => got.value ?? got.done, (error) => 'error ' + error.message);
const seen = {};
for (const [name, leave] of Object.entries(ways)) {
  for (const when of ['unstarted', 'held', 'silent', 'over', 'own sleep']) {
    let closed = 0;
    const source = {
      count: 0,
      async next() {
        if (when === 'over' && this.count === 1) return {done: true};
        if (when === 'silent' && this.count === 1) return never;
        if (this.count === 3) return never;
        return {done: false, value: ++this.count};
      },
      async return() { closed++; },
      [Symbol.asyncIterator]() { return this; },
    };
    const stop = new AbortController();
    const own = when === 'own sleep' ? {sleep: () => never} : {};
    const one = paced(source, new Pacer(1e8), {signal: stop.signal, ...own});
    const said = [];
    if (when !== 'unstarted') said.push(await show(one.next()));
    const waiting = ['unstarted', 'over'].includes(when) ? [] : [show(one.next()), show(one.next())];
    await new Promise((resolve) => setTimeout(resolve, 5));
    const left = show(leave(one, stop));
    said.push(...await Promise.all(waiting), await left, await show(one.next()), closed > 0);
    seen[name + ' ' + when] = said;
  }
}
async function* single() { yield 1; }
const aborted = paced(single(), new Pacer(1), {signal: AbortSignal.abort(new Error('early'))});
seen.early = await show(aborted.next());
const rude = {next: () => never, return() { throw new Error('rude'); }, [Symbol.asyncIterator]() { return this; }};
const left = paced(rude, new Pacer(1));
const waits = show(left.next());
seen.rude = [await show(left.return('mine')), await waits];
console.log(JSON.stringify(seen));
"""


def test_leaving_the_javascript_module_waits_for_nothing(tmp_path: Path):
    """Its pieces are a day apart: Node would not end while it waits for one."""
    seen = said_by_node(tmp_path, LEAVING_JS)
    assert isinstance(seen, dict)
    assert seen.pop("early") == "error early"
    assert seen.pop("rude") == ["mine", True], "an error of the source that closes is nobody's"
    says = {"return": "mine", "throw": "error mine", "abort": True}
    for name, said in seen.items():
        way, _, when = name.partition(" ")
        waited = 0 if when in ("unstarted", "over") else 2
        first = [] if when == "unstarted" else [1]
        told = [True] * waited
        asked = ["error mine", *told] if way == "abort" else [*told, says[way]]  # after an abort who asks first
        assert said == [*first, *asked, True, True], name
