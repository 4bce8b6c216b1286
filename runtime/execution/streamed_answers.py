"""A model's answer as a stream: pieces of text that depend only on the text, so that a resumed run yields the same.

Servers cut an answer where they like, and differently each time. `Pieces` cuts it again: a word with the space after
it, or one ideograph. A workflow that yields pieces, or counts them, so does the same when the recorded answer is read
instead of a new one.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ramify.runtime.errors import Diverged, NotInARun
from ramify.runtime.execution.model_call_rows import failed_row, row_of
from ramify.runtime.execution.streaming import Stream
from ramify.runtime.journal.cancelled_calls import record_cancelled, until_cancelled_again
from ramify.runtime.journal.failures import READ, RaisedBy
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import LLMRecord, OpRecord, OpStatus
from ramify.runtime.user_code.worker_threads import start_on_run_loop
from ramify.runtime.user_code.workflow_tasks import task_reads
from ramify.serving.pacing import TOKEN_CHARACTERS, Pacer, paced
from ramify.serving.types import ChatResult

_IDEOGRAPH = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_PIECE = re.compile(rf"\s*(?:[{_IDEOGRAPH}]|[^\s{_IDEOGRAPH}]{{1,24}})\s*")

Hear = Callable[[str], None]
Answered = AsyncGenerator[str | ChatResult, None]


class Pieces:
    """Cuts a text that comes bit by bit. The cuts depend only on the text before them."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, text: str) -> Iterator[str]:
        """Add text, and yield the pieces that are complete: something follows them that does not belong to them."""
        self._rest += text
        while (found := _PIECE.match(self._rest)) is not None and found.end() < len(self._rest):
            piece, self._rest = found.group(), self._rest[found.end() :]
            yield piece

    def end(self) -> Iterator[str]:
        """Yield what is left, once the text is whole."""
        if self._rest:
            yield self._rest
        self._rest = ""


def pieces_of(text: str) -> Iterator[str]:
    """Yield the pieces of a whole text."""
    pieces = Pieces()
    yield from pieces.add(text)
    yield from pieces.end()


async def answer_pieces(
    send: Callable[[Hear], Awaitable[ChatResult]],
    pace_s: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Answered:
    """Make a call, and yield the pieces of its answer while it comes, then the whole answer.

    send: makes the call, and tells what it hears. A recorded answer comes without being heard, and at once.
    pace_s: seconds for a token, at least. The answer is fetched as fast as it comes all the same.

    Leaving the generator cancels the call.
    """
    heard: asyncio.Queue[str | None] = asyncio.Queue()

    async def make() -> ChatResult:
        try:
            return await send(heard.put_nowait)
        finally:
            heard.put_nowait(None)

    async def live() -> AsyncGenerator[str, None]:
        while (text := await heard.get()) is not None:
            for piece in pieces.add(text):
                yield piece

    pieces, given = Pieces(), 0
    task = asyncio.create_task(make())
    source = live()
    if pace_s is not None:
        source = paced(source, Pacer(pace_s), clock, sleep, _tokens)
    try:
        async for piece in source:
            given += len(piece)
            yield piece
        result = await task
        for piece in pieces_of(result.text[given:]):
            yield piece
        yield result
    finally:
        task.cancel()
        await source.aclose()
        await asyncio.gather(task, return_exceptions=True)


async def _after(before: str, answered: Answered, journal: Journal) -> Answered:
    """Yield of an answer what follows the text `before`, which the workflow has read already.

    Raises `Diverged` if the answer does not begin with it, and stops the run: what it did for those words stands.
    """
    at = 0
    async for piece in answered:
        if isinstance(piece, str) and at < len(before):
            if not before.startswith(piece, at):
                raise journal.stop(_other_words(before))
            at += len(piece)
        else:
            yield piece


def refuse_other_words(journal: Journal, key: str, text: str) -> None:
    """Raise `Diverged` if an earlier process read other words of a streamed answer. Call it before the answer is
    recorded: the next resume would take it for the one that was read."""
    before = journal.read_before(key)
    if not text.startswith(before):
        raise journal.stop(_other_words(before))


def _other_words(before: str) -> Diverged:
    return Diverged(
        f"an earlier process read a model's answer up to {before[-40:]!r}, and did not record the rest. The model "
        "was asked again, and answers in other words. Start a new run; or resume again, if the model may give the "
        "same answer"
    )


async def recorded_as_read(
    answered: Answered, row: LLMRecord, journal: Journal, clock: Callable[[], float]
) -> Answered:
    """Yield the answer of a call. If it fails, or the workflow leaves it, record how far it was read: a resume yields
    the same pieces, and then it fails again, or waits to be left again. An effect or a question may follow from the
    words before it, so its commit records them, too."""
    key, begun, read = row.key, clock(), list[str]()
    before = journal.read_before(key)
    recorded = len(before)

    def read_since() -> OpRecord | None:
        nonlocal recorded
        text = "".join(read)
        if len(text) <= recorded or journal.is_answered(key):
            return None
        recorded = len(text)
        so_far = row_of(row, begun, clock())
        return replace(so_far, status=OpStatus.READ, summary="read a part", attrs={READ: text})

    journal.turns.pass_over(key)
    journal.streams[key] = read_since
    try:
        task_reads()
        for known in pieces_of(before):
            read.append(known)
            yield known
        if journal.stands(key):
            await until_cancelled_again(journal, key, "a streamed model call")
            if (error := journal.failed(key)) is not None:
                raise error
        async with aclosing(_after(before, answered, journal)) as rest:
            async for piece in rest:
                if isinstance(piece, str):
                    read.append(piece)
                yield piece
        journal.turns.returned()
    except Exception as error:
        if error is not journal.stopped and not journal.stands(key):
            failed = failed_row(row, error, begun, clock())
            await journal.record(replace(failed, attrs={**failed.attrs, READ: "".join(read)}))
        journal.followers.told(error, RaisedBy(key, None, row.branch))
        raise
    except (asyncio.CancelledError, GeneratorExit) as left:
        await answered.aclose()
        how = left if isinstance(left, asyncio.CancelledError) else None
        if how is not None or not journal.is_answered(key):  # who leaves a whole answer does so after the same piece
            await record_cancelled(journal, replace(row_of(row, begun, clock()), attrs={READ: "".join(read)}), how)
        raise
    finally:
        journal.streams.pop(key, None)
        await answered.aclose()


class AnswerStream(Stream[str]):
    """The pieces of an answer: `async for piece in stream`, or `for piece in stream` in a plain function.

    To stop in the middle, use it as a context manager: `async with llm.stream(…) as pieces`, or `with` in a plain
    function. At the end of the block the model stops, too.
    """

    def __init__(self, answered: Answered) -> None:
        self._whole = list[ChatResult]()
        super().__init__(_texts(answered, self._whole), _outside)

    @property
    def result(self) -> ChatResult:
        """The whole answer. Raises `RuntimeError` before it was read to its end."""
        if not self._whole:
            raise RuntimeError("the answer is not complete yet: read the stream to its end first")
        return self._whole[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        start_on_run_loop("a stream was closed", self.aclose)


async def _texts(answered: Answered, whole: list[ChatResult]) -> AsyncGenerator[str, None]:
    # It must not refer to the stream: a loop that is left without a context manager closes it by its last reference.
    async with aclosing(answered):
        async for piece in answered:
            if isinstance(piece, ChatResult):
                whole.append(piece)
            else:
                yield piece


def _outside(_: AsyncGenerator[str, None]) -> Iterator[Any]:
    raise NotInARun("a model's answer was read outside its run: read it in the workflow or step that asked for it")


def _tokens(piece: str) -> float:
    return len(piece) / TOKEN_CHARACTERS
