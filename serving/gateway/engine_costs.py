"""What schedulers of ours inside vLLM moved, and what it cost, as the gateway's metrics.

Each engine keeps its totals in a file (vllm_plugin/costs.py), read when somebody asks for metrics. A new process
begins at nothing: totals that have fallen are a new life's.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from ramify.serving.gateway.logs import log

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
    """`reports`: the file of each replica whose engine keeps one."""

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
        """Bring the counters up to date. An engine that has not told anything yet has nothing to tell."""
        for replica, path in self._reports.items():
            try:
                totals = json.loads(path.read_text("utf-8"))
                said = {name: float(totals[_FIELD.get(name, name)]) for name in self._counters}
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                log("engine_report_unreadable", level=logging.WARNING, replica=replica, problem=str(error))
                continue
            for name, now in said.items():
                before = self._seen[replica, name]
                self._counters[name].labels(str(replica)).inc(now - before if now >= before else now)
                self._seen[replica, name] = now
