"""What the policy sees of vLLM: its requests (`RequestViews`) and its speed (`StepCalibrator`).

Tags of requests are read once, and times made absolute. The step model is scaled by the time that the engine's steps
really take.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ramify.serving.errors import BadTags
from ramify.serving.policy.types import (
    CompoundView,
    GroupView,
    RequestId,
    RequestView,
    SloClass,
    StageEstimate,
    State,
    StepModel,
)
from ramify.serving.protocol.length_sketch import LengthSketch
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.qoe import READING_TBT_S, Reading, usual_ttft_s
from ramify.serving.vllm_plugin.version_adapters import RequestLike

_KEEP_COMPOUNDS = 10_000  # workflows whose first arrival is remembered
_STREAM_TOKENS = 4  # a stream's view is renewed after so many tokens: its reader's buffer counts
_RANDOM, _INDEX = re.compile(r"-[0-9a-f]{8}$"), re.compile(r"[-_][0-9]+$")


@dataclass(slots=True)
class TrackedRequest:
    """One request, while it is in the engine."""

    request: RequestLike
    view: RequestView
    problem: str | None = None  # why its tags cannot be read: it is refused with this
    late_tokens: int = 0  # tokens that came after their due time
    reading: Reading | None = None  # of a stream, token by token


class RequestViews:
    """The requests in the engine.

    Args:
        cached_tokens: asks the prefix cache how many tokens of a request's prompt it holds.
        refresh_tokens: a running request's view is renewed after so many tokens.
    """

    def __init__(self, cached_tokens: Callable[[RequestLike], int], refresh_tokens: int) -> None:
        self._cached_tokens = cached_tokens
        self._refresh_tokens, self._stream_tokens = refresh_tokens, min(_STREAM_TOKENS, refresh_tokens)
        self._next_id = 0
        self._seen: dict[str, TrackedRequest] = {}
        self._streams: dict[str, TrackedRequest] = {}  # requests whose tokens, or whose first token, have a due time
        self._known_as: dict[str, TrackedRequest] = {}  # by every name that clients may know it by
        self._by_id: dict[RequestId, TrackedRequest] = {}
        self._compounds: OrderedDict[str, float] = OrderedDict()  # when the first request of each workflow arrived

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, request: RequestLike) -> TrackedRequest:
        """Start to track a request that has arrived."""
        id_ = RequestId(self._next_id)
        self._next_id += 1
        problem = None
        xargs = (request.sampling_params.extra_args if request.sampling_params else None) or {}
        try:
            tags = SLOTags.from_xargs(xargs)
            sketch = None if tags.length_quantiles is None else LengthSketch.from_wire(tags.length_quantiles)
        except (BadTags, ValueError) as error:
            tags, sketch, problem = SLOTags(), None, str(error)
        view = self._view(id_, request, tags, sketch)
        seen = TrackedRequest(request, view, problem, reading=view.reading)
        self._seen[request.request_id] = seen
        if view.ttft is not None or view.tbt is not None or view.reading is not None:
            self._streams[request.request_id] = seen
        self._by_id[id_] = seen
        for name in _names(request.request_id):
            self._known_as[name] = seen
        return seen

    def remove(self, request_id: str) -> tuple[RequestView, int] | None:
        """Forget a request that has left. Returns its last view and its late tokens; None if it was never here."""
        seen = self._seen.pop(request_id, None)
        if seen is None:
            return None
        self._streams.pop(request_id, None)
        del self._by_id[seen.view.id]
        for name in _names(request_id):
            if self._known_as.get(name) is seen:
                del self._known_as[name]
        return replace(seen.view, generated=seen.request.num_output_tokens, reading=seen.reading), seen.late_tokens

    def delivered(self, places: Mapping[str, int], tokens: Sequence[Sequence[int]], now: float) -> None:
        """Count late tokens among new ones, and what readers have. The n-th token is due at TTFT + n · TBT (thesis,
        chapter 3).

        Args:
            places: each request's index in `tokens`.
            tokens: the new tokens of each request.
            now: the time in seconds.
        """
        for request_id, seen in self._streams.items():
            at = places.get(request_id)
            if at is None or at >= len(tokens) or not (new := len(tokens[at])):  # no tokens in a step without any
                continue
            if seen.reading is not None:
                seen.reading = seen.reading.delivered(now, new)
                continue
            view, before = seen.view, seen.request.num_output_tokens
            begin = view.arrived if view.ttft is None else view.ttft
            if (before == 0 or view.tbt is not None) and now > begin + (before + new - 1) * (view.tbt or 0.0):
                seen.late_tokens += new

    def tightest_s(self) -> float:
        """Return the least time for a token of a stream's reader; infinite without one."""
        return min([one.reading.tbt_s for one in self._streams.values() if one.reading is not None], default=inf)

    def seen(self, id_: RequestId) -> TrackedRequest:
        return self._by_id[id_]

    def id_of(self, request_id: str) -> RequestId:
        return self._seen[request_id].view.id

    def requests(self, ids: Iterable[RequestId]) -> list[RequestLike]:
        by_id = self._by_id
        return [by_id[id_].request for id_ in ids]

    def group_of(self, request_id: str) -> str | None:
        seen = self._seen.get(request_id)
        return None if seen is None or seen.view.group is None else seen.view.group.id

    def chain_of(self, request_id: str) -> str | None:
        """Return the chain of calls that the request belongs to: its workflow, and the branch of that."""
        seen = self._seen.get(request_id)
        return None if seen is None or seen.view.compound is None else seen.view.compound.chain

    def due_of(self, request_id: str) -> float | None:
        """Return the earliest time by which the request must have begun or ended, or its reader wants text; None
        without one.
        """
        seen = self._seen.get(request_id)
        if seen is None:
            return None
        view = seen.view
        limits = (
            view.deadline,
            None if view.generated else view.ttft,
            None if view.generated else view.admit_by,
            None if seen.reading is None else seen.reading.dry_at,
        )
        return min([limit for limit in limits if limit is not None], default=None)

    def waiting(self, requests: Iterable[RequestLike]) -> list[RequestView]:
        """Return the views of waiting requests.

        Most of a long queue has not started, and is found unchanged here without a call of `view_of`: a request
        that waited before, and has neither started nor been preempted, has not changed.
        """
        seen, waiting = self._seen, State.WAITING
        return [
            view
            if (view := seen[request.request_id].view).state is waiting
            and not (view.generated or request.num_preemptions or request.num_output_tokens)
            else self.view_of(request, State.PREEMPTED if request.num_preemptions else waiting)
            for request in requests
        ]

    def view_of(self, request: RequestLike, state: State) -> RequestView:
        """Return the request's view: the same object while nothing that matters has changed."""
        seen = self._seen[request.request_id]
        view, generated = seen.view, request.num_output_tokens
        if (
            view.state is state
            and generated - view.generated < (self._refresh_tokens if view.reading is None else self._stream_tokens)
            and (generated > 0) == (view.generated > 0)
        ):
            return view
        computed = request.num_computed_tokens if state in (State.RUNNING, State.PAUSED) else 0
        cached = view.cached_tokens
        if state is State.PREEMPTED:  # its tokens may still be in the prefix cache
            cached = self._cached_tokens(request)
        seen.view = view.moved_on(state, generated, computed, cached, seen.reading)
        return seen.view

    def refine(self, request_id: str, sketch: LengthSketch) -> bool:
        """Use a new length sketch from the analyzer. Returns False if the request has left.

        `request_id` is the id that clients see (`_names`).
        """
        seen = self._known_as.get(request_id)
        if seen is None:
            return False
        seen.view = replace(seen.view, sketch=sketch)
        return True

    def reprice_group(self, group: str) -> bool:
        """Update the prefix hits of a fork group after a sibling computed the prompt. Returns whether one changed."""
        siblings = (one for one in self._seen.values() if one.view.group is not None and one.view.group.id == group)
        found = False
        for seen in siblings:
            if seen.view.state is not State.WAITING:
                continue
            cached = self._cached_tokens(seen.request)
            if cached != seen.view.cached_tokens:
                seen.view = replace(seen.view, cached_tokens=cached)
                found = True
            elif not found:
                return False  # their prompt is one: a look at the first is enough in most steps
        return found

    def _view(self, id_: RequestId, request: RequestLike, tags: SLOTags, sketch: LengthSketch | None) -> RequestView:
        arrived = request.arrival_time
        compound = self._compound(tags, arrived)
        deadline = _after(arrived, tags.slo_deadline_s)
        if compound is not None and compound.deadline is not None:
            deadline = compound.deadline if deadline is None else min(deadline, compound.deadline)
        elif tags.compound_deadline_at is not None:
            deadline = tags.compound_deadline_at if deadline is None else min(deadline, tags.compound_deadline_at)
        kind, reading = slo_class_of(tags), None
        if kind is SloClass.STREAM:
            ttft_s = usual_ttft_s(request.num_prompt_tokens) if tags.slo_ttft_s is None else tags.slo_ttft_s
            reading = Reading(arrived + ttft_s, tags.slo_tbt_s or READING_TBT_S)
        return RequestView(
            id_,
            arrived,
            kind,
            deadline,
            _after(arrived, tags.slo_ttft_s) if reading is None else None,
            tags.slo_tbt_s if reading is None else None,
            _after(arrived, tags.slo_waiting_s),
            prompt_tokens=request.num_prompt_tokens,
            cached_tokens=self._cached_tokens(request),
            sketch=sketch,
            weight=1.0 if tags.goodput_weight is None else tags.goodput_weight,
            compound=compound,
            group=GroupView.of(tags),
            max_tokens=request.max_tokens,
            reading=reading,
        )

    def _compound(self, tags: SLOTags, now: float) -> CompoundView | None:
        if tags.compound_id is None:
            return None
        first = self._compounds.setdefault(tags.compound_id, now)
        self._compounds.move_to_end(tags.compound_id)
        if len(self._compounds) > _KEEP_COMPOUNDS:
            self._compounds.popitem(last=False)
        ends = [at for at in (_after(first, tags.compound_deadline_s), tags.compound_deadline_at) if at is not None]
        rest = tags.plan_rest or ()
        return CompoundView(
            tags.compound_id,
            tags.compound_stage or 0,
            tags.compound_stages,
            tags.compound_width or 1,
            tags.compound_last == 1,
            min(ends, default=None),
            tuple(StageEstimate(*rest[i : i + 4]) for i in range(0, len(rest), 4)),
            _after(now, tags.compound_due_s),
            tags.compound_branch,
            tags.compound_ttl_s,
        )


def _names(request_id: str) -> set[str]:
    """Return the ids that clients may see for vLLM's request id.

    `chatcmpl-A` is the answer of `chatcmpl-A-1a2b3c4d`, `cmpl-A` of `cmpl-A-0-1a2b3c4d`, `resp_A` of
    `resp_A_0-1a2b3c4d`. A chat has no index: clients may end its name with a number of their own.
    """
    outer = _RANDOM.sub("", request_id)
    return {request_id, outer if outer.startswith("chatcmpl-") else _INDEX.sub("", outer)}


def slo_class_of(tags: SLOTags) -> SloClass:
    """Return the class that the tags name; else the one that their limits mean; else best effort."""
    if tags.slo_class is not None:
        return SloClass(tags.slo_class)
    if tags.compound_id is not None:
        return SloClass.COMPOUND
    if tags.slo_deadline_s is not None or tags.compound_deadline_at is not None:
        return SloClass.DEADLINE
    return SloClass.BEST_EFFORT if tags.slo_ttft_s is None and tags.slo_tbt_s is None else SloClass.LATENCY


def _after(start: float, seconds: float | None) -> float | None:
    return None if seconds is None else start + seconds


_LEARN = 0.05  # weight of one step
_BAND = 1.2  # the model changes only when it is off by this factor: each change costs the policy its sorted keys
_IDLE = 20.0  # a step this many times longer than the model says was a pause of the machine
_FIRST = 5  # steps before the first correction


class StepCalibrator:
    """Times steps and scales the step model `start`.

    A step is timed from the end of the one before it, or from its scheduling if that was later, to its own end.
    This holds whether or not steps overlap. Times are added up before they are divided: the mean of single ratios
    would be far off where prompts make one step thirty times as long as the next (docs/decisions/046).
    """

    def __init__(self, start: StepModel, calibrate: bool) -> None:
        self._start, self.model = start, start
        self._calibrate = calibrate
        self._used = 1.0  # how many times slower the model is than the start
        # output, when it was scheduled, ms by the start model
        self._flying: deque[tuple[Any, float, float]] = deque()
        self._landed_at = float("-inf")
        self._seen_ms, self._said_ms = 0.0, 0.0  # decaying sums: the newest steps weigh most
        self._steps = 0
        self.prefill = 0.0  # prompt tokens of a step, in the mean

    def scheduled(self, output: Any, now: float, context_tokens: int) -> None:
        """Note a scheduled step. `output` is vLLM's, `context_tokens` the tokens in KV of the running requests."""
        tokens, sequences = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
        if sequences:
            self.prefill += _LEARN * (max(0, tokens - sequences) - self.prefill)
        if self._calibrate:  # also an empty step, so that the order of the ends is right
            said_ms = self._start.step_ms(sequences, context_tokens, max(0, tokens - sequences)) if sequences else 0.0
            self._flying.append((output, now, said_ms))

    def landed(self, output: Any, now: float) -> None:
        """Note that a step has ended: its tokens are there."""
        while self._flying:
            flown, since, said_ms = self._flying.popleft()
            if flown is output:
                self._learn((now - max(since, self._landed_at)) * 1000, said_ms)
                break
        self._landed_at = now

    def _learn(self, seen_ms: float, said_ms: float) -> None:
        known = self._steps >= _FIRST
        if seen_ms <= 0 or said_ms <= 0 or (known and seen_ms * self._said_ms > _IDLE * said_ms * self._seen_ms):
            return
        self._steps += 1
        keep = 1 - (_LEARN if known else 0.5)
        self._seen_ms = keep * self._seen_ms + seen_ms
        self._said_ms = keep * self._said_ms + said_ms
        factor = self._seen_ms / self._said_ms
        if self._steps >= _FIRST and not self._used / _BAND <= factor <= self._used * _BAND:
            self._used, self.model = factor, self._start.scaled(factor)
