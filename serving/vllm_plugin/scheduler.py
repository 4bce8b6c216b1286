"""ConcordScheduler: vLLM's own AsyncScheduler, told before each step whom to prefer.

A step goes: (1) new length sketches come in; (2) if something has come, gone or run out of time, the policy decides
over views of all requests; (3) the verdict is performed on vLLM's queues: what cannot be met is ended with its
reason, running requests are preempted, paused or resumed, the waiting are put in order; (4) `super().schedule()` does
the rest as it always does: chunked prefill, prefix cache, KV blocks. Nothing of vLLM is copied or patched.

Pausing: a running request whose `next_decode_eligible_step` lies in the far future is passed by in the running loop
and keeps its KV. It still counts as active, so the limit of active requests is raised by as many as are paused, up to
`max_num_seqs`: start vLLM with `--max-num-active-seqs B --max-num-seqs B+room`. Without room, room is made by
preemption.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from ramify.serving.policy.refusal_probe import RefusalProbe
from ramify.serving.policy.registry import UnknownPolicy, make_live_policy
from ramify.serving.policy.types import Capacity, Finished, Policy, Refusal, RequestId, State, Verdict, View
from ramify.serving.protocol.wire import refusal_to_line
from ramify.serving.vllm_plugin.calibration import Pace
from ramify.serving.vllm_plugin.errors import BadOptions
from ramify.serving.vllm_plugin.length_updates import LengthUpdates
from ramify.serving.vllm_plugin.options import PluginOptions
from ramify.serving.vllm_plugin.reports import Costs, Trace
from ramify.serving.vllm_plugin.request_views import Seen, Views
from ramify.serving.vllm_plugin.version_adapters import RequestLike, adapter_for

_CONTEXT_STEPS = 16  # the context of all that run is added up once in so many steps


class ConcordScheduler(AsyncScheduler):
    """Raises UnsupportedVllm and BadOptions when it is made."""

    # A replay puts its own here. Requests' arrival times must be on the same clock.
    clock: Callable[[], float] = staticmethod(time.time)
    stamp: Callable[[], float] = staticmethod(time.monotonic)  # for vLLM's own events

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._adapter = adapter_for(vllm.__version__)
        super().__init__(*args, **kwargs)
        options = self._options = PluginOptions.of(self.vllm_config.additional_config)
        try:
            self._decider: Policy = make_live_policy(options.policy, **options.policy_options)
        except UnknownPolicy as error:
            raise BadOptions("policy", str(error)) from error
        self._doubt: RefusalProbe | None = RefusalProbe()
        self._slots: int = self.max_num_active_reqs  # type: ignore[has-type]
        self._views = Views(lambda request: self._adapter.cached_tokens(self, request), options.refresh_tokens)
        self._paused: set[str] = set()
        self._refused: list[tuple[RequestLike, str]] = []
        self._unreadable: list[Seen] = []
        self._changed = True
        self._wake_at: float | None = None
        self._budget: int | None = None
        self._decided_step = 0
        self._pace = Pace(options.step, options.calibrate)
        self._context = 0  # tokens in KV, of those that run
        self._refinements = LengthUpdates(options.socket)
        self._trace = Trace(options.trace)
        self._costs = Costs(options.report)

    def decide_by(self, policy: Policy) -> None:
        """Before the first request: this one decides, in the place of the one that the options name, and its refusals
        are final."""
        self._decider, self._doubt = policy, None

    # What vLLM calls

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            seen = self._views.add(request)
            tags = getattr(request.sampling_params, "extra_args", None)
            self._trace.arrived(self.clock(), request.request_id, tags)
            self._changed = True
            if seen.problem is not None:
                self._unreadable.append(seen)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        now = self.clock()
        for request_id, sketch in self._refinements.take():
            self._changed = self._views.refine(request_id, sketch) or self._changed
        self._forget_paused_that_were_preempted()
        if self._unreadable:
            self._refuse([Refusal(seen.view.id, f"tags: {seen.problem}") for seen in self._unreadable], now)
            self._unreadable.clear()
        if self._must_decide(now):
            began = time.thread_time()
            verdict = self._decider.decide(self._view(), now)
            self._perform(verdict, now)
            self._costs.decided(time.thread_time() - began)
            self._changed, self._wake_at, self._decided_step = False, verdict.wake_at, self.current_step
            # A prompt that may not be cut would wait for ever where it is longer than the budget.
            self._budget = verdict.budget if self.scheduler_config.enable_chunked_prefill else None
        self.max_num_active_reqs = min(self._slots + len(self._paused), self.max_num_running_reqs)
        output = self._within_budget(throttle_prefills)
        if self.current_step % _CONTEXT_STEPS == 0:
            self._context = sum([request.num_computed_tokens for request in self.running])
        self._pace.scheduled(output, now, self._context)
        if again := self._costs.waiting_again:
            computed = {i: self.requests[i].num_computed_tokens for i in again}
            self._costs.scheduled(output.num_scheduled_tokens, computed, now)
        self._costs.stepped(now)
        for new in output.scheduled_new_reqs:
            if (group := self._views.group_of(new.req_id)) is not None:
                self._changed = self._views.reprice_group(group) or self._changed
        return output

    def _within_budget(self, throttle_prefills: bool) -> Any:
        """A step of vLLM's, with at most the verdict's prompt tokens beside one token for each that runs."""
        if self._budget is None:
            return super().schedule(throttle_prefills)
        whole: int = self.max_num_scheduled_tokens  # type: ignore[has-type]
        decoding = len(self.running) - sum([request.is_prefill_chunk for request in self.running])
        self.max_num_scheduled_tokens = min(whole, self._budget + decoding)
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.max_num_scheduled_tokens = whole

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, EngineCoreOutputs]:
        now = self.clock()
        self._pace.landed(scheduler_output, now)
        self._views.delivered(model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids, now)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for request, text in self._refused:
            answer = self._adapter.refusal_output(request, text)
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(answer)
        self._refused.clear()
        return outputs

    def shutdown(self) -> None:
        self._costs.tell(self.clock(), at_once=True)
        self._refinements.close()
        self._trace.close()
        super().shutdown()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """By whom ever: the policy, or vLLM where KV runs out."""
        self._costs.preempted(request.request_id, request.num_computed_tokens, self.clock())
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._paused.discard(request.request_id)
        self._costs.left(request.request_id, self.clock())
        left = self._views.remove(request.request_id)
        # Its slot goes to the head of the queue, which is in order; but only the policy resumes what is paused.
        self._changed = self._changed or bool(self._paused)
        if left is not None:
            view, late = left
            now = self.clock()
            ended_well = request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
            met = ended_well and not late and (view.deadline is None or now <= view.deadline)
            self._decider.observe(Finished(view, now, met, view.generated - late if ended_well else 0))
        freed = super()._free_request(request, delay_free_blocks)
        if self._trace.writes:
            kv_free, status = self._adapter.free_tokens(self), request.status.name
            self._trace.ended(self.clock(), request.request_id, status, request.num_output_tokens, kv_free)
        return freed

    # What the policy sees

    def _must_decide(self, now: float) -> bool:
        """Only where there is a choice: with nobody waiting, vLLM goes on as it does."""
        if len(self.waiting) == 0 and not self._paused:
            return False
        if self._changed or (self._wake_at is not None and now >= self._wake_at):
            return True
        return bool(self.current_step - self._decided_step >= self._options.refresh_steps)

    def _view(self) -> View:
        views, paused = self._views, self._paused
        running, held = [], []
        for request in self.running:
            if request.request_id in paused:
                held.append(views.of(request, State.PAUSED))
            else:
                running.append(views.of(request, State.RUNNING))
        waiting = views.waiting(self.waiting)
        capacity = Capacity(
            self._slots,
            len(running),
            self._adapter.free_tokens(self),
            self._pace.model,
            can_preempt=self._options.preempt,
            can_pause=self._options.pause and self._room_to_pause > 0,
            can_cancel=True,
        )
        return View(capacity, waiting, running, held)

    @property
    def _room_to_pause(self) -> int:
        return int(self.max_num_running_reqs) - self._slots - len(self._paused)

    def _forget_paused_that_were_preempted(self) -> None:
        """vLLM takes the KV of a paused request like any other's: then it waits, and nothing holds it."""
        for request_id in [i for i in self._paused if self.requests[i].status != RequestStatus.RUNNING]:
            self._paused.discard(request_id)
            self._adapter.release(self, self.requests[request_id])
            self._costs.resumed(request_id, self.clock())
            self._changed = True

    # What the verdict does

    def _perform(self, verdict: Verdict, now: float) -> None:
        seen = self._views.seen
        tests = self._tests(verdict, now)
        self._refuse([refusal for refusal in verdict.drop if refusal.id not in tests], now)
        pause = verdict.pause[: self._room_to_pause]
        preempt = (*verdict.preempt, *verdict.pause[len(pause) :]) if self._options.preempt else verdict.preempt
        for id_ in preempt:
            self._adapter.preempt(self, seen(id_).request, self.stamp())
        for id_ in pause:
            request = seen(id_).request
            self._adapter.hold(self, request)
            self._paused.add(request.request_id)
            self._costs.paused(request.request_id, now)
        for id_ in verdict.resume:
            request = seen(id_).request
            self._adapter.release(self, request)
            self._paused.discard(request.request_id)
            self._costs.resumed(request.request_id, now)
        if order := (*tests, *verdict.order):
            self._adapter.reorder(self, self._views.requests(order))
        self._adapter.order_running(self, self._paused)
        self._trace.moved(now, verdict, pause, preempt, lambda id_: seen(id_).request.request_id)

    def _tests(self, verdict: Verdict, now: float) -> list[RequestId]:
        """Refused requests that run all the same, in slots that nobody else takes: an engine that does nothing learns
        nothing, and the pace behind a refusal may be wrong."""
        doubt, tests = self._doubt, list[RequestId]()
        free = self._slots - (len(self.running) - len(self._paused)) - len(verdict.admit) - len(verdict.resume)
        if doubt is None or free <= 0:
            return tests
        for id_, needs in [(refusal.id, refusal.needs) for refusal in verdict.drop]:
            if needs is None or len(tests) >= free:
                continue
            if doubt.should_admit(needs.own_s + needs.later_s, needs.due - now, now):
                tests.append(id_)
        return tests

    def _refuse(self, refusals: Sequence[Refusal], now: float) -> None:
        ended = []
        for refusal in refusals:
            request = self._views.seen(refusal.id).request
            self._refused.append((request, refusal_to_line(refusal.reason, refusal.earliest_feasible_s)))
            self._trace.refused(now, request.request_id, refusal.reason)
            self._costs.refused(running=request.status == RequestStatus.RUNNING)
            ended.append(request)
        if ended:
            self._adapter.refuse(self, ended)
