"""Turns recorded once from two examples, repair and the LangGraph coder, with a scripted model and several seeds.

A turn is a step or node that was executed, not reused. Each workflow runs twice with the same answers: as Ramify runs
it, and without the optional passes in full copies of the folder. Restored states are compared with those of the
second run.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import ramify
from examples.coder_graph.graph import build
from examples.repair.workflow import repair
from ramify import Runtime
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpKind
from ramify.fork_engine.store import SnapshotStore
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.records import OpRecord, OpStatus
from ramify.serving.client import LLMClient
from ramify.serving.testing import Script, Scripted, ScriptedModel
from ramify.serving.types import ChatRequest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

Tree = dict[str, tuple[str, int, str]]
Key = tuple[str, int, str | int]


@dataclass(frozen=True, slots=True)
class Turn:
    """`key` identifies the turn in both runs."""

    key: Key
    row: OpRecord
    sealed: bool  # a snapshot was taken after it


@dataclass(frozen=True)
class Recorded:
    turns: tuple[Turn, ...]
    truth: dict[Key, Tree | None]  # key → the files after the turn; None if it has no world
    snapshots: SnapshotStore
    whole: tuple[OpRecord, ...]  # the whole first repair


async def with_runtime(
    home: Path, script: Script, work: Callable[[Runtime], Awaitable[None]], sandbox: str = "namespaces"
) -> None:
    async with (
        LLMClient("http://model.test/v1", transport=ScriptedModel(script)) as client,
        Runtime(home=home, sandbox=sandbox, llm=client) as runtime,
    ):
        await work(runtime)


def answers(seed: int) -> Script:
    """Return a script that gives the same answer to the same question, and others for another seed."""

    def answer(request: ChatRequest) -> Scripted:
        if request.max_tokens != 1:
            return "pass"
        said = hashlib.sha256(f"{seed} {request.messages[-1].content}".encode()).digest()
        return {letter: 1.0 + byte for letter, byte in zip("ABCDEFGH", said, strict=False)}

    return answer


@cache
def recorded(quick: bool) -> Recorded:
    """Record 200 turns (24 with `quick`), half of them from each example."""
    wanted, programs, budget = (24, 1, 8) if quick else (200, 3, 16)
    home, peer = Path(_kept().name) / "home", Path(_kept().name) / "peer"
    turns: list[Turn] = []
    truth: dict[Key, Tree | None] = {}
    whole: tuple[OpRecord, ...] = ()
    for name, record in (
        ("coder", record_coder),
        ("repair", partial(record_repair, together=programs, budget=budget)),
    ):
        mine: list[Turn] = []
        seed = 0
        while len(mine) < wanted // 2:
            rows = record(home, seed, peer=False)
            mine += _turns(name, seed, rows)
            truth |= _trees(peer, name, seed, record(peer, seed, peer=True))
            whole = whole or (tuple(rows) if name == "repair" else ())
            seed += 1
        turns += mine[: wanted // 2]
    return Recorded(tuple(turns), truth, SnapshotStore(ramify.paths.snapshots(home)), whole)


@cache
def one_run(quick: bool) -> Recorded:
    """Record as many turns from a single run of repair on eight programs (one with `quick`)."""
    wanted, programs = (24, 1) if quick else (200, 8)
    home, peer = Path(_kept().name) / "home", Path(_kept().name) / "peer"
    seed = 1000  # not used by `recorded`
    rows = record_repair(home, seed, peer=False, together=programs, budget=16)
    turns = _turns("repair", seed, rows)[:wanted]
    truth = _trees(peer, "repair", seed, record_repair(peer, seed, peer=True, together=programs, budget=16))
    return Recorded(tuple(turns), truth, SnapshotStore(ramify.paths.snapshots(home)), tuple(rows))


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()  # until the process ends


def record_repair(home: Path, seed: int, *, peer: bool, together: int, budget: int) -> list[OpRecord]:
    rows: list[OpRecord] = []
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "programs"
        shutil.copytree(EXAMPLES / "repair" / "programs", programs)
        names = sorted(path.name for path in programs.iterdir() if path.is_dir())
        names = [names[(seed * together + i) % len(names)] for i in range(together)]
        ref = repair.__ramify_workflow__.ref
        plan = compile_workflow(repair, ref=ref, passes=()).plan if peer else None

        async def work(runtime: Runtime) -> None:
            await runtime.run(repair, names, budget, workspace=programs, plan=plan)
            rows.extend(await runtime.journal())

        asyncio.run(with_runtime(home, answers(seed), work, "copy" if peer else "namespaces"))
    return rows


def record_coder(home: Path, seed: int, *, peer: bool) -> list[OpRecord]:
    async def run() -> list[OpRecord]:
        async with LLMClient("http://model.test/v1", transport=ScriptedModel(answers(seed))) as client:
            project = EXAMPLES / "coder_graph" / "project"
            backend = "copy" if peer else "namespaces"
            with ramify.compile(build(), project, name="coder", home=home, llm=client, sandbox=backend) as app:
                await app.ainvoke({}, {"recursion_limit": 200})
                run_id = app.session.last_run_id
        async with Runtime(home=home) as runtime:
            return await runtime.journal(run_id)

    return asyncio.run(run())


def _done(name: str, seed: int, rows: list[OpRecord]) -> Iterator[tuple[Key, OpRecord]]:
    done = [row for row in rows if row.kind is OpKind.RUN and row.status is OpStatus.DONE]
    for place, row in enumerate(done):  # the coder's turns are sequential, with names that depend on its thread
        yield (name, seed, place if name == "coder" else row.key), row


def _turns(name: str, seed: int, rows: list[OpRecord]) -> list[Turn]:
    seals = {row.key for row in rows if row.kind is OpKind.SEAL and row.status is OpStatus.DONE}
    found = (Turn(key, row, f"{row.key}|SEAL" in seals) for key, row in _done(name, seed, rows))
    return [turn for turn in found if turn.row.reused_from is None]


def _trees(home: Path, name: str, seed: int, rows: list[OpRecord]) -> dict[Key, Tree | None]:
    snapshots = SnapshotStore(ramify.paths.snapshots(home))
    return {key: tree(snapshots, row.snapshot_out or row.snapshot_in) for key, row in _done(name, seed, rows)}


def tree(snapshots: SnapshotStore, id: SnapshotId | None) -> Tree | None:
    """Return a state's files by content, without Python's caches, which contain times."""
    if id is None:
        return None
    entries = snapshots.entries(snapshots.get(id))
    return {path: entry.content for path, entry in entries.items() if "__pycache__" not in path}
