"""Engines of our own behind replicas: started, watched, and restarted when they die or hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from ramify.serving.engine.contract import Engine
from ramify.serving.errors import EngineFailed
from ramify.serving.gateway import sse
from ramify.serving.gateway.engines.replicas import EngineTraits, Replica
from ramify.serving.gateway.engines.upstream import HANG_S, WHOLE_S, Upstream
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.records.logs import log
from ramify.serving.protocol.wire import Malformed

_QUESTIONS = 6  # without an answer, in a row
LOOKS = 6  # at what its model has done, in the time after which its silence counts


async def until_hung(upstream: Upstream, model: str, after_s: float, slots: int) -> str:
    """Returns a reason when the engine is considered hung, after about `after_s` seconds without a sign of life.

    slots: calls that it works on at once.

    Its server is asked all the time whether it is well. A server answers however hard its model works (llama.cpp's
    from other threads, vLLM's from another process), so one that fails to answer many times in a row is hung, and so
    is one that says all that time that its engine is dead. Failed questions count rather than time, because a machine
    that slept gave the engine no time either. vLLM's server does not notice a stuck model: if a call had no word of
    it for `--hang` seconds, the model is asked for a token. That question may wait for a slot or for KV as any call
    may, so whatever the model is seen to do for anybody counts as an answer.
    """
    each_s, unanswered = after_s / _QUESTIONS, 0
    while True:
        begun, since = asyncio.get_running_loop().time(), upstream.awake.time()
        if await upstream.answers(each_s):
            unanswered = 0
            if upstream.suspect and await _is_mute(upstream, model, after_s, slots):
                return f"its server lives, and its model gave no token within {after_s:g} s"
        elif upstream.heard_since(since):
            unanswered = 0  # it works, and is too busy to say so
        elif (unanswered := unanswered + 1) == _QUESTIONS:
            return f"its server did not say that it is well when asked {_QUESTIONS} times in {after_s:g} s"
        await asyncio.sleep(max(0.0, begun + each_s - asyncio.get_running_loop().time()))


async def follow(upstream: Upstream, every_s: float) -> None:
    """Watch for ever whether the model works while calls wait and hear nothing: whole answers are silent
    until their end, and may be all that an engine has to do. An engine that queues is asked all the time, because it
    may have lost a call while it serves others."""
    while True:
        await asyncio.sleep(every_s)
        if upstream.awaited and (upstream.queues or not upstream.heard_since(upstream.awake.time() - every_s)):
            await upstream.count(every_s)


@asynccontextmanager
async def following(upstream: Upstream, every_s: float) -> AsyncIterator[None]:
    """Run `follow` while entered."""
    task = asyncio.create_task(follow(upstream, every_s))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _is_mute(upstream: Upstream, model: str, after_s: float, slots: int) -> bool:
    """Is its model silent, to us and to everybody? Whole answers that take all its slots may come first, and so may
    the prompt of a stream: each may be silent for its own limit."""
    token = asyncio.create_task(_token(upstream, model))
    begun = upstream.awake.time()
    try:
        while True:
            await upstream.awake.wait(token, after_s)
            if token.done() or upstream.heard_since(begun):
                upstream.suspect = False
                return False
            ahead_s = upstream.hang_s if upstream.reading else 0.0
            if upstream.working > slots:  # our own question is one of them
                ahead_s = upstream.whole_s
            if upstream.awake.time() > begun + ahead_s:
                return True
    finally:
        token.cancel()
        await asyncio.gather(token, return_exceptions=True)


async def _token(upstream: Upstream, model: str) -> None:
    """Ask for one token. Any reply is a sign of life, also an error."""
    body = {"model": model, "prompt": ".", "max_tokens": 1}
    try:
        await upstream.post("/completions", sse.encode(body))
    except (ApiError, Malformed) as error:
        if isinstance(error, ApiError) and error.status == 504:
            await asyncio.Event().wait()  # its own limit has passed: not a sign of life


_BACKOFF_S = 0.5
_BACKOFF_CAP_S = 30.0
RESTART_S = 60.0  # seconds without a sign of life
_STATUS_S = 1.0  # seconds for a process to end once its connections are gone
_STEADY_S = 60.0  # an engine that has run for so long is restarted without a pause


class SupervisedEngine:
    """One engine, kept running while this is entered. `replica` holds the address of its present process, or none.

    queue: calls that are admitted beyond those that the engine works on at once; None: as many again.
    key: the engine's API key.
    hang_s, whole_s: see Upstream.
    restart_s: seconds without a sign of life after which the engine is restarted.
    restarted: called with its index after each restart. Set `changed` to have the admission decide anew whenever the
        replica has come or gone.

    Entering raises EngineFailed if the first start fails: a second one would not help.
    """

    def __init__(
        self,
        index: int,
        make: Callable[[], Engine],
        traits: EngineTraits,
        *,
        queue: int | None = 0,
        hang_s: float = HANG_S,
        whole_s: float = WHOLE_S,
        restart_s: float = RESTART_S,
        key: str | None = None,
        restarted: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.replica = Replica(index, 1, None, traits, queue=queue or 0, comes_back=self._comes_back)
        self._queue = queue
        self._key = key
        self._hang_s, self._whole_s, self._restart_s = hang_s, whole_s, restart_s
        self.changed: Callable[[], None] = lambda: None
        self.restarted = restarted
        self._make = make
        self._life = AsyncExitStack()
        self._upstream: Upstream | None = None  # of the present process, even when the replica no longer uses it
        self._past_answering = asyncio.Event()  # the present engine is dead, whether its process knows it or not
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        engine = await self._start()
        self._watch = asyncio.create_task(self._keep(engine))
        self._watch.add_done_callback(self._unwatched)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._end()

    def _unwatched(self, watch: asyncio.Task[None]) -> None:
        """Log a bug of the watch: otherwise an engine that dies later would stay away without a word."""
        if not watch.cancelled() and (fault := watch.exception()) is not None:
            log("engine_unwatched", level=logging.ERROR, replica=self.replica.index, problem=repr(fault))

    async def _start(self) -> Engine:
        try:
            engine = await self._life.enter_async_context(self._make())
        except OSError as error:  # no descriptor, no memory or no disk is left: try again later
            raise EngineFailed(f"the engine's process could not be made: {error.strerror or error}") from error
        self.replica.slots = engine.slots
        self.replica.queue = engine.slots if self._queue is None else self._queue
        self.replica.alias = engine.alias
        queues = self.replica.traits.reads_tags
        self._upstream = Upstream(
            engine.base_url,
            key=self._key,
            ours=True,
            hang_s=self._hang_s,
            whole_s=self._whole_s,
            queues=queues,
            loops=self.replica.traits.llama_cpp,
        )
        self._past_answering.clear()
        self.replica.upstream = self._upstream
        self.replica.failures, self.replica.down_until, self.replica.false_starts = 0, 0.0, 0
        self.changed()
        return engine

    async def _end(self) -> None:
        """End the present process. Calls inside are lost at once, however long it takes to end."""
        self.replica.upstream = None
        upstream, self._upstream = self._upstream, None
        life, self._life = self._life, AsyncExitStack()
        try:
            if upstream is not None:
                await upstream.aclose()
        finally:
            await life.aclose()

    async def _comes_back(self) -> bool:
        """A call was lost in the engine: will this process be replaced? A server whose engine is dead may live on for
        a while; it is ended."""
        if (upstream := self.replica.upstream) is None:
            return True
        if await upstream.lives():
            return False
        if self.replica.upstream is upstream:
            self.replica.upstream = None
            self._past_answering.set()
        return True

    async def _end_of(self, engine: Engine) -> int | None:
        """Wait for the end of the present process. Its exit status; None if it still runs."""
        assert self._upstream is not None
        ended = asyncio.create_task(engine.ended())
        past = asyncio.create_task(self._past_answering.wait())
        mute = asyncio.create_task(until_hung(self._upstream, engine.alias, self._restart_s, engine.slots))
        try:
            async with following(self._upstream, min(self._hang_s, self._restart_s) / LOOKS):
                await asyncio.wait({ended, past, mute}, return_when=asyncio.FIRST_COMPLETED)
            if mute.done() and not ended.done():
                self._upstream.stood_still = self._upstream.constrained.suspected and self.replica.traits.llama_cpp
                log("engine_hung", level=logging.ERROR, replica=self.replica.index, problem=mute.result())
                return None
            await asyncio.wait({ended}, timeout=_STATUS_S)
            return ended.result() if ended.done() else None
        finally:
            for task in (ended, past, mute):
                task.cancel()
            await asyncio.gather(mute, return_exceptions=True)

    async def _keep(self, engine: Engine) -> None:
        loop, index = asyncio.get_running_loop(), self.replica.index
        pause = 0.0
        while True:
            born = loop.time()
            status = await self._end_of(engine)
            log("engine_died", level=logging.ERROR, replica=index, status=status)
            await self._end()
            pause = 0.0 if loop.time() - born > _STEADY_S else min(_BACKOFF_CAP_S, max(_BACKOFF_S, 2 * pause))
            while True:
                await asyncio.sleep(pause)
                try:
                    engine = await self._start()
                    break
                except EngineFailed as error:
                    log("engine_failed", level=logging.ERROR, replica=index, problem=str(error))
                    self.replica.false_starts += 1
                    self.changed()
                    pause = min(_BACKOFF_CAP_S, max(_BACKOFF_S, 2 * pause))
            self.replica.restarts += 1
            self.restarted(index)
            log("engine_restarted", replica=index, restarts=self.replica.restarts)
