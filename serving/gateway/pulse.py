"""Is an engine of ours, whose process runs, still one? Its server is asked all the time, its model after a silence.

A server answers for itself however hard its model works: llama.cpp's from threads of their own, vLLM's from another
process. One that does not, many times in a row, is hung; so is one that says all that time that its engine is dead.
vLLM's server does not notice when the model behind it stands still: where a call had no word of it for `--hang`
seconds the model is asked for a token, as a call would. Its question may wait behind others as a call may, for a slot
or for KV: so whatever the model is seen to do for anybody is an answer to it. Of the server, questions without an
answer count and not time alone: a machine that slept has not given the engine its time either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ramify.serving.gateway import sse
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.upstream import Upstream
from ramify.serving.wire import Malformed

_QUESTIONS = 6  # without an answer, in a row
LOOKS = 6  # at what its model has done, in the time after which its silence counts


async def hung(upstream: Upstream, model: str, after_s: float, slots: int) -> str:
    """Returns when that engine is taken for hung, after some `after_s` seconds without a sign: what was seen.
    `slots`: calls that it works on at once."""
    each_s, unanswered = after_s / _QUESTIONS, 0
    while True:
        begun, since = asyncio.get_running_loop().time(), upstream.awake.time()
        if await upstream.answers(each_s):
            unanswered = 0
            if upstream.suspect and await _is_mute(upstream, model, after_s, slots):
                return f"its server lives, and its model gave no token within {after_s:g} s"
        elif upstream.heard_since(since):
            unanswered = 0  # it is at work, if too busy to say so
        elif (unanswered := unanswered + 1) == _QUESTIONS:
            return f"its server did not say that it is well, asked {_QUESTIONS} times in {after_s:g} s"
        await asyncio.sleep(max(0.0, begun + each_s - asyncio.get_running_loop().time()))


async def follow(upstream: Upstream, every_s: float) -> None:
    """For ever, while calls wait and none hears a word: has its model worked all the same? Whole answers say nothing
    before their end, and may be all that there is for an engine to do. One that queues may have lost a call while it
    works for others: it is asked all the time."""
    while True:
        await asyncio.sleep(every_s)
        if upstream.awaited and (upstream.queues or not upstream.heard_since(upstream.awake.time() - every_s)):
            await upstream.count(every_s)


@asynccontextmanager
async def following(upstream: Upstream, every_s: float) -> AsyncIterator[None]:
    """While entered, `follow` it."""
    task = asyncio.create_task(follow(upstream, every_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _is_mute(upstream: Upstream, model: str, after_s: float, slots: int) -> bool:
    """Does its model say nothing, to us or to anybody else? Whole answers that take all its slots may come first, and
    so may the prompt of a stream: each is silent for as long as it may be."""
    token = asyncio.create_task(_token(upstream, model))
    begun = upstream.awake.time()
    try:
        while True:
            await upstream.awake.wait(token, after_s)
            if token.done() or upstream.heard_since(begun):
                upstream.suspect = False
                return False
            ahead_s = upstream.hang_s if upstream.reading else 0.0
            if upstream.working > slots:  # our question is one of them
                ahead_s = upstream.whole_s
            if upstream.awake.time() > begun + ahead_s:
                return True
    finally:
        token.cancel()
        await asyncio.gather(token, return_exceptions=True)


async def _token(upstream: Upstream, model: str) -> None:
    """Whatever it says is a sign of life, an error too."""
    body = {"model": model, "prompt": ".", "max_tokens": 1}
    try:
        await upstream.post("/completions", sse.encode(body))
    except (ApiError, Malformed) as error:
        if isinstance(error, ApiError) and error.status == 504:
            await asyncio.Event().wait()  # its own limit was over: no sign
