"""`ConcordScheduler`: vLLM's own AsyncScheduler, with a policy that orders its requests before each step.

A step goes: (1) New length sketches are read. (2) If a request has arrived, left or run out of time, the policy
decides over views of all requests. (3) The verdict is carried out on vLLM's queues: requests that cannot be met are
ended with a reason, running requests are preempted, paused or resumed, waiting ones are put in order. (4)
`super().schedule()` does the rest as always: chunked prefill, prefix cache, KV blocks. Nothing of vLLM is copied or
patched.

To pause a request, its `next_decode_eligible_step` is set to the far future: vLLM's running loop skips it, and it
keeps its KV. It still counts as active. So the limit of active requests is raised by the number of paused ones, up
to `max_num_seqs`: start vLLM with `--max-num-active-seqs B --max-num-seqs B+room`. Without room, requests are
preempted instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus

from ramify.serving.errors import BadOptions
from ramify.serving.policy.kv_retention import CostAware, Foresees, Retention
from ramify.serving.policy.refusals import RefusalProbe
from ramify.serving.policy.registry import UnknownPolicy, make_live_policy
from ramify.serving.policy.types import (
    Capacity,
    Finished,
    Load,
    Policy,
    Refusal,
    RequestId,
    SelfTriggered,
    State,
    Verdict,
    View,
)
from ramify.serving.protocol.wire import refusal_to_line
from ramify.serving.vllm_plugin.engine_views import RequestViews, StepCalibrator, TrackedRequest
from ramify.serving.vllm_plugin.kept_contexts import EngineLoad, KeptContexts
from ramify.serving.vllm_plugin.messages_and_reports import DecisionLog, GatewayMessages, NewSketch, TotalsReport
from ramify.serving.vllm_plugin.options import PluginOptions
from ramify.serving.vllm_plugin.returning_contexts import ReturningContexts
from ramify.serving.vllm_plugin.version_adapters import RequestLike, adapter_for

_Opened = TypeVar("_Opened")
_CONTEXT_STEPS = 16  # the context of all running requests is added up once in so many steps


def _opened(option: str, make: Callable[[str | None], _Opened], path: str | None) -> _Opened:
    """Return what an option names. Raises BadOptions if it cannot be made."""
    try:
        return make(path)
    except OSError as error:
        raise BadOptions(option, f"cannot use {path}: {error}") from error


class ConcordScheduler(AsyncScheduler):
    """vLLM's scheduler under a policy. Its constructor raises UnsupportedVllm and BadOptions."""

    # A replay sets its own. The requests' arrival times must be on the same clock.
    clock: Callable[[], float] = staticmethod(time.time)
    stamp: Callable[[], float] = staticmethod(time.monotonic)  # time of vLLM's own events

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._adapter = adapter_for(vllm.__version__)
        super().__init__(*args, **kwargs)
        options = PluginOptions.of(self.vllm_config.additional_config)
        options = self._options = options.of_rank(self.vllm_config.parallel_config.data_parallel_index)
        try:
            self._decider: Policy = make_live_policy(options.policy, **options.policy_options)
        except UnknownPolicy as error:
            raise BadOptions("policy", str(error)) from error
        self._refusal_probe: RefusalProbe | None = RefusalProbe()
        self._slots: int = self.max_num_active_reqs  # type: ignore[has-type]
        self._views = RequestViews(lambda request: self._adapter.cached_tokens(self, request), options.refresh_tokens)
        self._paused: set[str] = set()
        self._refused: list[tuple[RequestLike, str]] = []
        self._unreadable: list[TrackedRequest] = []
        self._changed = True
        self._wake_at: float | None = None
        self._budget: int | None = None
        self._decided_step = 0
        self._calibrator = StepCalibrator(options.step, options.calibrate)
        self._context = 0  # tokens in KV of the running requests
        self._contexts: KeptContexts | None = None
        self.keep_by(CostAware() if options.keep_contexts else None)
        self._messages = _opened("socket", GatewayMessages, options.socket)
        self.decision_log = _opened("trace", DecisionLog, options.trace)
        self._totals = TotalsReport(options.report)

    def decide_by(self, policy: Policy) -> None:
        """Use this policy instead of the one that the options name, and never test its refusals.

        Call it before the first request.
        """
        self._decider, self._refusal_probe = policy, None

    def keep_by(self, retention: Retention | None, *, bring_back: bool = True) -> None:
        """Use this retention for the contexts of programs that wait for tools; None: leave them to vLLM. Where vLLM
        has a CPU tier, they are brought back from it before their programs return, unless `bring_back` is false.

        Call it before the first request.
        """
        views, adapter, back = self._views, self._adapter, None
        if token_bytes := adapter.tier_token_bytes(self):
            back_in = retention.back_in if bring_back and isinstance(retention, Foresees) else None
            kv_tokens = self.kv_cache_config.num_blocks * self.block_size
            back = ReturningContexts(adapter, token_bytes, kv_tokens, back_in)
        if retention is None:
            self._contexts = None
            return
        self._contexts = KeptContexts(retention, adapter, views.chain_of, views.due_of, back)

    # Called by vLLM

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            seen = self._views.add(request)
            tags = getattr(request.sampling_params, "extra_args", None)
            self.decision_log.arrived(self.clock(), request.request_id, tags)
            self._changed = True
            if seen.problem is not None:
                self._unreadable.append(seen)
            if self._contexts is not None and seen.view.compound is not None:
                self._contexts.arrived(seen.view.compound, self.clock())
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        now = self.clock()
        self._hear(now)
        self._forget_paused_that_were_preempted()
        if self._unreadable:
            here = [seen for seen in self._unreadable if not seen.request.is_finished()]  # others have left meanwhile
            self._refuse([Refusal(seen.view.id, f"tags: {seen.problem}") for seen in here], now)
            self._unreadable.clear()
        takes_calls = self.pause_state.name == "UNPAUSED"
        if not takes_calls:
            self._go_on_without_new(now)
        elif self._must_decide(now):
            began = time.thread_time()
            verdict = self._decider.decide(self._view(), now)
            self._perform(verdict, now)
            self._totals.decided(time.thread_time() - began)
            self._changed, self._wake_at, self._decided_step = False, verdict.wake_at, self.current_step
            # A prompt that may not be cut would wait for ever if it is longer than the budget.
            self._budget = verdict.budget if self.scheduler_config.enable_chunked_prefill else None
        self.max_num_active_reqs = min(self._slots + len(self._paused), self.max_num_running_reqs)
        if self._contexts is not None:
            first = next(iter(self.waiting), None)
            load = EngineLoad(self._calibrator.model, self._context, self._calibrator.prefill, takes_calls)
            self._contexts.make_room(self, first, load, now)
        output = self._within_budget(throttle_prefills)
        if self.current_step % _CONTEXT_STEPS == 0:
            self._context = sum([request.num_computed_tokens for request in self.running])
        self._calibrator.scheduled(output, now, self._context)
        if again := self._totals.waiting_again:
            computed = {i: self.requests[i].num_computed_tokens for i in again}
            self._totals.scheduled(output.num_scheduled_tokens, computed, now)
        self._totals.stepped(now)
        for new in output.scheduled_new_reqs:
            if self._contexts is not None and (program := self._views.chain_of(new.req_id)) is not None:
                self._contexts.started(self, program)
            if (group := self._views.group_of(new.req_id)) is not None:
                self._changed = self._views.reprice_group(group) or self._changed
        return output

    def _hear(self, now: float) -> None:
        """Take what the gateway says beside requests."""
        for message in self._messages.take():
            if isinstance(message, NewSketch):
                self._changed = self._views.refine(message.request_id, message.sketch) or self._changed
            elif self._contexts is not None:
                self._contexts.release(self, message.compound_id, message.branches)
                free = self._adapter.free_tokens(self)
                self.decision_log.released(now, message.compound_id, message.branches, free)

    def _within_budget(self, throttle_prefills: bool) -> Any:
        """Schedule a step with at most the verdict's prompt tokens beside one token for each running request."""
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
        loads = model_runner_output.kv_connector_output
        if self._contexts is not None and loads is not None and (loads.invalid_block_ids or loads.failed_recving):
            self._contexts.load_failed(self)
        self._calibrator.landed(scheduler_output, now)
        self._views.delivered(model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids, now)
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        for request, text in self._refused:
            answer = self._adapter.refusal_output(request, text)
            outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(answer)
        self._refused.clear()
        return outputs

    def shutdown(self) -> None:
        self._totals.write(self.clock(), at_once=True)
        self._messages.close()
        self.decision_log.close()
        super().shutdown()

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Forget all contexts, as when weights change or the engine sleeps. vLLM refuses while any block is held."""
        if self._contexts is not None:
            self._contexts.forget_all(self)
        return bool(super().reset_prefix_cache(*args, **kwargs))

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Called for every preemption: the policy's, and vLLM's own when KV runs out."""
        self._totals.preempted(request.request_id, request.num_computed_tokens, self.clock())
        super()._preempt_request(request, *args, **kwargs)
        if self._contexts is not None:
            self._contexts.freed()

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._paused.discard(request.request_id)
        self._totals.left(request.request_id, self.clock())
        left = self._views.remove(request.request_id)  # None for a load of ours, which no client asked for
        # Its slot goes to the head of the queue, which is sorted. But only the policy resumes paused requests.
        self._changed = self._changed or bool(self._paused)
        if left is not None:
            view, late = left
            now = self.clock()
            ended_well = request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
            met = ended_well and not late and (view.deadline is None or now <= view.deadline)
            self._decider.observe(Finished(view, now, met, view.generated - late if ended_well else 0))
            if self._contexts is not None and view.compound is not None:
                if ended_well:
                    self._contexts.ended(self, request, view.compound, now)
                self._contexts.gone(view.compound)
        freed = super()._free_request(request, delay_free_blocks)
        if self._contexts is not None:
            self._contexts.freed()
        if self.decision_log.writes and left is not None:
            kv_free, status = self._adapter.free_tokens(self), request.status.name
            self.decision_log.ended(self.clock(), request.request_id, status, request.num_output_tokens, kv_free)
        return freed

    # The policy's view

    def _must_decide(self, now: float) -> bool:
        """Is a decision due? If nothing waits there is no choice, but for a policy with a trigger of its own."""
        if len(self.waiting) == 0 and not self._paused:
            return self._triggered(now)
        if self._changed or (self._wake_at is not None and now >= self._wake_at):
            return True
        return bool(self.current_step - self._decided_step >= self._options.refresh_steps)

    def _triggered(self, now: float) -> bool:
        policy = self._decider
        if (
            not isinstance(policy, SelfTriggered)
            or self.current_step - self._decided_step < self._options.refresh_steps
        ):
            return False
        step_s = self._calibrator.model.step_ms(len(self.running), self._context) / 1000
        return policy.must_decide(Load(step_s, self._views.tightest_s()), now)

    def _go_on_without_new(self, now: float) -> None:
        """vLLM takes no waiting calls, before a sleep or new weights for instance. It may wait until those that run
        have ended, and so the paused ones go on, in slots that are free. The policy would keep these slots for calls
        that wait.
        """
        self._budget, self._changed = None, True
        free = self._slots - (len(self.running) - len(self._paused))
        resume = [one for one in self.running if one.request_id in self._paused][: max(0, free)]
        if resume:
            self._perform(Verdict(resume=tuple([self._views.id_of(one.request_id) for one in resume])), now)

    def _view(self) -> View:
        views, paused = self._views, self._paused
        running, held = [], []
        for request in self.running:
            if request.request_id in paused:
                held.append(views.view_of(request, State.PAUSED))
            else:
                running.append(views.view_of(request, State.RUNNING))
        waiting = views.waiting(self.waiting)
        capacity = Capacity(
            self._slots,
            len(running),
            self._adapter.free_tokens(self),
            self._calibrator.model,
            can_preempt=self._options.preempt,
            can_pause=self._options.pause and self._room_to_pause > 0,
            can_cancel=True,
            pause_room=max(0, self._room_to_pause),
        )
        return View(capacity, waiting, running, held)

    @property
    def _room_to_pause(self) -> int:
        return int(self.max_num_running_reqs) - self._slots - len(self._paused)

    def _forget_paused_that_were_preempted(self) -> None:
        """Forget paused requests whose KV vLLM took, as it may of any request: they wait now."""
        for request_id in [i for i in self._paused if self.requests[i].status != RequestStatus.RUNNING]:
            self._paused.discard(request_id)
            self._adapter.release(self, self.requests[request_id])
            self._totals.resumed(request_id, self.clock())
            self._changed = True

    # Carrying out the verdict

    def _perform(self, verdict: Verdict, now: float) -> None:
        seen = self._views.seen
        tests = self._tests(verdict, now)
        self._refuse([refusal for refusal in verdict.drop if refusal.id not in tests], now)
        pause = verdict.pause[: self._room_to_pause]
        preempt = (*verdict.preempt, *verdict.pause[len(pause) :]) if self._options.preempt else verdict.preempt
        for id_ in preempt:
            request = seen(id_).request
            if request.request_id in self._paused:
                self._adapter.release(self, request)
                self._paused.discard(request.request_id)
                self._totals.resumed(request.request_id, now)
            self._adapter.preempt(self, request, self.stamp())
        for id_ in pause:
            request = seen(id_).request
            self._adapter.hold(self, request)
            self._paused.add(request.request_id)
            self._totals.paused(request.request_id, now)
        for id_ in verdict.resume:
            request = seen(id_).request
            self._adapter.release(self, request)
            self._paused.discard(request.request_id)
            self._totals.resumed(request.request_id, now)
        if order := (*tests, *verdict.order):
            self._adapter.reorder(self, self._views.requests(order))
        self._adapter.order_running(self, self._paused)
        self.decision_log.moved(now, verdict, pause, preempt, lambda id_: seen(id_).request.request_id)

    def _tests(self, verdict: Verdict, now: float) -> list[RequestId]:
        """Return refused requests that run nevertheless, in slots that are free.

        An idle engine learns nothing, and the pace behind a refusal may be wrong (`RefusalProbe`).
        """
        probe, tests = self._refusal_probe, list[RequestId]()
        free = self._slots - (len(self.running) - len(self._paused)) - len(verdict.admit) - len(verdict.resume)
        if probe is None or free <= 0:
            return tests
        for id_, needs in [(refusal.id, refusal.needs) for refusal in verdict.drop]:
            if needs is None or len(tests) >= free:
                continue
            if probe.should_admit(needs.own_s + needs.later_s, needs.due - now, now):
                tests.append(id_)
        return tests

    def _refuse(self, refusals: Sequence[Refusal], now: float) -> None:
        ended = []
        for refusal in refusals:
            request = self._views.seen(refusal.id).request
            self._refused.append((request, refusal_to_line(refusal.reason, refusal.earliest_feasible_s)))
            self.decision_log.refused(now, request.request_id, refusal.reason)
            self._totals.refused(running=request.status == RequestStatus.RUNNING)
            ended.append(request)
        if ended:
            self._adapter.refuse(self, ended)
