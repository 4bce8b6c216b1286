"""Prometheus counters of runs, beside the gateway's counters of their model calls.

    metrics = RunMetrics(); async with Runtime(observer=metrics) as runtime: ...; metrics.registry

`ramify run --metrics FILE` writes them for the textfile collector of Prometheus's node exporter. Needs
`prometheus_client`, from the extra `serve`. No label holds user text, so the number of series is bounded.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, write_to_textfile

from ramify.compiler.plan import OpKind
from ramify.inspect.model_calls import call_times
from ramify.runtime.events import Event, LLMDone, OpDone, Recovered, RunEnded, RunStarted
from ramify.runtime.records import LLMRecord, OpRecord, OpStatus

_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class RunMetrics:
    """An observer that counts. `file`: rewritten whole whenever a run ends; a pipe or a device, such as /dev/stdout,
    is written to.

    Raises `NotADirectoryError` or `FileNotFoundError` for a file in a folder that is not there.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.registry = r = CollectorRegistry()
        self._file = None if file is None else file.resolve()  # what a link leads to is replaced, not the link
        if self._file is not None and not (folder := self._file.parent).is_dir():
            number = errno.ENOTDIR if folder.exists() else errno.ENOENT
            raise OSError(number, os.strerror(number), str(folder))
        self._began = Counter("ramify_runs_begun", "Runs that started or were resumed", ["resumed"], registry=r)
        self._ended = Counter("ramify_runs", "Runs that ended", ["status"], registry=r)
        self._steps = Counter("ramify_steps", "Steps by outcome", ["outcome"], registry=r)
        self._step_s = Histogram("ramify_step_seconds", "Duration of a step that ran", buckets=_SECONDS, registry=r)
        self._branches = Counter("ramify_branches", "Worlds that were forked or merged", ["what"], registry=r)
        self._calls = Counter("ramify_model_calls", "Model calls of runs", ["outcome"], registry=r)
        self._tokens = Counter("ramify_model_tokens", "Tokens of calls that reached a model", ["type"], registry=r)
        self._slo = Counter("ramify_model_calls_slo", "Model calls with a deadline", ["met"], registry=r)
        self._recovered = Counter("ramify_recoveries", "Recoveries of branches, by kind", ["level"], registry=r)

    def __call__(self, event: Event) -> None:
        """Count one event. Results that a resumed run takes from its journal were counted when they happened."""
        match event:
            case RunStarted():
                self._began.labels("yes" if event.resumed else "no").inc()
            case OpDone(replayed=False):
                self._op(event.row)
            case LLMDone(replayed=False):
                self._call(event.row)
            case Recovered():
                self._recovered.labels(event.level.name.lower()).inc()
            case RunEnded():
                self._ended.labels(event.status.value).inc()
                if self._file is not None:
                    _write(self._file, self.registry)
            case _:
                pass

    def _op(self, row: OpRecord) -> None:
        if row.kind is OpKind.RUN:
            outcome = "failed" if row.status is OpStatus.FAILED else "reused" if row.reused_from else "done"
            self._steps.labels(outcome).inc()
            if not row.reused_from:
                self._step_s.observe(max(0.0, row.ended_at - row.started_at))
        elif row.kind is OpKind.FORK and row.status is OpStatus.DONE:
            self._branches.labels("forked").inc(json.loads(row.result_json or "{}").get("children", 1))
        elif row.kind is OpKind.MERGE and row.status is OpStatus.DONE:
            self._branches.labels("merged").inc()

    def _call(self, row: LLMRecord) -> None:
        self._calls.labels("reused" if row.reused_from else "done").inc()
        if row.reused_from:
            return
        times = call_times(row)
        self._tokens.labels("input").inc(times.prompt_tokens)
        self._tokens.labels("output").inc(times.completion_tokens)
        if times.met is not None:
            self._slo.labels("yes" if times.met else "no").inc()


def _write(file: Path, registry: CollectorRegistry) -> None:
    """Replace a file in one step, so that nobody reads half of it. What is no file is written to: a device that a new
    file replaced would be lost to the whole machine."""
    if file.is_file() or not file.exists():
        write_to_textfile(str(file), registry)
        return
    with file.open("wb") as open_file:
        open_file.write(generate_latest(registry))
