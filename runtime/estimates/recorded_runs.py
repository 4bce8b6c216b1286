"""Estimates from recorded runs, as the compiler asks for them (`ramify.compiler.estimates.Estimates`).

What finished runs of a workflow recorded is kept in memory (`RecentRuns`): a process that runs a workflow often reads
only its new runs, and looks for them once a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from types import MappingProxyType
from typing import TYPE_CHECKING

from ramify import paths
from ramify.compiler.plan import OpId, OpKind, StagePlan
from ramify.fork_engine.snapshots import DEFAULT_VOLATILE, VolatileGlobs
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import Snapshot
from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord, OpRecord, OpStatus, RunId, RunRecord, RunStatus
from ramify.serving.types import ChatResult

if TYPE_CHECKING:
    from ramify.runtime.store import RunStore
    from ramify.runtime.store.reader import Reader


FILES = "wrote_files"  # a JSON list
CHANNELS = "wrote_channels"  # one a line

MOST = 16
"""The number of paths that a row records at most. A step that changed more files records none."""


def files_written(snapshots: SnapshotStore, before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Return the row attributes that list the files a step wrote; empty if the step did not add exactly one layer."""
    if after.layers[:-1] != before.layers or not after.layers:
        return {}
    paths = snapshots.layer_files(after.layers[-1])
    return {FILES: json.dumps(paths)} if len(paths) <= MOST else {}


def written(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return everything that the rows of one step list, by kind: "files" and "channels"."""
    found: dict[str, set[str]] = {}
    for attrs in rows:
        if FILES in attrs:
            found.setdefault("files", set()).update(json.loads(attrs[FILES]))
        if CHANNELS in attrs:
            found.setdefault("channels", set()).update(attrs[CHANNELS].split("\n"))
    return {kind: tuple(sorted(names)) for kind, names in found.items() if names}


LATEST = 10
"""The number of runs of a workflow that are read, newest first."""

RECENT = 100
"""The number of newest runs, of any workflow, among which these are searched."""

MOST_STAGES = 200
"""The number of stages per run that are read: as many as the tag `plan_rest` can hold."""

_VOLATILE = VolatileGlobs(DEFAULT_VOLATILE)

LEARN_AFTER = 3
"""The number of finished runs that are required before plans use them: with fewer, one unusual run is the median."""


@dataclass(frozen=True, slots=True)
class CallStage:
    """Model calls that were made at once: their number, mean prompt tokens, median output tokens, and the seconds
    until the last was answered."""

    op: OpId
    calls: int
    prefill: float
    output: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Code:
    """The code that a run's plan was compiled from: digests of the workflow and its steps, and the step of each
    operation."""

    workflow: str
    steps: Mapping[str, str]
    runs: Mapping[str, str | None]

    @classmethod
    def of(cls, plan_json: str) -> Code:
        """Read a plan. `Plan.from_json` would take ten times as long and refuse the plans of earlier versions."""
        plan = json.loads(plan_json)
        steps = {step["name"]: step["code_digest"] for step in plan["steps"]}
        return cls(plan["code_digest"], steps, {op["id"]: op["step"] for op in plan["ops"]})


class RecordedEstimates:
    """Medians over recorded rows; None for what was not recorded.

    `codes`: the code of each run. A run without an entry counts for any code.
    """

    def __init__(
        self,
        ops: Iterable[OpRecord],
        llm: Iterable[LLMRecord] = (),
        codes: Mapping[RunId, Code] = MappingProxyType({}),
    ) -> None:
        self._recorded = ops, llm, codes = tuple(ops), tuple(llm), codes
        self._workspace: Path | None = None
        steps: dict[str, list[float]] = defaultdict(list)
        code: dict[str, list[float]] = defaultdict(list)
        widths: dict[OpId, list[int]] = defaultdict(list)
        wrote: dict[str, list[Mapping[str, str]]] = defaultdict(list)
        seals: list[float] = []
        for row in ops:
            if row.status is not OpStatus.DONE or row.reused_from is not None:
                continue
            if row.kind is OpKind.RUN and row.step is not None:
                took = max(0.0, row.ended_at - row.started_at)
                around_ms = sum(float(row.attrs.get(name, 0.0)) for name in ("seal_ms", "fork_ms"))
                steps[row.step].append(took)
                code[row.step].append(max(0.0, took - around_ms / 1000))
                wrote[row.step].append(row.attrs)
                if "seal_ms" in row.attrs:
                    seals.append(float(row.attrs["seal_ms"]) / 1000)
            elif row.kind is OpKind.FORK and row.result_json is not None:
                widths[row.op_id].append(int(codec.decode_own(row.result_json, dict)["children"]))
        self._steps = {name: median(found) for name, found in steps.items()}
        self._again = {name: median(found) for name, found in code.items()}
        self._widths = {op: max(found) for op, found in widths.items()}
        self._wrote = {name: written(found) for name, found in wrote.items()}
        self._seal_s = median(seals) if seals else None
        self._stages: dict[OpId, list[CallStage]] = defaultdict(list)
        for stage in call_stages(llm):
            self._stages[stage.op].append(stage)
        self._stages_by_run = _stages_by_run(ops, llm)

    def valid_for_code(self, workflow: str, steps: Mapping[str, str]) -> RecordedEstimates:
        ops, llm, codes = self._recorded

        def holds(run: RunId, step: str | None, *, placed: bool) -> bool:
            """`placed`: the row belongs to a place in the workflow, not to the step wherever it is called."""
            code = codes.get(run)
            if code is None:
                return True
            same_step = step is None or code.steps.get(step) == steps.get(step)
            return same_step and not (placed and code.workflow != workflow)

        def caller(row: LLMRecord) -> str | None:
            return codes[row.run_id].runs.get(row.op_id) if row.run_id in codes else None

        return RecordedEstimates(
            [row for row in ops if holds(row.run_id, row.step, placed=row.kind is not OpKind.RUN)],
            [row for row in llm if holds(row.run_id, caller(row), placed=True)],
        ).on(self._workspace)

    def on(self, workspace: str | Path | None) -> RecordedEstimates:
        """Return the same estimates, for runs that begin with the files of that folder."""
        same = copy(self)
        same._workspace = None if workspace is None else paths.expanded(workspace)
        return same

    def step_s(self, step: str) -> float | None:
        return self._steps.get(step)

    def rerun_s(self, step: str) -> float | None:
        return self._again.get(step)

    def calls(self, op: OpId) -> CallStage | None:
        found = self._stages.get(op)
        if not found:
            return None
        return CallStage(
            op,
            round(median(stage.calls for stage in found)),
            median(stage.prefill for stage in found),
            median(stage.output for stage in found),
            median(stage.seconds for stage in found),
        )

    def stages(self) -> tuple[StagePlan, ...]:
        """Return median stages over the runs, as many as the shortest run had: later stages may not come."""
        return tuple(_median_stage(same) for same in zip(*self._stages_by_run, strict=False))

    def width(self, fork: OpId) -> int | None:
        return self._widths.get(fork)

    def seal_s(self) -> float | None:
        return self._seal_s

    def wrote(self, step: str) -> Mapping[str, tuple[str, ...]]:
        return self._wrote.get(step, {})

    def begins_without(self, path: str) -> bool:
        if path in _VOLATILE:
            return False  # a merge keeps one side of such a path
        if self._workspace is None:
            return True
        parents = list(Path(path).parents)[:-1]  # below a symbolic link the file has another path
        linked = any((self._workspace / parent).is_symlink() for parent in parents)
        return not linked and not os.path.lexists(self._workspace / path)


def call_stages(llm: Iterable[LLMRecord]) -> list[CallStage]:
    """Return the stages of the recorded model calls, in the order in which they began."""
    together: dict[tuple[RunId, OpId, object], list[LLMRecord]] = defaultdict(list)
    for row in llm:
        if row.reused_from is None:
            stage = codec.decode_own(row.tags_json, dict).get("compound_stage")
            together[row.run_id, row.op_id, row.key if stage is None else stage].append(row)
    found = [(min(row.started_at for row in rows), _stage(rows)) for rows in together.values()]
    return [stage for _, stage in sorted(found, key=lambda pair: pair[0])]


def _stage(rows: Sequence[LLMRecord]) -> CallStage:
    results = [codec.decode_own(row.result_json, ChatResult) for row in rows]
    took = max(row.ended_at for row in rows) - min(row.started_at for row in rows)
    return CallStage(
        rows[0].op_id,
        len(rows),
        fmean(result.prompt_tokens for result in results),
        float(median(result.completion_tokens for result in results)),
        max(0.0, took),
    )


def _stages_by_run(ops: Iterable[OpRecord], llm: Iterable[LLMRecord]) -> list[list[StagePlan]]:
    """Return the stages of each run in order, up to the first stage without calls that reached the model."""
    spans: dict[RunId, list[float]] = defaultdict(list)
    for row in ops:
        spans[row.run_id] += (row.started_at, row.ended_at)
    runs: dict[RunId, dict[int, list[LLMRecord]]] = defaultdict(lambda: defaultdict(list))
    for call in llm:
        stage = codec.decode_own(call.tags_json, dict).get("compound_stage")
        if call.reused_from is None and stage is not None:
            spans[call.run_id] += (call.started_at, call.ended_at)
            runs[call.run_id][stage].append(call)
    return [_stages_of_run(rows, min(spans[run]), max(spans[run])) for run, rows in runs.items() if 0 in rows]


def _stages_of_run(rows: Mapping[int, Sequence[LLMRecord]], began: float, ended: float) -> list[StagePlan]:
    found: list[StagePlan] = []
    at = began  # when the last stage so far ended; stages of branches may overlap
    while len(found) in rows and len(found) < MOST_STAGES:
        same = rows[len(found)]
        stage, start = _stage(same), min(row.started_at for row in same)
        tools_s, at = max(0.0, start - at), max(at, start + stage.seconds)
        share = (at - began) / (ended - began) if ended > began else 1.0
        found.append(StagePlan(stage.op, stage.calls, stage.prefill, stage.output, tools_s, stage.seconds, share))
    return found


def _median_stage(same: Sequence[StagePlan]) -> StagePlan:
    return StagePlan(
        same[0].op,
        round(median(stage.calls for stage in same)),
        median(stage.prefill for stage in same),
        median(stage.output for stage in same),
        median(stage.tools_s for stage in same),
        median(stage.seconds for stage in same),
        median(stage.share for stage in same),
    )


FRESH_S = 1.0
"""For how many seconds the estimates of a workflow serve further runs."""

_MOST_ROWS = 5_000  # rows that are kept, of all runs together


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run with its journal and its model calls."""

    run: RunRecord
    ops: tuple[OpRecord, ...]
    llm: tuple[LLMRecord, ...]

    @property
    def size(self) -> int:
        return 1 + len(self.ops) + len(self.llm)


class RecentRuns:
    """Reads finished runs, and keeps those that were read last. A run that changed since is read again.

    timer: returns monotonic seconds.
    """

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._timer = timer
        self.reading = asyncio.Lock()  # one task reads, and the others take what it found
        self._estimates: dict[tuple[str, str | None], tuple[float, RecordedEstimates]] = {}
        self._kept: OrderedDict[RunId, RecordedRun] = OrderedDict()
        self._size = 0

    async def read(self, store: RunStore | Reader, run: RunRecord) -> RecordedRun:
        found = self._kept.get(run.id)
        if found is not None and found.run.updated_at == run.updated_at:
            self._kept.move_to_end(run.id)
            return found
        ops, llm = await store.journal(run.id, cuts=True)
        self._drop(run.id)
        made = RecordedRun(run, tuple(ops), tuple(llm))
        self._kept[run.id] = made
        self._size += made.size
        while self._size > _MOST_ROWS:
            self._drop(next(iter(self._kept)))
        return made

    def estimates(self, workflow: str, workspace: str | None) -> RecordedEstimates | None:
        """Return the estimates that were kept less than `FRESH_S` ago, or None."""
        at, found = self._estimates.get((workflow, workspace), (0.0, None))
        return found if self._timer() - at < FRESH_S else None

    def keep(self, workflow: str, workspace: str | None, found: RecordedEstimates) -> None:
        now = self._timer()
        self._estimates = {key: kept for key, kept in self._estimates.items() if now - kept[0] < FRESH_S}
        self._estimates[workflow, workspace] = now, found

    def _drop(self, run: RunId) -> None:
        if (old := self._kept.pop(run, None)) is not None:
            self._size -= old.size


async def observed(store: RunStore | Reader, workflow: str, *, but: RunId | None = None) -> RecordedEstimates:
    """Return estimates from the latest runs of a workflow. `but`: a run to leave out."""
    runs = await store.latest_runs(workflow, among=RECENT, most=LATEST + 1)
    return await _estimates_of(store, [run for run in runs if run.id != but][:LATEST], RecentRuns())


async def learned(
    store: RunStore | Reader, workflow: str, workspace: str | Path | None = None, *, recent: RecentRuns | None = None
) -> RecordedEstimates:
    """Return the estimates for the next plan of a workflow: from its latest finished runs, empty while they are few.

    workspace: the folder with which the next run begins. recent: what this process has read before; its estimates
    serve for a second.
    """
    if recent is None:
        return (await _learned(store, workflow, workspace, RecentRuns()))[0]
    folder = None if workspace is None else str(workspace)
    if (kept := recent.estimates(workflow, folder)) is not None:
        return kept
    async with recent.reading:
        if (kept := recent.estimates(workflow, folder)) is not None:
            return kept
        found, is_enough = await _learned(store, workflow, workspace, recent)
        if is_enough:
            recent.keep(workflow, folder, found)
        return found


async def _learned(
    store: RunStore | Reader, workflow: str, workspace: str | Path | None, recent: RecentRuns
) -> tuple[RecordedEstimates, bool]:
    """Return the estimates, and whether there are enough runs."""
    runs = await store.latest_runs(workflow, among=RECENT, most=LATEST, status=RunStatus.DONE)
    if len(runs) < LEARN_AFTER:
        return (_NOTHING if workspace is None else _NOTHING.on(workspace)), False
    return (await _estimates_of(store, runs, recent)).on(workspace), True


_NOTHING = RecordedEstimates(())


async def _estimates_of(store: RunStore | Reader, runs: Sequence[RunRecord], recent: RecentRuns) -> RecordedEstimates:
    found = [await recent.read(store, run) for run in runs]
    return RecordedEstimates(
        [row for one in found for row in one.ops],
        [row for one in found for row in one.llm],
        {one.run.id: Code.of(one.run.plan_json) for one in found},
    )
