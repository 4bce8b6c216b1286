"""What passes bring when their plans run: forks hidden behind the model, snapshots not taken, predictions."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import _compiler_flows
from _compiler_rows import Row, measured

import ramify
from examples.coder_graph.graph import build
from examples.repair.workflow import repair
from ramify import Runtime
from ramify.cli.explain import stage_error
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpKind, Plan
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.liveness import dead_states
from ramify.runtime.observed import observed
from ramify.runtime.records import OpRecord, OpStatus
from ramify.serving.client import LLMClient
from ramify.serving.testing import Script, Scripted, ScriptedModel
from ramify.serving.types import ChatRequest

ROOT = Path(__file__).resolve().parent.parent
FAN_OUT = 16
THINKING_S = 1.0


async def with_runtime(home: Path, script: Script, work: Callable[[Runtime], Awaitable[None]]) -> None:
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script)) as client,
        Runtime(home=home, sandbox="namespaces", llm=client) as runtime,
    ):
        await work(runtime)


def lookahead_rows(quick: bool) -> list[Row]:
    """The longest wait of a branch for its world, of those that a step first needs after the model has answered."""

    async def think(request: ChatRequest) -> Scripted:
        await asyncio.sleep(THINKING_S)
        return f"idea {request.seed}"

    ref = _compiler_flows.fans_out.__ramify_workflow__.ref
    plans = {
        "with": compile_workflow(_compiler_flows.fans_out, ref=ref).plan,
        "without": compile_workflow(
            _compiler_flows.fans_out, ref=ref, passes=[name for name in OPTIONAL if name != "lookahead"]
        ).plan,
    }
    waits: dict[str, list[float]] = {"with": [], "without": []}

    async def work(runtime: Runtime) -> None:
        for _ in range(3 if quick else 20):
            for name, plan in plans.items():
                await runtime.run(_compiler_flows.fans_out, FAN_OUT, plan=plan)
                waits[name].append(_longest_wait_ms(await runtime.journal()))

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(with_runtime(Path(home), think, work))
    hidden = [1 - a / b for a, b in zip(waits["with"], waits["without"], strict=True)]
    return [
        measured(
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
    """Turns are steps and nodes that were done (not taken over); the peer seals after each, as agent loops do."""
    turns: list[OpRecord] = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        _record_coder(home, turns)
        asyncio.run(with_runtime(home, _answer, lambda runtime: _record_repair(runtime, Path(folder), turns, quick)))
        snapshots = SnapshotStore(ramify.paths.snapshots(home))
        rows = [row for row in turns if row.status is OpStatus.DONE and not row.reused_from]
        done = [row for row in rows if row.kind is OpKind.RUN][: 60 if quick else 200]
        counted = {f"{row.run_id} {row.key}|SEAL" for row in done}
        seals = [row for row in rows if row.kind is OpKind.SEAL and f"{row.run_id} {row.key}" in counted]
        exact = sum(_restores(snapshots, row, Path(folder)) for row in done)
    return [
        Row(
            f"snapshots avoided on {len(done)} turns recorded from the two examples",
            100 * (1 - len(seals) / len(done)),
            "%",
            target=60.0,
            at_least=True,
            peer="snapshots, one a turn",
            peer_value=float(len(done)),
            note=f"{len(seals)} taken: none after a step that changed nothing, and none for a step without a world",
        ),
        Row("turns whose state can be restored", 100 * exact / len(done), "%", target=100.0, at_least=True),
    ]


def liveness_rows(quick: bool) -> list[Row]:
    """A whole run of the repair example: which of its states the plan says are dead at its end."""
    held: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        turns: list[OpRecord] = []
        asyncio.run(with_runtime(home, _answer, lambda runtime: _record_repair(runtime, Path(folder), turns, True)))
        snapshots = SnapshotStore(ramify.paths.snapshots(home))
        ref = repair.__ramify_workflow__.ref
        for name, passes in (("with", OPTIONAL), ("without", [one for one in OPTIONAL if one != "liveness"])):
            dead = dead_states(compile_workflow(repair, ref=ref, passes=passes).plan, turns)
            held[name] = _held(snapshots, turns, dead)
    made, before = held["without"]
    kept, after = held["with"]
    return [
        Row(
            "states of a run of the repair example that it still needs at its end",
            float(kept),
            "states",
            peer="all that it made, without liveness",
            peer_value=float(made),
            note=f"bytes of layers held: {after}, without liveness {before}",
        )
    ]


def _held(snapshots: SnapshotStore, rows: list[OpRecord], dead: set[SnapshotId]) -> tuple[int, int]:
    """How many states are held, and the bytes of files in their layers."""
    named = {id for row in rows for id in (row.snapshot_in, row.snapshot_out) if id is not None} - dead
    layers = {layer for id in named for layer in snapshots.get(id).layers}
    return len(named), sum(snapshots.layer_bytes(layer) for layer in layers)


def _answer(request: ChatRequest) -> Scripted:
    return {"A": 3.0, "B": 2.0, "C": 1.0} if request.max_tokens == 1 else "pass"


async def _record_repair(runtime: Runtime, folder: Path, turns: list[OpRecord], quick: bool) -> None:
    programs = folder / "programs"
    shutil.copytree(ROOT / "examples" / "repair" / "programs", programs)
    names = sorted(path.name for path in programs.iterdir() if path.is_dir())
    await runtime.run(repair, names[:2] if quick else names, 40, workspace=programs)
    turns += await runtime.journal()


def _record_coder(home: Path, turns: list[OpRecord]) -> None:
    async def run() -> None:
        async with LLMClient("http://model.test/v1", transport=ScriptedModel(_answer)) as client:
            project = ROOT / "examples" / "coder_graph" / "project"
            with ramify.compile(build(), project, name="coder", home=home, llm=client) as app:
                await app.ainvoke({}, {"recursion_limit": 200})
                run_id = app.session.last_run_id
        async with Runtime(home=home) as runtime:
            turns.extend(await runtime.journal(run_id))

    asyncio.run(run())


def _restores(snapshots: SnapshotStore, row: OpRecord, folder: Path) -> bool:
    """The state after a turn stands on disk as it was: checked out, its tree has what the snapshot says."""
    named = row.snapshot_out or row.snapshot_in
    if named is None:
        return True  # a pure step: it has no world
    snapshot = snapshots.get(named)
    where = folder / "restored"
    snapshots.checkout(snapshot, where)
    same = snapshots.import_tree(where).snapshot
    differ = snapshots.changes(snapshot, same)
    shutil.rmtree(where)
    return not differ


def stage_rows(quick: bool) -> list[Row]:
    """Answers take 40 to 160 ms, drawn anew for each; a plan is compiled from the runs so far, then run."""
    draw = random.Random(4)

    async def think(request: ChatRequest) -> Scripted:
        await asyncio.sleep(0.04 + 0.12 * draw.betavariate(2, 4))
        return f"idea {request.seed}"

    ref = _compiler_flows.three_stages.__ramify_workflow__.ref
    errors: list[float] = []

    async def work(runtime: Runtime) -> None:
        plan: Plan | None = None
        for _ in range(12 if quick else 41):
            await runtime.run(_compiler_flows.three_stages, plan=plan)
            if plan is not None and (error := stage_error(plan, await runtime.llm_calls())) is not None:
                errors.append(error)
            seen = await observed(runtime.store, ref)
            plan = compile_workflow(_compiler_flows.three_stages, ref=ref, estimates=seen).plan

    with tempfile.TemporaryDirectory() as home:
        asyncio.run(with_runtime(Path(home), think, work))
    half = len(errors) // 2
    return [
        measured(
            "predicted against actual seconds of a stage, median error, later half of the runs",
            [100 * error for error in errors[half:]],
            "%",
            peer="the first half of the runs",
            peer_value=100 * median(errors[:half]),
        )
    ]
