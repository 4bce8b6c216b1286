"""The gateway's metrics for Prometheus. No label holds a client's text, so the number of series is bounded."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ramify.serving.gateway.records.calls import Call, Outcome
from ramify.serving.gateway.records.logs import log
from ramify.serving.policy.types import SloClass
from ramify.serving.protocol.engine_datagrams import rank_paths

_WHAT = {
    "preemptions": "Running requests that lost their KV, also to vLLM's own shortage",
    "preempted_tokens": "Tokens computed again for that, net of prefix-cache hits",
    "preempted_seconds": "Time that those requests stood without a step",
    "pauses": "Running requests that stood aside with their KV kept",
    "paused_seconds": "Time that they did",
    "refusals": "Requests that the scheduler refused",
    "cancelled": "Those of them that were running, and could not be met any more",
    "steps": "Steps of the engine",
    "verdicts": "Decisions of the policy inside it",
    "policy_seconds": "CPU time that they took",
}
_FIELD = {"policy_seconds": "policy_s", "preempted_seconds": "preempted_s", "paused_seconds": "paused_s"}


class EngineCosts:
    """What our schedulers inside vLLM did, and what it cost, as counters.

    reports: by replica, the file in which its engine keeps its totals (see `vllm_plugin.reports`). It is read when
        metrics are asked for. A new process begins at 0, so totals that have fallen belong to a new process.
    """

    def __init__(self, reports: Mapping[int, Path], registry: CollectorRegistry) -> None:
        self._reports = reports
        self._seen: dict[tuple[int, str], float] = {}
        self._counters = {
            name: Counter(f"ramify_engine_{name}", what, ["replica"], registry=registry)
            for name, what in _WHAT.items()
        }
        for name, counter in self._counters.items():
            for replica in reports:
                counter.labels(str(replica))
                self._seen[replica, name] = 0.0

    def read(self) -> None:
        """Bring the counters up to date. An engine without a file yet has nothing to report."""
        for replica, path in self._reports.items():
            try:
                ranks = [json.loads(one.read_text("utf-8")) for one in rank_paths(path)]
                said = {name: sum([float(one[_FIELD.get(name, name)]) for one in ranks]) for name in self._counters}
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                log("engine_report_unreadable", level=logging.WARNING, replica=replica, problem=str(error))
                continue
            for name, now in said.items():
                before = self._seen[replica, name]
                self._counters[name].labels(str(replica)).inc(now - before if now >= before else now)
                self._seen[replica, name] = now


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_QOE = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_LENGTHS = ((32, "1-31"), (256, "32-255"), (float("inf"), "256-"))  # a second of delay costs a short answer most
_POLICY = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)


class Metrics:
    """One gateway's metrics, in a registry of their own: several gateways can live in one process."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self._ended = Counter("ramify_requests", "Calls that ended", ["kind", "outcome"], registry=r)
        self._promised = Counter("ramify_slo", "Calls that ended and had an objective", ["kind"], registry=r)
        self._met = Counter("ramify_slo_met", "Those of them that met it", ["kind"], registry=r)
        self._attainment = Gauge("ramify_slo_attainment", "Share that met it, of all so far", ["kind"], registry=r)
        self._queue = Histogram("ramify_queue_seconds", "Wait for a slot", ["kind"], buckets=_SECONDS, registry=r)
        self._first = Histogram(
            "ramify_first_token_seconds", "Arrival to first token", ["kind"], buckets=_SECONDS, registry=r
        )
        self._total = Histogram("ramify_total_seconds", "Arrival to end", ["kind"], buckets=_SECONDS, registry=r)
        self._qoe = Histogram("ramify_qoe", "Quality of experience of streams", ["tokens"], buckets=_QOE, registry=r)
        self._tokens = Counter("ramify_tokens", "Tokens passed on", ["kind"], registry=r)
        self._preempted = Counter("ramify_preemptions", "Running calls that gave up their slot", registry=r)
        self._recomputed = Counter("ramify_preempted_tokens", "Tokens prefilled again for that", registry=r)
        self._away = Counter("ramify_preempted_seconds", "Time that begun calls waited for that", registry=r)
        self._policy = Histogram("ramify_policy_seconds", "One verdict", buckets=_POLICY, registry=r)
        self._running = Gauge("ramify_running", "Calls in the engines", registry=r)
        self._waiting = Gauge("ramify_waiting", "Calls that wait for a slot", registry=r)
        self._infeasible = Gauge(
            "ramify_infeasible", "Calls in progress whose objective cannot be met any more", ["kind"], registry=r
        )
        self._up = Gauge("ramify_replica_up", "1 where an engine can be used", ["replica"], registry=r)
        self._restarts = Counter("ramify_engine_restarts", "Engine processes started again", ["replica"], registry=r)
        self._analyzer = Counter("ramify_analyzer_restarts", "The analyzer's process started again", registry=r)
        self._retried = Counter(
            "ramify_retries", "Calls moved to another replica, or to the next life of theirs", registry=r
        )
        self._hints = Counter(
            "ramify_prefix_hints", "Prefixes that an idle engine was to read ahead", ["outcome"], registry=r
        )
        self._coverage = Gauge(
            "ramify_length_bound_coverage",
            "Share of answers within the 95 % length bound that they had after so many tokens",
            ["generated"],
            registry=r,
        )
        self._seen: dict[str, list[int]] = {}
        self._engines: EngineCosts | None = None

    def follow(self, reports: Mapping[int, Path]) -> None:
        """Also report what our schedulers do inside these replicas' engines, from the files that they keep."""
        if reports:
            self._engines = EngineCosts(reports, self.registry)

    def ended(self, call: Call) -> None:
        """Count a call that has ended."""
        kind = call.kind.value
        self._ended.labels(kind, call.outcome.value).inc()
        assert call.ended is not None
        ledger = call.ledger(call.ended)
        if call.outcome is Outcome.DONE:
            self._queue.labels(kind).observe(ledger.queue_s)
            self._first.labels(kind).observe(ledger.first_token_s)
            self._total.labels(kind).observe(ledger.total_s)
        self._tokens.labels(kind).inc(call.chunks)
        if ledger.qoe is not None and call.outcome is Outcome.DONE:
            bucket = next(name for most, name in _LENGTHS if call.chunks < most)
            self._qoe.labels(bucket).observe(ledger.qoe)
        if call.track.preemptions:
            self._recomputed.inc(call.recomputed)
            self._away.inc(ledger.preempted_s)
        # A client that leaves, and a workflow that cancels, missed nothing.
        if ledger.met is not None and call.outcome not in (Outcome.GONE, Outcome.ABORTED):
            seen = self._seen.setdefault(kind, [0, 0])
            seen[0] += 1
            seen[1] += ledger.met
            self._promised.labels(kind).inc()
            self._met.labels(kind).inc(ledger.met)
            self._attainment.labels(kind).set(seen[1] / seen[0])

    def preempted(self) -> None:
        self._preempted.inc()

    def retried(self) -> None:
        self._retried.inc()

    def hinted(self, outcome: str) -> None:
        self._hints.labels(outcome).inc()

    def restarted(self, replica: int) -> None:
        self._restarts.labels(str(replica)).inc()

    def analyzer_restarted(self) -> None:
        self._analyzer.inc()

    def verdict(self, seconds: float) -> None:
        self._policy.observe(seconds)

    def coverage(self, generated: int, share: float) -> None:
        self._coverage.labels(str(generated)).set(share)

    def text(self, *, running: int, waiting: int, up: list[bool], infeasible: Mapping[str, int]) -> bytes:
        """All metrics as text, with the gauges set to their present values."""
        if self._engines is not None:
            self._engines.read()
        self._running.set(running)
        self._waiting.set(waiting)
        for kind in SloClass:
            self._infeasible.labels(kind.value).set(infeasible.get(kind.value, 0))
        for index, is_up in enumerate(up):
            self._up.labels(str(index)).set(is_up)
        return generate_latest(self.registry)
