"""The gateway's use of the request analyzer.

A call gets a length forecast before its first token, and a better one every `INTERVAL` tokens. A workflow without a
plan gets the stages still to come from the history of similar ones. In return the analyzer learns from calls and
workflows that end. Nothing here can delay a call for longer than the analyzer client's patience, or fail it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ramify.serving.errors import AnalyzerDown, BadFrame
from ramify.serving.gateway.engine_messages import EngineMessages
from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.records.call_records import belongs, told
from ramify.serving.gateway.records.calls import Call
from ramify.serving.gateway.records.slo_tracker import MOST_STAGES, Compound
from ramify.serving.lengths.client import AnalyzerClient
from ramify.serving.lengths.learner import BinCoverage
from ramify.serving.lengths.pattern_graph import Kind, Node
from ramify.serving.lengths.service import Stats
from ramify.serving.lengths.types import INTERVAL, Ask, Basis, Ended, Estimates
from ramify.serving.protocol.length_sketch import LengthSketch

_LIMIT = 4096  # tokens of an answer if the request sets no limit
_ENDS = 4000  # characters at each end of a prompt that the analyzer looks at
_UNKNOWN = "tools"  # stands for what happened between two stages, if no message tells which tools ran
_WORKFLOWS = 4096  # remembered; the oldest go first
_SILENT_S = 600.0  # a workflow without a call for so many seconds is over, even if no call was announced as the last
_MOST_CALLS = 1024  # of a stage


@dataclass
class _Followed:
    """A call whose length is being predicted."""

    ask: Ask
    tools: Mapping[str, str] = field(default_factory=dict)  # whose results it brings: names by the id of the call
    alone: bool = True  # one answer: if several are asked for, the tokens counted are the length of none
    bound: LengthSketch | None = None
    text: list[str] = field(default_factory=list)
    asked_at: int = 0  # tokens generated at the last prediction
    asking: asyncio.Task[None] | None = None


@dataclass
class _Workflow:
    """What a workflow run has done so far, stage by stage."""

    app: str
    compound: Compound
    stages: list[list[Node]] = field(default_factory=list)
    gaps: dict[int, float] = field(default_factory=dict)  # seconds before the first call of each stage
    seen: set[str] = field(default_factory=set)  # ids of the tool calls whose results calls have brought
    ended_at: float = 0.0  # when its latest stage so far ended
    heard_at: float = 0.0  # when its last call so far ended

    def name_tools(self, stage: int, tools: Mapping[str, str]) -> None:
        """Note the tools whose results a call of that stage brought. How long each took is not known, so each has all
        of the time before the stage. What the first stage brings ran before the workflow began."""
        fresh = {call: name for call, name in tools.items() if call not in self.seen}
        if not stage or not fresh or len(self.stages[stage]) >= _MOST_CALLS:
            return
        self.seen |= fresh.keys()
        unknown = Kind.TOOL, _UNKNOWN
        known = [node for node in self.stages[stage] if (node.kind, node.name) != unknown]
        gap = self.gaps.get(stage, 0.0)
        self.stages[stage] = [*(Node(Kind.TOOL, name, stage, seconds=gap) for name in fresh.values()), *known]


class LengthForecasts:
    """The analyzer's part in one gateway. `changed` is called when a running or waiting call has a new sketch."""

    def __init__(self, client: AnalyzerClient, changed: Callable[[], None], *, engines: EngineMessages) -> None:
        self._client = client
        self._changed = changed
        self._engines = engines
        self._name = secrets.token_hex(4)  # of this gateway: others number their calls alike
        self._calls: dict[int, _Followed] = {}
        self._workflows: OrderedDict[str, _Workflow] = OrderedDict()
        self._asking: set[asyncio.Task[None]] = set()

    async def begin(
        self,
        call: Call,
        model: str,
        prompt: str,
        messages: int,
        alone: bool = True,
        tools: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Before the call waits for a slot: predict its length, and the stages after its own.

        alone: one answer is asked for. If several are, each is as long as predicted, but nothing is learnt from them.
        tools: the names of the tools whose results the call brings, by the id of the tool call.
        """
        tags = call.tags
        self._sweep(call.arrived)
        ask = Ask(
            model=model,
            prompt=prompt if len(prompt) <= 2 * _ENDS else prompt[:_ENDS] + prompt[-_ENDS:],
            limit=call.max_tokens or _LIMIT,
            app=tags.app_id or "",
            stage=tags.compound_stage or 0,
            prompt_tokens=call.prompt_tokens,
            messages=messages,
            call=f"{self._name}.{call.id}",
        )
        followed = self._calls[call.id] = _Followed(ask, tools, alone)
        if call.compound is not None and not tags.plan_rest:
            await self._match(call)
        if call.sketch is None:
            (forecast,) = await self._client.predict([ask])
            if forecast.basis is not Basis.COLD:  # a cold forecast says no more than the limit does
                call.predict(forecast.sketch)
        followed.bound = call.sketch

    def progressed(self, call: Call, text: str, answer_id: str | None) -> None:
        """A piece of the call's answer came."""
        followed = self._calls.get(call.id)
        if followed is None or not followed.alone:
            return
        followed.text.append(text)
        due = call.chunks - followed.asked_at >= INTERVAL and call.tags.length_quantiles is None
        if due and (followed.asking is None or followed.asking.done()):
            followed.asked_at = call.chunks
            followed.asking = asyncio.create_task(self._again(call, followed, answer_id))
            self._asking.add(followed.asking)
            followed.asking.add_done_callback(self._asking.discard)

    def ended(self, call: Call, *, whole: bool) -> None:
        """The call has ended. Only a whole answer teaches a length."""
        followed = self._calls.pop(call.id, None)
        if followed is None:
            return
        if whole and call.chunks and followed.alone:
            self._client.observe(Ended(followed.ask, call.chunks, call.cut, followed.bound))
        if whole and call.compound is not None:
            self._note(call, followed)
        workflow = None if call.compound is None else self._workflows.get(call.compound.id)
        if workflow is not None and workflow.compound is call.compound and call.compound.over:
            self._over(workflow)

    async def history(self, app: str) -> Estimates | None:
        """The stages that workflows with this `app_id` have; None if none is known. Raises ApiError while the
        analyzer is away."""
        try:
            return await self._client.expected(app)
        except (AnalyzerDown, BadFrame) as error:
            said = "the analyzer, which knows the stages of workflows, does not answer: try again"
            raise ApiError(503, "analyzer_unavailable", said) from error

    async def stats(self) -> Stats:
        """The analyzer's statistics. Raises AnalyzerDown, BadFrame."""
        return await self._client.stats()

    async def coverage(self) -> tuple[BinCoverage, ...]:
        """How well the bounds held recently, by tokens generated; empty while the analyzer is away."""
        stats = await self._known()
        return () if stats is None else stats.coverage

    async def apps(self, client: str = "") -> dict[str, dict[str, object]]:
        """What was learnt of each of the client's applications, the last heard of first; empty while the analyzer is
        away. See `AppCoverage`; `workflows`: different courses of its workflows."""
        if (stats := await self._known()) is None:
            return {}
        return {
            told(one.app, client): {
                "answers": one.answers,
                "workflows": stats.app_patterns.get(one.app, 0),
                "judged": one.judged,
                "covered": one.covered if one.judged else None,
                "covered_at_least": one.lower if one.judged else None,
                "reserved": one.reserved if one.judged else None,
            }
            for one in reversed(stats.apps)
            if belongs(one.app, client)
        }

    async def _known(self) -> Stats | None:
        try:
            return await self.stats()
        except (AnalyzerDown, BadFrame):
            return None

    async def aclose(self) -> None:
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._client.aclose()

    async def _again(self, call: Call, followed: _Followed, answer_id: str | None) -> None:
        """Predict again from the answer so far, for our policy and the engine's."""
        ask = replace(followed.ask, generated=call.chunks, text="".join(followed.text))
        (forecast,) = await self._client.predict([ask])
        if not forecast.fresh or call.ended is not None:
            return
        call.predict(forecast.sketch)
        if answer_id is not None:
            said = {"request_id": answer_id, "length_quantiles": list(forecast.sketch.to_wire())}
            self._engines.send(call.replica, said)
        self._changed()

    async def _match(self, call: Call) -> None:
        """For a workflow without a plan, take the stages still to come from workflows that began like it."""
        compound, stage = call.compound, call.tags.compound_stage or 0
        assert compound is not None
        if stage == 0 and not call.tags.app_id:
            return  # so far it is like any other workflow, even a stranger's
        done = self._workflows[compound.id].stages if compound.id in self._workflows else []
        if compound.matched == stage or len(done) < stage:
            return
        found = await self._client.match(compound.id, call.tags.app_id or "", done[:stage])
        if found is None:
            call.expect((), None)
        else:  # `rest` begins with the stage that is arriving now
            call.expect(found.rest[1:], found.share(stage))

    def _note(self, call: Call, followed: _Followed) -> None:
        compound, ask = call.compound, followed.ask
        assert compound is not None and call.ended is not None
        workflow = self._workflows.get(compound.id)
        if workflow is None or workflow.compound is not compound:
            workflow = self._workflows[compound.id] = _Workflow(ask.app, compound)
        self._workflows.move_to_end(compound.id)
        while len(self._workflows) > _WORKFLOWS:
            self._workflows.popitem(last=False)
        workflow.heard_at = call.ended
        if compound.recorded or ask.stage > len(workflow.stages) + 64 or ask.stage >= MOST_STAGES:
            return  # a client that continues after its last call, or counts stages in its own way
        while len(workflow.stages) <= ask.stage:
            gap = max(0.0, call.arrived - workflow.ended_at) if workflow.stages else 0.0
            workflow.gaps[len(workflow.stages)] = gap
            workflow.stages.append([Node(Kind.TOOL, _UNKNOWN, len(workflow.stages), seconds=gap)] if gap else [])
        workflow.name_tools(ask.stage, followed.tools)
        seconds = call.ended - call.arrived
        node = Node(Kind.LLM, ask.model, ask.stage, call.prompt_tokens, call.chunks, seconds)
        if len(workflow.stages[ask.stage]) < _MOST_CALLS:
            workflow.stages[ask.stage].append(node)
        workflow.ended_at = call.ended

    def _sweep(self, now: float) -> None:
        """End workflows that have been silent for long. A workflow that ended in a failure, or short of what it
        announced, was broken off, and so may be one whose client left its last call: what it would have done is
        unknown."""
        while self._workflows:
            workflow = next(iter(self._workflows.values()))
            if now < workflow.heard_at + _SILENT_S:
                return
            if workflow.compound.open:
                workflow.heard_at = now
                self._workflows.move_to_end(workflow.compound.id)
            else:
                self._over(workflow, known=workflow.compound.over or workflow.compound.finished)

    def _over(self, workflow: _Workflow, *, known: bool = True) -> None:
        """End a workflow. `known`: nothing is missing after its last call. A run that was resumed, or got answers
        from elsewhere, lacks stages, so it is not recorded as a pattern."""
        compound = workflow.compound
        del self._workflows[compound.id]
        whole = all(any(node.kind is Kind.LLM for node in stage) for stage in workflow.stages)
        if known and compound.ended_well and whole and not compound.recorded and workflow.stages:
            self._client.record(compound.id, workflow.app, workflow.stages)
        compound.recorded = True
