"""Prefix hints: an idle engine prefills the beginning of a call before that call is there.

A hint is not a call. It is sent only if a slot is free and nobody waits, as a request for one token whose answer is
thrown away; records, metrics of attainment, policy and analyzer do not see it. A call that needs the slot ends the
hint, and what was read by then stays in the engine's cache. A hint also ends when its client leaves.

An engine cannot leave a step that it has begun, and vLLM for CPUs reads a whole prompt in one step. So a long hint is
read in pieces, each a prompt that goes a little further than the last, and a call that needs the slot waits for one
piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ramify.serving.gateway import sse
from ramify.serving.gateway.admission.admission import Admission
from ramify.serving.gateway.dialects import CHAT
from ramify.serving.gateway.engines.replicas import Replica, Replicas, salted
from ramify.serving.gateway.engines.upstream import Upstream
from ramify.serving.gateway.errors import ApiError, as_api_error, bad_request
from ramify.serving.gateway.records.metrics import Metrics
from ramify.serving.protocol import wire

_FIELDS = ("model", "messages", "tools", "cache_salt")
_PIECE = 2048  # characters, about 512 tokens: 1.5 s of llama.cpp on two cores
_STOPPING = "the gateway is stopping"


class HintOutcome(StrEnum):
    """The outcome of a hint."""

    READ = "read"
    CALLED_OFF = "called_off"  # a call needed its slot, its client left, or the gateway stops
    FAILED = "failed"  # the engine refused or failed
    REFUSED = "refused"  # it was not sent


@dataclass(frozen=True, slots=True)
class HintResult:
    end: HintOutcome
    why: str = ""  # if it was not read

    def body(self) -> dict[str, object]:
        sent = self.end is not HintOutcome.REFUSED
        return {"sent": sent, "read": self.end is HintOutcome.READ, "why": self.why or None}


def hint_of(body: Mapping[str, object]) -> Mapping[str, object]:
    """Check the body of a hint. Raises ApiError, which names the field."""
    for name in body:
        if name not in _FIELDS:
            raise bad_request(name, f"{name}: a hint has {', '.join(_FIELDS)} and nothing else")
    model = body.get("model", "default")
    if not isinstance(model, str) or not model:
        raise bad_request("model", "model: must be a model's name")
    messages = _objects(body.get("messages"))
    if not messages:
        raise bad_request("messages", "messages: give the messages that calls will begin with, at least one")
    for at, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise bad_request("messages", f"messages[{at}].role: must be a string")
    if not isinstance(body.get("cache_salt", ""), str):
        raise bad_request("cache_salt", "cache_salt: must be a text")
    if _objects(body.get("tools", [])) is None:
        raise bad_request("tools", "tools: must be a list of objects")
    return {"model": model, **body}


class PrefixHints:
    """Sends the prefix hints of one gateway."""

    def __init__(
        self,
        replicas: Replicas,
        admission: Admission,
        metrics: Metrics,
        clock: Callable[[], float],
        told: Callable[[ApiError, Upstream | None], ApiError],
    ) -> None:
        """told: an error as clients may see it."""
        self._replicas = replicas
        self._admission = admission
        self._metrics = metrics
        self._clock = clock
        self._told = told
        self._reading: dict[asyncio.Task[HintResult], Replica] = {}
        self._stopped = False

    async def read(self, hint: Mapping[str, object], affinity: str | None, client: str = "") -> HintResult:
        """Have an idle engine read the hint. Returns when it is read, or will not be.

        affinity: that of the calls which it is for. client: whose they are.
        """
        able = [one for one in self._replicas.all if await _takes_hints(one)]
        found = self._free(able, affinity)
        if isinstance(found, str):
            result = HintResult(HintOutcome.REFUSED, found)
        else:
            result = await self._sent(found, salted(dict(hint), found, client))
        if isinstance(found, Replica) and affinity is not None and result.end is HintOutcome.READ:
            self._replicas.remember(affinity, found)
        self._metrics.hinted(result.end.value)
        return result

    async def make_room(self, replica: Replica) -> None:
        """A call was admitted to this replica: hints that occupy its slot end."""
        mine = [task for task, at in self._reading.items() if at is replica]
        over = replica.running + len(mine) - _at_once(replica)
        if mine and over > 0:
            await _ended(mine[-over:])

    async def stop(self) -> None:
        """Cancel all hints, and send no more."""
        self._stopped = True
        await _ended(list(self._reading))

    def _free(self, able: list[Replica], affinity: str | None) -> Replica | str:
        """The replica that a hint goes to, or the reason why there is none."""
        if self._stopped:
            return _STOPPING
        if not able:
            return "no engine here keeps prompts from one call to the next (see ramify serve --prompt-cache)"
        if len(able) > 1 and affinity is None:
            return "it is too short to send its calls to the same engine"
        home = self._replicas.home(affinity)
        usable = [one for one in self._replicas.usable(self._clock()) if one in able]
        if home is not None and home in usable:
            usable = [home]
        free = [one for one in usable if one.running + self._read_at(one) < _at_once(one)]
        if self._admission.waiting or not free:
            return "no slot is free"
        return min(free, key=lambda one: (one.running + self._read_at(one), one.index))

    def _read_at(self, replica: Replica) -> int:
        return sum(at is replica for at in self._reading.values())

    async def _sent(self, replica: Replica, hint: Mapping[str, object]) -> HintResult:
        task = asyncio.create_task(self._send(replica, hint))
        self._reading[task] = replica
        task.add_done_callback(self._reading.pop)  # whatever cancels this, and however often
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self._metrics.hinted(HintOutcome.CALLED_OFF.value)
            raise
        finally:
            await _ended([task])
        if task.cancelled():
            return HintResult(HintOutcome.CALLED_OFF, _STOPPING if self._stopped else "a call needed its slot")
        return task.result()

    async def _send(self, replica: Replica, hint: Mapping[str, object]) -> HintResult:
        upstream = replica.upstream
        if upstream is None:
            return HintResult(HintOutcome.REFUSED, "the engine is being started")
        try:
            if replica.traits.keeps_prefixes is None:
                return await _passed_on(upstream, hint)
            for begun in _beginnings(hint["messages"]):
                try:
                    await upstream.post(CHAT.path, sse.encode(_one_token(replica, {**hint, "messages": begun})))
                except ApiError as error:
                    if error.status >= 500:
                        raise
                    break  # its template does not allow such an ending, or the hint is too long: the whole will tell
            await upstream.post(CHAT.path, sse.encode(_one_token(replica, hint)))
        except (ApiError, wire.Malformed) as error:
            return HintResult(HintOutcome.FAILED, self._told(as_api_error(error), upstream).message)
        return HintResult(HintOutcome.READ)


async def _takes_hints(replica: Replica) -> bool:
    if replica.traits.keeps_prefixes is not None:
        return replica.traits.keeps_prefixes
    return replica.upstream is not None and await replica.upstream.is_gateway()


async def _passed_on(upstream: Upstream, hint: Mapping[str, object]) -> HintResult:
    """Pass the hint to a gateway behind this one."""
    said = await upstream.post(wire.PREFIX_PATH, sse.encode(hint))
    why = str(said.get("why") or "")
    if said.get("read") is True:
        return HintResult(HintOutcome.READ)
    return HintResult(HintOutcome.FAILED if said.get("sent") is True else HintOutcome.REFUSED, why)


def _beginnings(messages: object) -> Iterator[Sequence[object]]:
    """Growing beginnings of the messages, one piece further each time, without the whole."""
    assert isinstance(messages, list)
    since = 0  # characters after the last piece
    for at, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str):
            continue
        cut = -since  # position in this text
        while (cut := cut + _PIECE) < len(content):
            yield [*messages[:at], {**message, "content": content[:cut]}]
        since = len(content) - (cut - _PIECE)


def _one_token(replica: Replica, hint: Mapping[str, object]) -> dict[str, object]:
    """The request to an engine. Some chat templates refuse a conversation without a user message, so one is added."""
    body: dict[str, object] = {**hint, "max_tokens": 1, "temperature": 0}
    messages = hint["messages"]
    if isinstance(messages, list) and messages[-1].get("role") in ("system", "developer"):
        body["messages"] = [*messages, {"role": "user", "content": ""}]
    if replica.alias is not None and hint["model"] == "default":
        body["model"] = replica.alias
    return body


def _at_once(replica: Replica) -> int:
    return replica.slots


async def _ended(tasks: list[asyncio.Task[HintResult]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _objects(value: object) -> list[Mapping[str, object]] | None:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return None
    return value
