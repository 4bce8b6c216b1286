"""Model calls of a run: sent in stages, tagged with the remaining deadline, and journalled one by one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace

from ramify.compiler.plan import STAGES, OpId, Plan
from ramify.fork_engine import crash_points
from ramify.runtime.codec import codec
from ramify.runtime.execution.equal_answers import marks_of, refuse_swapped_answers
from ramify.runtime.execution.model_call_rows import failed_row, row_of
from ramify.runtime.execution.streamed_answers import (
    Answered,
    Hear,
    answer_pieces,
    recorded_as_read,
    refuse_other_words,
)
from ramify.runtime.journal.cancelled_calls import record_cancelled, until_cancelled_again
from ramify.runtime.journal.failures import RaisedBy
from ramify.runtime.journal.journal import Journal
from ramify.runtime.records import BranchPath, LLMRecord, RunRecord
from ramify.runtime.reuse.reuse import Answers, compare_answers
from ramify.runtime.user_code.call_slo import NOTHING_SAID, CallSLO, call_slo
from ramify.serving.client import LLMClient
from ramify.serving.errors import DeadlineInfeasible
from ramify.serving.protocol.tags import SLOTags
from ramify.serving.types import ChatRequest, ChatResult

_LONGEST_TAG = 256

LLMProvider = Callable[[], Awaitable[LLMClient]]
"""Returns the run's client; starts an engine first if none runs."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """Calls that are made at once. `siblings`: all have the same prompt, which an engine needs to read only once."""

    index: int
    width: int
    siblings: bool
    said: CallSLO
    order: str

    @property
    def spare(self) -> int:
        """How many of its answers are not waited for."""
        return 0 if self.said.need is None else self.width - self.said.need


class LLMCalls:
    """Makes the model calls of one run. A stage is a set of calls that are made at once; it waits for all of them."""

    def __init__(
        self,
        record: RunRecord,
        plan: Plan,
        journal: Journal,
        provider: LLMProvider,
        clock: Callable[[], float],
        answers: Answers | None = None,
        *,
        by_branch: bool = False,
    ) -> None:
        """`by_branch`: the calls of a branch continue each other's context, and `release` says when that ends."""
        self._by_branch = by_branch
        self._answers = answers  # None: no reuse, every call goes to the model
        self._record = record
        self._plan = plan
        self._journal = journal
        self._provider = provider
        self._clock = clock
        self._stage = 0
        self.under_way = 0  # number of stages in progress
        self._gateway: LLMClient | None = None  # if its answers come through a Ramify gateway
        self._asked: set[BranchPath] = set()  # branches whose calls it answered, and that are not released
        self._telling: set[asyncio.Task[None]] = set()

    def stage(
        self,
        requests: list[ChatRequest],
        *,
        op_id: OpId,
        place: str,
        branch: BranchPath,
        step_key: str | None,
        said: CallSLO = NOTHING_SAID,
        order: str = "",
    ) -> Awaitable[list[ChatResult]]:
        """Return an awaitable of the results, in the order of the requests. It raises the first `LLMError`; the calls
        that succeeded are journalled. `order`: how calls at this place follow the order of a set, as `UNORDERED`."""
        rows = self._rows(requests, op_id, place, branch, step_key)
        return self._send_in_turn(requests, rows, self._next_stage(rows, _are_siblings(requests), said, order))

    def stream(
        self,
        request: ChatRequest,
        *,
        op_id: OpId,
        place: str,
        branch: BranchPath,
        step_key: str | None,
        said: CallSLO = NOTHING_SAID,
        order: str = "",
        pace_s: float | None = None,
    ) -> Answered:
        """Return the pieces of one answer, and then the whole, which is journalled. A stage of its own.

        The pieces have no turn among the results of other operations: they come as the model makes them, or at once.
        """
        rows = self._rows([request], op_id, place, branch, step_key)
        return self._streamed(request, rows[0], self._next_stage(rows, False, said, order), pace_s)

    def _rows(
        self, requests: list[ChatRequest], op_id: OpId, place: str, branch: BranchPath, step_key: str | None
    ) -> list[LLMRecord]:
        digests = [codec.digest(request) for request in requests]
        return [
            LLMRecord(
                run_id=self._record.id,
                seq=0,
                key=self._journal.key(place, "llm", digest[:16]),
                op_id=op_id,
                branch=branch,
                step_key=step_key,
                request_json=codec.encode(request),
                request_digest=digest,
                result_json="",
                result_digest="",
            )
            for request, digest in zip(requests, digests, strict=True)
        ]

    def _next_stage(self, rows: list[LLMRecord], siblings: bool, said: CallSLO, order: str) -> _Stage:
        index, self._stage = self._stage, self._stage + 1
        if rows and rows[0].step_key is None:
            refuse_swapped_answers(self._journal, self._plan, order, rows)
        return _Stage(index, len(rows), siblings, said, order)

    def release(self, branches: Sequence[BranchPath]) -> None:
        """Let engines give up the KV of branches that make no more calls, and of theirs. Does not wait."""
        roots = tuple(f"{branch}/" for branch in branches)
        over = sorted(one for one in self._asked if f"{one}/".startswith(roots))
        self._asked.difference_update(over)
        if over and self._gateway is not None:
            task = asyncio.create_task(self._gateway.release(self._record.id, [branch_tag(one) for one in over]))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def aclose(self) -> None:
        """Let engines give up the KV of the whole run."""
        if self._gateway is not None and (self._asked or self._telling):
            await asyncio.gather(*self._telling, self._gateway.release(self._record.id), return_exceptions=True)

    def deadline_left(self) -> float | None:
        """Return the seconds until the deadline, negative if it has passed; None without a deadline."""
        if self._record.deadline_s is None:
            return None
        return self._record.deadline_s - self._journal.consumed_s()

    async def _send_in_turn(
        self, requests: list[ChatRequest], rows: list[LLMRecord], stage: _Stage
    ) -> list[ChatResult]:
        if not rows or rows[0].step_key is not None:  # the step's own result has a turn
            return await self._send_all(requests, rows, stage)
        failed = rows[0].key
        known = [row.key for row in rows if self._journal.is_recorded(row.key)]
        stands, begun = self._journal.stands(failed), self._clock()
        try:
            keys, spare = (known, 0) if stands else ([row.key for row in rows], stage.spare)
            async with self._journal.turns.of(*keys, spare=spare):
                await until_cancelled_again(self._journal, failed, "model calls")
                if stands and (error := self._journal.failed(failed)) is not None:
                    raise error
                return await self._send_and_record_failure(requests, rows, stage)
        except Exception as error:
            self._journal.followers.told(error, RaisedBy(failed, None, rows[0].branch))
            raise
        except asyncio.CancelledError as error:
            enough = sum(self._journal.was_recorded(row.key) for row in rows) >= len(rows) - stage.spare
            await record_cancelled(self._journal, row_of(rows[0], begun, self._clock()), error, had_result=enough)
            raise

    async def _streamed(self, request: ChatRequest, row: LLMRecord, stage: _Stage, pace_s: float | None) -> Answered:
        async def send(hear: Hear) -> ChatResult:
            self.under_way += 1
            try:
                return await self._send(request, row, stage, hear)
            finally:
                self.under_way -= 1

        answered = answer_pieces(send, pace_s)
        if row.step_key is None:  # a step's own result counts, and what it read of a stream is lost with it
            answered = recorded_as_read(answered, row, self._journal, self._clock)
        async with aclosing(answered):
            async for piece in answered:
                yield piece

    async def _send_and_record_failure(
        self, requests: list[ChatRequest], rows: list[LLMRecord], stage: _Stage
    ) -> list[ChatResult]:
        """Send a stage. If it fails, record that: the workflow may catch the error and go on."""
        begun = self._clock()
        try:
            return await self._send_all(requests, rows, stage)
        except Exception as error:
            if error is not self._journal.stopped:
                await self._journal.record(failed_row(rows[0], error, begun, self._clock()))
            raise

    async def _send_all(self, requests: list[ChatRequest], rows: list[LLMRecord], stage: _Stage) -> list[ChatResult]:
        if stage.spare:
            return await self._send_until_enough(requests, rows, stage)
        pairs = zip(requests, rows, strict=True)
        sent = [self._send(request, row, stage) for request, row in pairs]
        self.under_way += 1
        try:
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
        finally:
            self.under_way -= 1
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, ChatResult)]

    async def _send_until_enough(
        self, requests: list[ChatRequest], rows: list[LLMRecord], stage: _Stage
    ) -> list[ChatResult]:
        """Send a stage of which some answers suffice, and cancel the other calls when these are there. They are the
        answers that were recorded first, so a replay takes the same ones and sends nothing."""
        keys, need = [row.key for row in rows], len(rows) - stage.spare
        answers = dict[str, ChatResult]()
        if len(self._journal.first_answered(keys, need)) < need:
            pairs = zip(requests, rows, strict=True)
            tasks = {row.key: asyncio.create_task(self._send(request, row, stage)) for request, row in pairs}
            self.under_way += 1
            try:
                await self._until_enough(list(tasks.values()), need)
            finally:
                for task in tasks.values():
                    task.cancel()
                await asyncio.gather(*tasks.values(), return_exceptions=True)
                self.under_way -= 1
            answers = {
                key: task.result() for key, task in tasks.items() if not task.cancelled() and not task.exception()
            }
        chosen = set(self._journal.first_answered(keys, need))
        taken = ((row, answers.get(row.key)) for row in rows if row.key in chosen)
        return [self._recorded_answer(row.key) if answer is None else answer for row, answer in taken]

    async def _until_enough(self, calls: Sequence[asyncio.Task[ChatResult]], need: int) -> None:
        """Wait until so many calls have succeeded. Raises the first error once they cannot any more."""
        left = set(calls)
        while sum(call.done() and call.exception() is None for call in calls) < need:
            self._journal.refuse_when_stopped()
            failed = [call for call in calls if call.done() and call.exception() is not None]
            if len(failed) > len(calls) - need:
                failed[0].result()
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        self._journal.refuse_when_stopped()

    def _recorded_answer(self, key: str) -> ChatResult:
        known = self._journal.served_llm(key)
        assert known is not None, "only for an answer that is recorded"
        answer: ChatResult = codec.decode(known.result_json)
        return answer

    async def _send(
        self, request: ChatRequest, row: LLMRecord, stage: _Stage, hear: Hear | None = None
    ) -> ChatResult:
        if (known := self._journal.served_llm(row.key)) is not None:
            result: ChatResult = codec.decode(known.result_json)
            return result
        if row.step_key is None:  # not inside a step: a step that has begun may go on, its effect may have happened
            self._journal.refuse_when_stopped()
        self._refuse_when_late()
        client = await self._provider()
        self._refuse_when_late()
        if self._answers is None or not self._answers.reusable(request, honours_seed=client.honours_seed):
            return await self._call_model(client, request, row, stage, hear)
        async with self._answers.alone(request):
            source = await self._answers.find(request)
            if source is not None and not self._answers.to_be_checked():
                return await self._reuse_answer(row, source)
            result = await self._call_model(client, request, row, stage, hear)
            if source is not None and (wrong := compare_answers(source, result)) is not None:
                raise self._journal.stop(wrong)
            return result

    async def _reuse_answer(self, row: LLMRecord, source: LLMRecord) -> ChatResult:
        now = self._clock()
        taken = replace(
            row,
            result_json=source.result_json,
            result_digest=source.result_digest,
            reused_from=f"{source.run_id}#{source.seq}",
            started_at=now,
            ended_at=now,
        )
        await self._journal.record_llm(taken)
        result: ChatResult = codec.decode(source.result_json)
        return result

    async def _call_model(
        self, client: LLMClient, request: ChatRequest, row: LLMRecord, stage: _Stage, hear: Hear | None = None
    ) -> ChatResult:
        branch = branch_tag(row.branch) if self._by_branch else None
        tags = replace(self._tags(stage), compound_branch=branch)
        begun = self._clock()
        crash_points.point("about to ask")
        if hear is None:
            result = await client.chat(request, tags=tags, deadline_s=tags.slo_deadline_s)
        else:
            async with client.stream(request, tags=tags, deadline_s=tags.slo_deadline_s) as answer:
                async for text in answer:
                    hear(text)
            result = answer.result
            if row.step_key is None:
                refuse_other_words(self._journal, row.key, result.text)
        crash_points.point("answer there")
        if result.ledger is not None:
            self._gateway = client
            self._asked.add(row.branch)
        await self._journal.record_llm(
            replace(
                row,
                result_json=codec.encode(result),
                result_digest=codec.digest(replace(result, ledger=None)),
                tags_json=codec.encode(
                    {k: v for k, v in asdict(tags).items() if v is not None}
                    | marks_of(self._journal, row.key, stage.order)
                ),
                started_at=begun,
                ended_at=self._clock(),
            )
        )
        return result

    def tags(self) -> SLOTags:
        """Return the tags for calls that a step makes with its own client: the run's deadline and what the running
        code says of its calls, but no stage."""
        left = self.deadline_left()
        at = None if left is None else self._clock() + max(0.0, left)
        tags = SLOTags(
            slo_class="compound", compound_id=self._record.id, compound_deadline_at=at, app_id=self._record.name
        )
        return call_slo().on(tags)

    def _refuse_when_late(self) -> None:
        left = self.deadline_left()
        if left is not None and left <= 0:
            raise DeadlineInfeasible(
                f"the deadline of {self._record.deadline_s:g} s passed {-left:.1f} s ago, so the model is not asked. "
                f"Resume with more time: `ramify resume {self._record.id} --deadline 60s`",
                earliest_feasible_s=None,
            )

    def _tags(self, stage: _Stage) -> SLOTags:
        left = self.deadline_left()
        grouped = stage.siblings and STAGES in self._plan.passes
        tags = SLOTags(
            slo_deadline_s=left,
            slo_class="compound",
            compound_id=self._record.id,
            compound_stage=stage.index,
            compound_stages=self._plan.stages,
            compound_width=stage.width,
            plan_rest=self._plan.rest_after(stage.index) or None,
            fork_group=f"{self._record.id}.{stage.index}" if grouped else None,
            fork_size=stage.width if grouped else None,
            compound_deadline_at=None if left is None else self._clock() + left,
            compound_due_s=self._stage_left(stage.index),
            app_id=self._record.name,
        )
        return stage.said.on(tags)

    def _stage_left(self, index: int) -> float | None:
        """Return the seconds until this stage is due, by its share φ of the deadline: 0 if that has passed, None
        without a deadline or if the plan has no stages. A stage that the plan does not expect gets a part of the time
        left."""
        left = self.deadline_left()
        if self._record.deadline_s is None or left is None or STAGES not in self._plan.passes:
            return None
        expected = self._plan.expected
        if index < len(expected):
            return max(0.0, expected[index].share * self._record.deadline_s - self._journal.consumed_s())
        return max(0.0, left) / self._stages_left(index)

    def _stages_left(self, index: int) -> int:
        """Return among how many stages, this one included, the time left is divided if none was measured: the number
        in the code, or, if the code does not tell, one more than there will have been after this stage."""
        known = self._plan.stages
        return known - index if known is not None and known > index else index + 2


def branch_tag(branch: BranchPath) -> str:
    """Return the name of a branch in the tags of its calls, which are short."""
    return branch if len(branch) <= _LONGEST_TAG else hashlib.sha256(branch.encode()).hexdigest()


def _are_siblings(requests: list[ChatRequest]) -> bool:
    return len({(request.model, request.messages) for request in requests}) == 1 < len(requests)
