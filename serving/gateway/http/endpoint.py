"""The endpoints that give answers: one call, from its arrival to the last byte of its answer.

Nothing of an answer goes out before its first token is there. Until then, a replica that dies costs the client
nothing: the call returns to the queue with its old arrival and deadline, and another replica does it. After the first
token the answer belongs to one engine, and what breaks it off becomes an error event. The exception is a call that
the policy interrupts and that can be resumed (see `dialects.resumable`): it waits again and continues where it
stopped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, field

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ramify.serving.gateway import sse
from ramify.serving.gateway.dialects import (
    Details,
    Dialect,
    answer_id,
    continued,
    details_of,
    refusal_of,
    rejoin_chunk,
    usage_of,
    was_cut,
)
from ramify.serving.gateway.engines.constraint_checks import (
    check_constraints,
    check_cost,
    constraint_field,
    requires_tool_call,
)
from ramify.serving.gateway.engines.engine_fields import check_fields
from ramify.serving.gateway.engines.liveness import STOOD_STILL, limited
from ramify.serving.gateway.engines.replicas import Replica
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import (
    STOPPING,
    Aborted,
    ApiError,
    Preempted,
    Refused,
    as_api_error,
    bad_request,
    broken_off,
    infeasible,
)
from ramify.serving.gateway.formats.apis import AnswerFormat, Api, ChunkFormat, answers_to_each, at_engine
from ramify.serving.gateway.formats.gathered_answer import as_stream, gathered
from ramify.serving.gateway.formats.llama_cpp_request import check_prompt_length, without_prefill
from ramify.serving.gateway.gateway import Gateway, several
from ramify.serving.gateway.http.exchange import (
    ClientResponse,
    body_of,
    check_prompt,
    client_left,
    flag_in,
    is_large,
    tags_of,
    traced,
)
from ramify.serving.gateway.records.call_records import told
from ramify.serving.gateway.records.calls import Call, Outcome
from ramify.serving.pacing import PacedDelivery, tokens_to_read
from ramify.serving.policy.types import Refusal
from ramify.serving.protocol import wire
from ramify.serving.protocol.agent_hints import AgentHints, read_hints
from ramify.serving.protocol.wire import refusal_from_line

_TOO_SHORT = "it ended its stream before the answer's end"
_LIVES = 3  # a call that was in so many engines when they died is not tried again
_NO_TOOLS = "the embedded model's template has no place for tools, so it never calls one: choose another --model"


@dataclass
class _Work:
    """The state of one call on its way through an endpoint."""

    call: Call
    asked: Mapping[str, object]  # by the client
    body: Mapping[str, object]  # the same in the dialect of the engine that works on it
    dialect: Dialect
    out: ClientResponse
    trace: Mapping[str, str]  # headers that name the request, for the engine
    hints: AgentHints
    delivery: PacedDelivery | None = None  # if its events go out at the reader's pace
    held: list[tuple[bytes, float]] = field(default_factory=list)  # events not sent yet, and their tokens to read
    head: dict[str, object] = field(default_factory=dict)  # the fields that every chunk of the answer begins with
    name: str | None = None  # the answer's id at the engine that works on it
    text: list[str] = field(default_factory=list)  # the answer so far, kept where it may have to be resumed
    usage: tuple[int | None, int | None] = (None, None)  # tokens of the answer, of the prompt
    details: Details = field(default_factory=Details)
    format: AnswerFormat = field(default_factory=ChunkFormat)  # of this attempt
    ended: bool = False
    whole: bool = True  # it ended as the engine wanted, not by a failure

    async def send(self) -> None:
        """Send what is held, or leave it to the delivery."""
        held, self.held = self.held, []
        if self.delivery is None:
            await self.out.bytes(b"".join([event for event, _ in held]))
            return
        for event, tokens in held:
            await self.delivery.put(event, tokens)


class Endpoint:
    """Plain ASGI, because it must notice at any moment that its client has left."""

    def __init__(self, gateway: Gateway, api: Api) -> None:
        self._gateway = gateway
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, request = self._gateway, Request(scope, receive)
        client = gateway.authorise(request)
        asked = await body_of(request, gateway.bodies)
        tags = tags_of(request, asked, client)
        body = await asyncio.to_thread(self._checked, asked) if is_large(request) else self._checked(asked)
        gateway.stored.check(asked, client)
        dialect = self._api.dialect
        stream = flag_in(body, "stream")
        if stream and scope.get("http_version") == "1.0":
            raise bad_request(
                "stream", "stream: HTTP/1.0 cannot carry a stream: use HTTP/1.1, or set stream to false"
            )
        if gateway.stopping:
            raise STOPPING
        call = gateway.open(dialect, body, tags, client)
        trace = traced(request)
        out = ClientResponse(scope, receive, send, trace, self._api.errors)
        work = _Work(call, asked, body, dialect, out, trace, read_hints(asked, request.headers))
        answer = call.task = asyncio.create_task(self._delivered(work) if stream else self._answer(work, stream))
        gone = asyncio.create_task(client_left(receive))
        beside = [gone]
        if stream and gateway.keepalive_s is not None:
            beside.append(asyncio.create_task(out.keep_alive(gateway.keepalive_s)))
        gateway.answers.add(answer)
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answer.cancelled() and not gone.done():
                await out.error(STOPPING)
        finally:
            gateway.close(call, Outcome.GONE if gone.done() else Outcome.FAILED)
            gateway.answers.discard(answer)
            for task in (answer, *beside):
                task.cancel()
            await asyncio.gather(answer, *beside, return_exceptions=True)
        if not answer.cancelled():
            answer.result()

    def _checked(self, asked: Mapping[str, object]) -> Mapping[str, object]:
        """The request in the API's dialect. Raises ApiError for one that no engine can answer."""
        llama_cpp = self._gateway.replicas.llama_cpp
        try:
            body = self._api.request(asked)
            check_prompt(self._api.dialect, body, llama_cpp=llama_cpp)
            check_constraints(body, llama_cpp=llama_cpp)
            if flag_in(body, "background"):
                raise bad_request("background", "background: not supported: a call here ends with its connection")
            for_engine = at_engine(self._api, llama_cpp=llama_cpp).request(asked)
            if llama_cpp:
                check_cost(for_engine)  # a translated pattern has more alternatives than the client's
            check_fields(asked, self._gateway.allow_fields, reads_any=not llama_cpp)
            # An engine would count the tokens of a prompt that is far too long while the call holds its slot.
            check_prompt_length(for_engine, self._gateway.replicas.most_characters)
        except ApiError as error:
            raise self._api.named(error, asked) from error
        return body

    async def _delivered(self, work: _Work) -> None:
        async with self._gateway.delivery(work.call, work.body, work.dialect, work.out.bytes) as work.delivery:
            await self._answer(work, stream=True)

    async def _answer(self, work: _Work, stream: bool) -> None:
        """Try until one attempt is the last one; then send the client what came of it."""
        call, close = work.call, self._gateway.close
        try:
            with _interruptible(call):
                await self._gateway.analyse(call, self._api.dialect, work.body)
            while not await self._attempt(work, stream):
                pass
            if work.delivery is not None:
                await work.delivery.drained()
            if stream:
                await work.out.end()
        except Refused as refused:
            close(call, Outcome.REFUSED)
            refusal = refused.refusal
            begun = "not gone on with" if call.chunks else "not started"
            said = f"{begun}: {refusal.reason}{_of_an_old_run(call)}"
            await self._fail(work, infeasible(said, refusal.earliest_feasible_s))
        except Aborted:
            close(call, Outcome.ABORTED)
            said = "its workflow cancelled it"
            await self._fail(work, ApiError(499, "aborted", said, headers={"x-should-retry": "false"}))
        except ApiError as error:
            close(call, Outcome.FAILED)
            await self._fail(work, error)

    async def _fail(self, work: _Work, error: ApiError) -> None:
        """Send the client the error, after what there is of the answer."""
        if work.held and work.call.first_token is not None:
            await work.send()
        if work.delivery is not None:
            work.delivery.hurry()
            await work.delivery.drained()
        await work.out.error(self._api.named(error, work.asked))

    async def _attempt(self, work: _Work, stream: bool) -> bool:
        """Wait for a slot and get the answer there. False if the call has to wait for another slot."""
        gateway, call = self._gateway, work.call
        replica: Replica | None = None
        upstream: Upstream | None = None
        try:
            with _interruptible(call):
                async with gateway.admission.slot(call) as replica:
                    await gateway.hints.make_room(replica)
                    if (
                        replica.traits.llama_cpp
                        and requires_tool_call(work.body)
                        and not await _of(replica).shows_tools()
                    ):
                        raise bad_request("tool_choice", f"tool_choice: {_NO_TOOLS}")
                    upstream = _of(replica)
                    if call.client and replica.traits.keeps_prefixes is None:
                        await upstream.keeps_apart()
                    api = at_engine(self._api, llama_cpp=replica.traits.llama_cpp)
                    work.body, work.dialect = api.request(work.asked), api.dialect
                    work.format = work.format if call.chunks else api.answer(work.asked)
                    whole_s = upstream.whole_s if replica.traits.llama_cpp else math.inf
                    async with limited(upstream.constrained, upstream.awake, call, work.body, whole_s=whole_s):
                        await (self._stream if stream else self._whole)(work, replica)
        except Preempted:
            gateway.metrics.preempted()
            return False
        except (ApiError, wire.Malformed) as error:
            failure = gateway.told(as_api_error(error), upstream)
            if failure.status == 400 and failure.param is None:
                too_long = failure.code == "context_length_exceeded"
                failure.param = (
                    work.dialect.prompt_field if too_long else constraint_field(failure.message, work.body)
                )
            blamed = (
                None
                if upstream is None or failure.code != STOOD_STILL
                else upstream.constrained.blame(call, work.body)
            )
            if blamed is not None:
                raise blamed from error
            if (refused := refusal_from_line(failure.message)) is not None:  # vLLM 0.33 refuses in this way
                raise Refused(Refusal(call.id, *refused)) from error
            with _interruptible(call):
                if replica is None or not await self._another_can(call, replica, failure):
                    raise failure from error
            return False
        return True

    async def _another_can(self, call: Call, replica: Replica, failure: ApiError) -> bool:
        """Note that a replica failed a call. True if another one could still do it, even if it must first restart."""
        gateway, now = self._gateway, self._gateway.records.clock()
        if not failure.lost:
            return False
        if len(gateway.replicas.all) > 1:
            replica.lost(now)
        call.avoid |= {replica.index}
        call.lost += failure.status != 503  # it never was in an engine that cannot be reached
        if call.first_token is not None:
            return False
        if not gateway.replicas.others(call.avoid) and not await self._one_comes_back(call, failure):
            return False
        gateway.metrics.retried()
        return True

    async def _one_comes_back(self, call: Call, failure: ApiError) -> bool:
        """Every engine has lost this call. Wait for one of ours that ended and is restarted; but a call that was in
        several engines when they died may be the reason that they did."""
        if failure.status not in (502, 503) or call.lost >= _LIVES:
            return False
        before = call.avoid
        for one in self._gateway.replicas.all:
            if one.index in before and one.comes_back is not None and await one.comes_back():
                call.avoid -= {one.index}
        return call.avoid != before

    async def _whole(self, work: _Work, replica: Replica) -> None:
        call, gateway = work.call, self._gateway
        body = gateway.forwarded(call, work.body, replica)
        headers = gateway.headers(call, work.trace, replica, work.hints)
        upstream, path = _of(replica), work.dialect.path
        answer: Mapping[str, object] | None
        if gathers := replica.traits.llama_cpp and several(work.dialect, work.body):
            stream = upstream.stream(path, _encoded(as_stream(body)), headers)
            answer = await gathered(stream, work.dialect, answers_to_each(body))
            if answer is None:
                raise upstream.broken(_TOO_SHORT)
        else:
            answer = await upstream.post(path, _encoded(body), headers)
        if (refused := refusal_of(answer.get("choices"))) is not None:
            raise Refused(Refusal(call.id, *refused))
        if replica.traits.llama_cpp and not gathers:
            answer = without_prefill(answer, work.body)
        if not work.dialect.last_is_whole and not isinstance(answer.get("choices"), list):
            failed = answer.get("error")  # of some servers, with status 200
            raise upstream.broken("it has no choices") if failed is None else broken_off(failed)
        call.cut = was_cut(answer)
        usage, details = usage_of(answer), details_of(answer)
        gateway.answered(call, replica, work.body, work.dialect, usage, answer.get("id"), details)
        gateway.close(call, Outcome.DONE)
        await work.out.whole(work.format.whole(answer, self._ledger(call)))

    async def _stream(self, work: _Work, replica: Replica) -> None:
        call, gateway, upstream = work.call, self._gateway, _of(replica)
        body = gateway.forwarded(call, work.body, replica)
        headers, again = gateway.headers(call, work.trace, replica, work.hints), call.chunks
        work.name = None
        if again:
            body = continued(work.dialect, body, "".join(work.text), again)
        else:
            work.held.clear()  # left by a failed attempt, like the head of its answer
            work.head.clear()
        done = False
        async with aclosing(upstream.stream(work.dialect.path, _encoded(body), headers)) as batches:
            async for batch in batches:
                done = self._take(work, batch, again)
                if work.held and call.first_token is not None:
                    await work.send()
                if done:
                    break
        # If several answers were asked for, the end of one says nothing about the others.
        if not work.ended or (not done and several(work.dialect, work.body)):
            raise upstream.broken(_TOO_SHORT)
        await self._finish(work, replica)

    def _take(self, work: _Work, batch: list[sse.Event], again: int) -> bool:
        """Add events that came together to `held`. True with the last one."""
        call, dialect, now = work.call, work.dialect, self._gateway.records.clock()
        analysis = self._gateway.analysis
        for event in batch:
            if event.data == sse.DONE:
                return True
            if not event.data:
                work.held.append((event.raw + b"\n\n", 0.0))
                continue
            chunk = wire.parse_object(event.data)
            piece = dialect.read(chunk)
            if piece.failed is not None:
                raise broken_off(piece.failed)
            if piece.refused is not None:
                raise Refused(Refusal(call.id, *piece.refused))
            if not work.head:
                work.head = {k: chunk[k] for k in ("id", "object", "created", "model") if k in chunk}
            work.name = work.name or answer_id(chunk)
            if piece.answers or piece.thinks:
                read = max(1, round(tokens_to_read(piece.text)))
                call.token(now, thought=not piece.answers, read=read)
                call.resumable = call.resumable and not piece.thinks
                if call.resumable:
                    work.text.append(piece.text)
                if analysis is not None:
                    analysis.progressed(call, piece.text, work.name)
            if piece.tokens is not None:
                work.usage = (piece.tokens + again, piece.prompt_tokens)
            if piece.tokens is not None or "timings" in chunk:
                whole = chunk.get("response")
                work.details = details_of(whole if isinstance(whole, Mapping) else chunk)
            if piece.ends:
                work.ended, work.whole, call.cut = True, piece.whole, piece.cut
                call.resumable = False  # only the end is still to come
            raw: bytes | None = event.raw
            if again:
                raw, joined = None, rejoin_chunk(chunk, work.head, again)
                if joined is None:
                    continue
                chunk = joined
            if work.delivery is not None and piece.answers and not piece.text:
                work.delivery.hurry()  # a tool call: programs wait for it, not readers
            if said := work.format.event(raw, chunk, piece):
                work.held.append((said, tokens_to_read(piece.text)))
            if piece.ends and dialect.last_is_whole:
                return True
        return False

    async def _finish(self, work: _Work, replica: Replica) -> None:
        """Send the end of a stream, with the ledger."""
        call, gateway = work.call, self._gateway
        if work.whole:
            gateway.answered(call, replica, work.body, work.dialect, work.usage, work.name, work.details)
        gateway.close(call, Outcome.DONE if work.whole else Outcome.FAILED)
        work.held.append((work.format.end(self._ledger(call)), 0.0))
        await work.send()

    def _ledger(self, call: Call) -> dict[str, object]:
        return asdict(call.ledger(self._gateway.records.clock()))


@contextmanager
def _interruptible(call: Call) -> Iterator[None]:
    """Raise the reason of an interruption in place of the cancellation that performs it."""
    try:
        yield
    except asyncio.CancelledError:
        task, why = asyncio.current_task(), call.why
        call.why = None
        if why is None or task is None or task.uncancel() > 0:
            raise
        raise why from None


def _of_an_old_run(call: Call) -> str:
    """A remark for a deadline that had passed before the call came: its client may reuse a compound_id."""
    run = call.compound
    if run is None or run.deadline is None or run.deadline > call.arrived or run.first_at == call.arrived:
        return ""
    name, ago_s = told(run.id, call.client), call.arrived - run.first_at
    return f"; compound_id {name!r} began {ago_s:.0f} s ago: give each run an id of its own"


def _encoded(body: Mapping[str, object]) -> bytes:
    try:
        return sse.encode(body)
    except (RecursionError, ValueError) as error:
        raise bad_request("body", f"body: cannot be passed on: {error}") from error


def _of(replica: Replica) -> Upstream:
    if replica.upstream is None:
        raise ApiError(503, "upstream_unavailable", "the engine is being started again: try again", lost=True)
    return replica.upstream
