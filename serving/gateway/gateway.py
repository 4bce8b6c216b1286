"""What all calls of a gateway share, and the begin and end of each call, of which records, metrics and policy learn.

`UnfinishedBodies` are the bodies that are still arriving: together they hold a bounded amount of memory, and each has
a deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.requests import Request

from ramify.serving.gateway.admission.admission import Admission
from ramify.serving.gateway.admission.prefix_hints import HintResult, PrefixHints
from ramify.serving.gateway.dialects import CHAT, MOST_TOKENS, Details, Dialect, resumable
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.engines.engine_fields import without_unallowed
from ramify.serving.gateway.engines.replicas import Replica, Replicas, echoes, salted, service_of
from ramify.serving.gateway.engines.service_time import PromptSizes
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import ApiError, bad_request, without_address
from ramify.serving.gateway.formats.tool_results import tool_results
from ramify.serving.gateway.records.call_records import Records
from ramify.serving.gateway.records.calls import Call, Outcome
from ramify.serving.gateway.records.logs import request as log_request
from ramify.serving.gateway.records.metrics import Metrics
from ramify.serving.gateway.records.stored_responses import StoredResponses
from ramify.serving.gateway.sse import encode
from ramify.serving.http_guard import REQUEST_ID, Keys, shown_keys
from ramify.serving.pacing import PacedDelivery, Pacer
from ramify.serving.policy.types import Finished, SloClass, StepModel
from ramify.serving.protocol.agent_hints import AgentHints, session_headers, without_hints, written
from ramify.serving.protocol.length_sketch import LengthSketch
from ramify.serving.protocol.tags import SLOTags, without_tags
from ramify.serving.qoe import READING_TBT_S
from ramify.serving.scaling.pools import Observation

if TYPE_CHECKING:  # it imports numpy, which a gateway without an analyzer does not need
    from ramify.serving.gateway.records.length_forecasts import LengthForecasts


MOST_UNFINISHED = 64 * 1024 * 1024
"""Bytes of all bodies that are still arriving."""
BODY_S = 60.0  # a body that takes longer comes from a client that means harm, or has left


class UnfinishedBodies:
    """If the bodies hold too much, the one that began first is given up: a client that sends one without ending it
    hinders none that sends quickly."""

    def __init__(self, most: int = MOST_UNFINISHED) -> None:
        self._most = most
        self._held: dict[asyncio.Timeout, int] = {}  # bytes of each, the oldest first
        self.bytes = 0
        self.stopped = False

    def stop(self) -> None:
        """Give up all bodies, those that are still to come too: their calls would be turned away."""
        self.stopped = True
        for limit in self._held:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def reading(self, seconds: float = BODY_S) -> AsyncIterator[Callable[[int], None]]:
        """Read one body inside. The yielded function notes bytes that have come.

        Raises `TimeoutError` after `seconds`, when the body has to make room, or once all are given up.
        """
        async with asyncio.timeout(0 if self.stopped else seconds) as limit:
            self._held[limit] = 0
            try:
                yield lambda size: self._note(limit, size)
            finally:
                self.bytes -= self._held.pop(limit, 0)

    def _note(self, limit: asyncio.Timeout, size: int) -> None:
        if limit not in self._held:
            return  # given up already
        self._held[limit] += size
        self.bytes += size
        while self.bytes > self._most and len(self._held) > 1:
            oldest = next(iter(self._held))
            self.bytes -= self._held.pop(oldest)
            oldest.reschedule(asyncio.get_running_loop().time())


COUNT_PATH = "/messages/count_tokens"  # after /v1; llama.cpp and vLLM have it
_PREFIX = 1024  # characters that two prompts must share for the calls to belong on one replica


class Gateway:
    """The state of one gateway: `app.state.gateway` of the application that create_gateway returns."""

    def __init__(
        self,
        replicas: Replicas,
        admission: Admission,
        records: Records,
        metrics: Metrics,
        api_keys: Sequence[str],
        keepalive_s: float | None = None,
        pace: bool = False,
        allow_fields: Collection[str] = (),
    ) -> None:
        self.keepalive_s = keepalive_s
        self._pace = pace
        self.allow_fields = allow_fields  # see `engine_fields`
        self._deliveries: set[PacedDelivery] = set()
        self.replicas = replicas
        self.admission = admission
        self.records = records
        self.metrics = metrics
        self.hints = PrefixHints(replicas, admission, metrics, records.clock, self.told)
        self.answers: set[asyncio.Task[None]] = set()
        self.bodies = UnfinishedBodies()
        self.stopping = False
        self.analysis: LengthForecasts | None = None
        self.engines = EngineMessages({})  # our schedulers inside engines
        self.demand: Observation | None = None  # what the number of replicas follows, if it may change
        self._keys = Keys(api_keys)
        self._sizes = PromptSizes()
        self.stored = StoredResponses()

    async def drain(self, seconds: float) -> None:
        """Take no more calls, let those in progress run for so many seconds, and break off the rest."""
        self.stopping = True
        self.bodies.stop()
        for delivery in self._deliveries:
            delivery.hurry()
        await self.hints.stop()
        if self.answers:
            await asyncio.wait(self.answers, timeout=seconds)
        self.abort()

    def abort(self) -> None:
        """Break off every call and tell its client."""
        for answer in self.answers:
            answer.cancel()

    async def aclose(self) -> None:
        if self.analysis is not None:
            await self.analysis.aclose()
        for one in self.replicas.all:
            if (
                one.upstream is not None and one.comes_back is None
            ):  # else its supervisor closes it, and still asks it
                await one.upstream.aclose()

    def authorise(self, request: Request) -> str:
        """The name of the client, empty if clients are not told apart (`Keys.owner`). Raises ApiError unless it shows
        a key, as OpenAI's clients do or as Anthropic's."""
        shown = next(iter(shown_keys(request.scope["headers"])), b"")
        if self._keys and not self._keys.shown_in(shown):
            said = "the API key is missing or wrong: send Authorization: Bearer KEY"
            raise ApiError(401, "invalid_api_key", said, headers={"www-authenticate": "Bearer"})
        return self._keys.owner(shown)

    def told(self, error: ApiError, upstream: Upstream | None) -> ApiError:
        """The error as clients may see it. With keys, clients are not the operator: they see no address of an
        engine. Nobody sees the one of an engine that we started: it is reached through this gateway only."""
        if upstream is None or not (self._keys or upstream.ours):
            return error
        return without_address(error, upstream.shown)

    async def asked(self, path: str) -> Mapping[str, object]:
        """What any engine that is up says at a path. Raises ApiError."""
        upstream = self.upstream()
        try:
            return await upstream.get(path)
        except ApiError as error:
            raise self.told(error, upstream) from error

    def upstream(self) -> Upstream:
        """Any engine that is up. Raises ApiError if there is none."""
        now = self.records.clock()
        for one in self.replicas.usable(now):
            if one.upstream is not None:
                return one.upstream
        raise ApiError(503, "upstream_unavailable", "the engine is being started: try again")

    async def apps(self, client: str) -> list[dict[str, object]]:
        """The client's applications: their recent calls here, and what the analyzer learnt of each, also from other
        gateways. Without an analyzer, or while it is away, that part is missing."""
        made = self.records.apps(client)
        learnt = {} if self.analysis is None else await self.analysis.apps(client)
        none = {"calls": 0, "open": 0}
        return [
            {"app_id": name or None, **made.get(name, none), "lengths": learnt.get(name)}
            for name in {**made, **learnt}
        ]

    async def models(self) -> dict[str, object]:
        """The models of all engines that are up, each once. Raises the error of one of them if none lists any."""
        self.upstream()  # raises if there is none
        here = [one.upstream for one in self.replicas.usable(self.records.clock()) if one.upstream is not None]
        answers = await asyncio.gather(*(one.get("/models") for one in here), return_exceptions=True)
        lists = [one for one in answers if not isinstance(one, BaseException)]
        if not lists:
            at, failed = next((at, one) for at, one in enumerate(answers) if isinstance(one, BaseException))
            raise self.told(failed, here[at]) if isinstance(failed, ApiError) else failed
        models: dict[object, Mapping[str, object]] = {}
        for listed in lists:
            data = listed.get("data")
            for model in data if isinstance(data, list) else ():
                if isinstance(model, Mapping):
                    models.setdefault(model.get("id"), model)
        return {**lists[0], "data": list(models.values())}

    async def count_tokens(self, asked: Mapping[str, object]) -> Mapping[str, object]:
        """The number of tokens of a request for messages. Raises ApiError if the engine cannot count."""
        upstream = self.upstream()
        try:
            counted = await upstream.post(COUNT_PATH, encode(without_tags(asked)))
        except ApiError as error:
            raise self.told(error, upstream) from error
        return {"input_tokens": counted.get("input_tokens")}

    def step_of(self, call: Call) -> StepModel:
        """The step model of the engine that works on the call, or that would be the quickest."""
        if call.entered is not None:
            return self.replicas.all[call.replica].model.step
        return self.replicas.fastest(self.records.clock()).model.step

    async def hint(self, body: Mapping[str, object], client: str = "") -> HintResult:
        """Let an idle engine prefill the beginning of future calls."""
        affinity = _affinity(SLOTags(), body, _prompt(CHAT, body), client)
        return await self.hints.read(body, affinity, client)

    def open(self, dialect: Dialect, body: Mapping[str, object], tags: SLOTags, client: str) -> Call:
        """Record a call that has come in. Its tags are those of `clients.owned`."""
        prompt = _prompt(dialect, body)
        affinity = _affinity(tags, body, prompt, client)
        if self.demand is not None:
            self.demand.arrived(self.records.clock())
        return self.records.open(
            dialect.path,
            tags,
            prompt_tokens=self._sizes.guess(len(prompt)),
            sketch=None if tags.length_quantiles is None else LengthSketch.from_wire(tags.length_quantiles),
            max_tokens=_limit(body),
            affinity=affinity,
            cached_as=affinity or f"prompt {client} {hash(prompt)}",
            client=client,
            resumable=resumable(dialect, without_tags(body)),
        )

    async def analyse(self, call: Call, dialect: Dialect, body: Mapping[str, object]) -> None:
        """Ask the analyzer about a call, before the call waits for its slot."""
        if self.analysis is not None:
            said = body.get(dialect.prompt_field)
            messages = said if isinstance(said, list) else [said]
            last = messages[-1] if messages else ""
            content = last.get("content") if isinstance(last, Mapping) else last
            model, alone = str(body.get("model", "")), not several(dialect, body)
            await self.analysis.begin(call, model, str(content), len(messages), alone, tool_results(said))

    def answered(
        self,
        call: Call,
        at: Replica,
        body: Mapping[str, object],
        dialect: Dialect,
        usage: tuple[int | None, int | None],
        answer_id: object,
        details: Details,
    ) -> None:
        """Take note of a whole answer: its time, for the estimates, and the replica that holds its conversation."""
        if dialect.last_is_whole and isinstance(answer_id, str):
            self.stored.remember(call.client, answer_id)
            self.replicas.remember(_conversation(answer_id), at)
        now = self.records.clock()
        made, read = usage
        pieces, streamed = call.chunks, call.first_token is not None
        if read is not None and not call.track.preemptions:
            self._sizes.observe(len(_prompt(dialect, body)), read)
            call.prompt_tokens = read
        if made is not None:
            call.chunks = made
        alone = not several(dialect, body) and not echoes(body)  # otherwise the count covers more than one answer
        if alone and not streamed and made is not None:
            call.track.whole(now, made)
        tokens = made if made is not None or not streamed else pieces
        seen = service_of(call, at, details, now, tokens=tokens, pieces=pieces) if alone else None
        at.answered(seen)

    @asynccontextmanager
    async def delivery(
        self, call: Call, body: Mapping[str, object], dialect: Dialect, send: Callable[[bytes], Awaitable[None]]
    ) -> AsyncIterator[PacedDelivery | None]:
        """How the events of a stream go out at its reader's pace; None if they go out as they come.

        `slo_pace` decides; without it, `pace` for streams without a deadline. Several answers at once never are.
        """
        tags = call.tags
        asked = self._pace and tags.slo_class == SloClass.STREAM and call.deadline is None
        if several(dialect, body) or not (asked if tags.slo_pace is None else tags.slo_pace):
            yield None
            return
        clock = self.records.clock
        async with PacedDelivery(send, Pacer(tags.slo_tbt_s or READING_TBT_S), clock) as one:
            self._deliveries.add(one)
            if self.stopping:  # it was opened just before
                one.hurry()
            try:
                yield one
            finally:
                self._deliveries.discard(one)

    def close(self, call: Call, outcome: Outcome) -> None:
        """Record that a call has ended. Only its first ending counts."""
        view = call.view()
        if not self.records.close(call, outcome):
            return
        if self.analysis is not None:
            self.analysis.ended(call, whole=outcome is Outcome.DONE)
        self.metrics.ended(call)
        log_request(call)
        if outcome is Outcome.DONE:
            assert call.ended is not None
            done = replace(view, generated=call.chunks, prompt_tokens=call.prompt_tokens)
            delivered = call.chunks - call.late_chunks
            if self.demand is not None and call.entered is not None:
                self.demand.served(call.ended - call.entered)
            self.admission.observe(Finished(done, call.ended, call.met() is not False, delivered))

    def forwarded(self, call: Call, body: Mapping[str, object], to: Replica) -> dict[str, object]:
        """The body for an engine: without our tags, or with what is left of them; its own model for "default"."""
        hints = to.traits.hints
        plain = without_unallowed(without_hints(without_tags(body), hints), self.allow_fields)
        if hints is not None:
            plain = written(plain, hints, call.tags, None if call.sketch is None else call.sketch.quantile(0.5, 0))
        if to.alias is not None and plain.get("model", "default") == "default":
            plain["model"] = to.alias
        plain = salted(plain, to, call.client)
        if not to.traits.reads_tags:
            return plain
        now = self.records.clock()
        left = replace(call.tags.aged(now - call.arrived), slo_pace=None)  # the gateway's own
        if call.compound and call.compound.deadline is not None and call.tags.compound_deadline_s is not None:
            left = replace(left, compound_deadline_s=max(0.0, call.compound.deadline - now))
        if call.thinking and left.slo_ttft_s is None:  # a scheduler cannot tell which tokens are thoughts
            left = replace(left, slo_ttft_s=left.slo_think_s)
        if call.predicted and call.sketch is not None:
            left = replace(left, length_quantiles=call.sketch.to_wire())
        if call.compound is not None:
            left = call.compound.completed(left, now)
        theirs = plain.get("vllm_xargs")
        return {**plain, "vllm_xargs": {**(theirs if isinstance(theirs, dict) else {}), **left.to_xargs()}}

    def headers(self, call: Call, trace: Mapping[str, str], to: Replica, hints: AgentHints) -> dict[str, str]:
        """The headers for an engine: those that name the request, and its session where the engine reads that.

        hints: the client's.
        """
        named = {**trace, REQUEST_ID: f"{call.client}-{trace[REQUEST_ID]}"} if call.client else trace
        return {**named, **session_headers(to.traits.hints, call.tags, hints)}


def _prompt(dialect: Dialect, body: Mapping[str, object]) -> str:
    """A text as long as the prompt, and as similar to others as their prompts are: to estimate and to compare."""
    try:
        return str(body.get(dialect.prompt_field, ""))
    except RecursionError:
        raise bad_request(dialect.prompt_field, f"{dialect.prompt_field}: nested too deeply") from None


def _limit(body: Mapping[str, object]) -> int | None:
    """Tokens after which the answer is cut, if the request says so."""
    said = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    limits = [v for v in said if isinstance(v, int) and not isinstance(v, bool) and v > 0]
    return min((*limits, MOST_TOKENS)) if limits else None  # larger numbers would overflow later computations


def several(dialect: Dialect, body: Mapping[str, object]) -> bool:
    """True if more than one answer is asked for: the tokens counted are then the length of none of them."""
    prompts = body.get("prompt") if dialect.prompt_field == "prompt" else None
    many = isinstance(prompts, list) and len(prompts) > 1 and not isinstance(prompts[0], int)  # ints: tokens of one
    return many or any(body.get(name) not in (None, 1) for name in ("n", "best_of"))


def _conversation(response_id: str) -> str:
    return f"response {response_id[:256]}"


def _affinity(tags: SLOTags, body: Mapping[str, object], prompt: str, client: str) -> str | None:
    """What makes calls belong on one replica: a fork group, a conversation that it keeps, a long common prefix."""
    if tags.fork_group is not None:
        return f"group {tags.fork_group}"
    if isinstance(earlier := body.get("previous_response_id"), str):
        return _conversation(earlier)
    return f"prefix {client} {hash(prompt[:_PREFIX])}" if len(prompt) >= _PREFIX else None
