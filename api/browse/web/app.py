"""The page's server as an ASGI application: static files and JSON answers. One route writes: it stores a person's
answer. The work for a request is done in a thread, bounded by a deadline and by the client's patience."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from ramify.browse.web import views
from ramify.browse.web.responses import Hit, NotThere, jsonable
from ramify.browse.web.run_cache import MOST_DIGITS, RunCache
from ramify.browse.web.search import search
from ramify.fork_engine.errors import ForkEngineError
from ramify.inspect.history import History
from ramify.inspect.values import parse_value
from ramify.runtime.errors import AlreadyAnswered, RunError
from ramify.runtime.estimates.recorded_runs import observed
from ramify.runtime.records import CheckpointRecord, RunId

T = TypeVar("T")

Stopped = Callable[[], bool]
"""Whether the work should end with what it has."""
DEADLINE_S = 10.0


async def in_thread(
    request: Request, work: Callable[[Stopped], T], *, clock: Callable[[], float] = time.monotonic
) -> T:
    """The result of `work` in a thread. `work` gets a function that returns true after `DEADLINE_S`, or once the
    client is gone, or the server stops. Only for requests without a body."""
    until = clock() + DEADLINE_S
    unwanted = threading.Event()
    watching = asyncio.create_task(_watch(request, unwanted))
    try:
        return await asyncio.to_thread(work, lambda: unwanted.is_set() or clock() > until)
    finally:
        unwanted.set()
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(request: Request, unwanted: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    unwanted.set()


STATIC = Path(__file__).parent / "static"
LONGEST_ANSWER = 1 << 20  # bytes
MOST_WORDS = 1000  # characters to search for
_GONE = 499  # the client has left, so nobody reads this status
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def create_app(reader: RunCache) -> Starlette:
    """Without a guard: `server.serving` puts one in front."""
    pages = _Answers(reader)
    files = {file.name: file for file in STATIC.iterdir() if file.suffix in TYPES}

    async def static(request: Request) -> Response:
        file = files.get(request.path_params.get("name", "index.html"))
        if file is None:
            raise HTTPException(404, "no such file")
        return FileResponse(file, media_type=TYPES[file.suffix])

    return Starlette(
        routes=[
            Route("/api/inbox", _json(pages.inbox)),
            Route("/api/answers", _json(pages.answer), methods=["POST"]),
            Route("/api/runs", _json(pages.runs)),
            Route("/api/runs/{run}", _json(pages.history)),
            Route("/api/runs/{run}/states/{state}", _json(pages.state)),
            Route("/api/runs/{run}/calls/{seq}", _json(pages.call)),
            Route("/api/runs/{run}/moments/{seq}", _json(pages.moment)),
            Route("/api/runs/{run}/plan", _json(pages.plan)),
            Route("/api/runs/{run}/search", _json(pages.search)),
            Route("/api/diff/{run}/{state}/{other_run}/{other_state}", _json(pages.diff)),
            Route("/", static),
            Route("/{name}", static),
        ],
        exception_handlers={HTTPException: _refused},
    )


class _Answers:
    """One method per route; its return value is sent as JSON."""

    def __init__(self, reader: RunCache) -> None:
        self._reader = reader

    async def runs(self, request: Request) -> object:
        return await self._reader.runs()

    async def inbox(self, request: Request) -> object:
        return await self._reader.inbox()

    async def answer(self, request: Request) -> object:
        """The body: `{"id": …, "answer": any JSON}`, or a "text" as a person types it: JSON if it parses."""
        said = await _body(request)
        match said:
            case {"id": str(id), "answer": answer, **rest} if not rest:
                return await self._reader.answer(id, answer)
            case {"id": str(id), "text": str(text), **rest} if not rest:
                return await self._reader.answer(id, parse_value(text))
        raise HTTPException(400, 'send {"id": "…", "answer": …}, or "text" instead of "answer"')

    async def history(self, request: Request) -> object:
        return await self._reader.page(_run(request), request.query_params.get("since", ""))

    async def state(self, request: Request) -> object:
        history, one = await self._state(request, "run", "state")
        snapshots, database = self._reader.snapshots, self._reader.database
        return await in_thread(request, lambda stopped: views.state_view(history, snapshots, one, database, stopped))

    async def diff(self, request: Request) -> object:
        before = await self._state(request, "run", "state")
        after = await self._state(request, "other_run", "other_state")
        snapshots, database = self._reader.snapshots, self._reader.database
        return await in_thread(request, lambda stopped: views.diff_view(snapshots, before, after, database, stopped))

    async def call(self, request: Request) -> object:
        history = await self._reader.history(_run(request))
        return views.call_view(views.moment(history, _seq(request)))

    async def moment(self, request: Request) -> object:
        history = await self._reader.history(_run(request))
        return views.moment_view(views.moment(history, _seq(request)), history)

    async def plan(self, request: Request) -> object:
        history = await self._reader.history(_run(request))
        others = await observed(self._reader.store, history.run.workflow, but=history.run.id)
        return views.plan_view(history, others)

    async def search(self, request: Request) -> object:
        history = await self._reader.history(_run(request))
        words = request.query_params.get("q", "")
        if len(words) > MOST_WORDS:
            raise HTTPException(400, f"search for at most {MOST_WORDS} characters")

        def work(stopped: Stopped) -> list[Hit]:
            hits = search(history, words, stopped)
            if stopped():
                raise HTTPException(
                    503, f"the search was not done after {DEADLINE_S:.0f} s: the run is too long for it"
                )
            return hits

        return await in_thread(request, work)

    async def _state(self, request: Request, run: str, state: str) -> tuple[History, CheckpointRecord]:
        history = await self._reader.history(_run(request, run))
        return history, views.checkpoint(history, request.path_params[state])


async def _body(request: Request) -> object:
    text = bytearray()
    async for chunk in request.stream():
        text += chunk
        if len(text) > LONGEST_ANSWER:
            raise HTTPException(413, f"an answer has at most {LONGEST_ANSWER} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None


def _run(request: Request, name: str = "run") -> RunId:
    return RunId(request.path_params[name])


def _seq(request: Request) -> int:
    """Starlette's own converter fails for a number of thousands of digits."""
    said = request.path_params["seq"]
    if not said.isdecimal() or len(said) > MOST_DIGITS:
        raise HTTPException(404, f"no row has the number {said[:MOST_DIGITS]!r}")
    return int(said)


def _json(answer: Callable[[Request], Awaitable[object]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            said = await answer(request)
        except ClientDisconnect:  # before the end of its body
            return Response(status_code=_GONE)
        except AlreadyAnswered as error:
            return _sent({"error": str(error)}, 409)
        except (RunError, ForkEngineError, NotThere) as error:
            return _sent({"error": str(error)}, 404)
        return _sent(await asyncio.to_thread(jsonable, said))

    return endpoint


def _sent(value: object, status: int = 200) -> Response:
    # ASCII: names of files that are not UTF-8 hold surrogates, which JSON can express and UTF-8 cannot
    return Response(json.dumps(value, separators=(",", ":")), status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _sent({"error": error.detail}, error.status_code)
