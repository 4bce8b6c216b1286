"""What compiler passes save when their plans run: forks hidden behind the model, omitted snapshots, predictions."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.passes import workflows
from benchmarks.passes.recorded_turns import Recorded, Tree, Turn, one_run, recorded, tree, with_runtime
from benchmarks.rows import Row, median_row, row
from examples.repair.workflow import repair
from ramify import Runtime
from ramify.cli.commands.explain import stage_error
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.estimates.recorded_runs import RecordedEstimates, observed
from ramify.runtime.records import LLMRecord, OpRecord
from ramify.runtime.worlds.garbage_collection import dead_states
from ramify.serving.testing import Scripted
from ramify.serving.types import ChatRequest

FAN_OUT = 16
THINKING_S = 1.0


def lookahead_rows(quick: bool) -> list[Row]:
    """The longest wait of a branch for its world, when steps first need the worlds after the model has answered."""

    async def think(request: ChatRequest) -> Scripted:
        await asyncio.sleep(THINKING_S)
        return f"idea {request.seed}"

    ref = workflows.fans_out.__ramify_workflow__.ref
    plans = {
        "with": compile_workflow(workflows.fans_out, ref=ref).plan,
        "without": compile_workflow(
            workflows.fans_out, ref=ref, passes=[name for name in OPTIONAL if name != "lookahead"]
        ).plan,
    }
    waits: dict[str, list[float]] = {"with": [], "without": []}

    async def work(runtime: Runtime) -> None:
        for _ in range(3 if quick else 20):
            for name, plan in plans.items():
                await runtime.run(workflows.fans_out, FAN_OUT, plan=plan)
                waits[name].append(_longest_wait_ms(await runtime.journal()))

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(with_runtime(Path(home), think, work))
    hidden = [1 - a / b for a, b in zip(waits["with"], waits["without"], strict=True)]
    return [
        median_row(
            f"fork latency hidden behind a model that thinks for {THINKING_S:g} s, fan-out of {FAN_OUT}",
            [100 * part for part in hidden],
            "%",
            target=90.0,
            at_least=True,
            peer="the wait without lookahead, ms",
            peer_value=median(waits["without"]),
            note=f"the wait with it: {median(waits['with']):.2f} ms",
        )
    ]


def _longest_wait_ms(rows: list[OpRecord]) -> float:
    return max(float(row.attrs.get("fork_ms", 0.0)) for row in rows if row.step == "touch")


def placement_rows(quick: bool) -> list[Row]:
    """A turn is a step or node that was executed, not reused. The peer seals after each turn, as agent loops do."""
    several, single = recorded(quick), one_run(quick)
    with tempfile.TemporaryDirectory() as folder:
        exact = [_restored_exactly(found, Path(folder)) for found in (several, single)]
    return [
        _avoided(several.turns, "recorded from the two examples", target=60.0),
        row(
            "turns whose state, checked out, is file for file that after the same turn of a run in full copies",
            100 * exact[0] / len(several.turns),
            "%",
            target=100.0,
            at_least=True,
        ),
        _avoided(single.turns, "of one run of the repair example"),
        row(
            "turns of that run whose state, checked out, is that after the same turn of a run in full copies",
            100 * exact[1] / len(single.turns),
            "%",
            target=100.0,
            at_least=True,
        ),
    ]


def _avoided(turns: tuple[Turn, ...], of: str, target: float | None = None) -> Row:
    taken = sum(turn.sealed for turn in turns)
    worldless = sum(turn.row.snapshot_in is None for turn in turns)
    unchanged = sum(turn.row.snapshot_in == turn.row.snapshot_out for turn in turns) - worldless
    return row(
        f"snapshots avoided on {len(turns)} turns {of}",
        100 * (1 - taken / len(turns)),
        "%",
        target=target,
        at_least=True,
        peer="snapshots, one a turn",
        peer_value=float(len(turns)),
        note=f"{taken} taken: none after {unchanged} turns that changed nothing and {worldless} without a world",
    )


EDITS = 30


def learned_rows(quick: bool) -> list[Row]:
    """Placement alone: a run of small edits with a plan learned from three recorded runs, with and without the pass.
    Both leave out the snapshot of an unchanged world, which the runtime omits by itself."""
    flow = workflows.edits
    ref = flow.__ramify_workflow__.ref
    seals: dict[str, int] = {}
    times: dict[str, list[float]] = {"with": [], "without": []}

    async def think(request: ChatRequest) -> Scripted:
        raise AssertionError("no model is asked")

    async def work(runtime: Runtime) -> None:
        for _ in range(3):
            await runtime.run(flow, EDITS)
        estimates = await observed(runtime.store, ref)
        without = [name for name in OPTIONAL if name != "placement"]
        plans = {
            name: compile_workflow(flow, ref=ref, passes=passes, estimates=estimates).plan
            for name, passes in (("with", OPTIONAL), ("without", without))
        }
        for _ in range(3 if quick else 20):
            for name, plan in plans.items():
                begun = time.perf_counter()
                await runtime.run(flow, EDITS, plan=plan)
                times[name].append(1000 * (time.perf_counter() - begun) / EDITS)
                seals[name] = sum(row.kind is OpKind.SEAL for row in await runtime.journal())

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(with_runtime(Path(home), think, work))
    return [
        row(
            f"snapshots of {EDITS} small edits and a look, by a plan learned from three runs",
            float(seals["with"]),
            "snapshots",
            peer="the same plan without placement",
            peer_value=float(seals["without"]),
        ),
        row(
            "a step of that run, the least of the runs",
            min(times["with"]),
            "ms",
            peer="without placement",
            peer_value=min(times["without"]),
            spread=(min(times["with"]), max(times["with"])),
        ),
    ]


def _restored_exactly(found: Recorded, folder: Path) -> int:
    trees: dict[SnapshotId, Tree | None] = {}
    exact = 0
    for turn in found.turns:
        named = turn.row.snapshot_out or turn.row.snapshot_in
        if named is not None and named not in trees:
            found.snapshots.checkout(found.snapshots.get(named), folder / "restored")
            read = found.snapshots.import_tree(folder / "restored").snapshot
            trees[named] = tree(found.snapshots, read.id)
            shutil.rmtree(folder / "restored")
        exact += (None if named is None else trees[named]) == found.truth[turn.key]
    return exact


def liveness_rows(quick: bool) -> list[Row]:
    """A whole run of the repair example: how many of its states the plan declares dead at the end."""
    found = recorded(quick)
    held: dict[str, tuple[int, int]] = {}
    ref = repair.__ramify_workflow__.ref
    for name, passes in (("with", OPTIONAL), ("without", [one for one in OPTIONAL if one != "liveness"])):
        dead = dead_states(compile_workflow(repair, ref=ref, passes=passes).plan, found.whole)
        held[name] = _held(found.snapshots, found.whole, dead)
    made, before = held["without"]
    kept, after = held["with"]
    return [
        row(
            "states of a run of the repair example that it still needs at its end",
            float(kept),
            "states",
            peer="all that it made, without liveness",
            peer_value=float(made),
            note=f"bytes of layers held: {after}, without liveness {before}",
        )
    ]


def _held(snapshots: SnapshotStore, rows: Sequence[OpRecord], dead: set[SnapshotId]) -> tuple[int, int]:
    """Return the number of states held, and the bytes of the files in their layers."""
    named = {id for row in rows for id in (row.snapshot_in, row.snapshot_out) if id is not None} - dead
    layers = {layer for id in named for layer in snapshots.get(id).layers}
    return len(named), sum(snapshots.layer_bytes(layer) for layer in layers)


RUNS = (1, 2, 4, 8)  # recorded runs per prediction


def stage_rows(quick: bool) -> list[Row]:
    """Answers take 40 to 160 ms, drawn at random. Each prediction is of one recorded run, by a plan compiled from a
    random sample of the others."""
    draw = random.Random(4)

    async def think(request: ChatRequest) -> Scripted:
        await asyncio.sleep(0.04 + 0.12 * draw.betavariate(2, 4))
        return f"idea {request.seed}"

    runs: list[tuple[list[OpRecord], list[LLMRecord]]] = []

    async def work(runtime: Runtime) -> None:
        for _ in range(16 if quick else 40):
            await runtime.run(workflows.three_stages)
            runs.append((await runtime.journal(), await runtime.llm_calls()))

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(with_runtime(Path(home), think, work))
    errors = {many: _errors(runs, many, draw, 2 if quick else 4) for many in RUNS}
    first, *later = (100 * median(errors[many]) for many in RUNS)
    rows = [
        row(
            "predicted against actual seconds of a stage, median error, after 1 run", first, "%", note="after 0: none"
        )
    ]
    for many, error in zip(RUNS[1:], later, strict=True):
        name = f"predicted against actual seconds of a stage, median error, after {many} runs"
        rows.append(row(name, error, "%", target=first, peer="after 1 run", peer_value=first))
    return rows


def _errors(
    runs: list[tuple[list[OpRecord], list[LLMRecord]]], many: int, draw: random.Random, often: int
) -> list[float]:
    found = []
    for at, (_, actual) in enumerate(runs):
        others = [run for i, run in enumerate(runs) if i != at]
        for _ in range(often):
            seen = draw.sample(others, many)
            estimates = RecordedEstimates(
                [row for rows, _ in seen for row in rows], [row for _, llm in seen for row in llm]
            )
            plan = compile_workflow(
                workflows.three_stages,
                ref=workflows.three_stages.__ramify_workflow__.ref,
                estimates=estimates,
            ).plan
            error = stage_error(plan, actual)
            if error is None:
                raise RuntimeError("the plan expected no stage: the compiler did not learn from the recorded runs")
            found.append(error)
    return found
