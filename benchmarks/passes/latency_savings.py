"""What two passes save when their plans run: steps that run in parallel, and work that branches share."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.passes import workflows
from benchmarks.passes.recorded_turns import with_runtime
from benchmarks.rows import Row, median_row
from ramify import Runtime
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.serving.testing import Scripted
from ramify.serving.types import ChatRequest

MANY = 8
THINKING_S = 0.2


def parallel_rows(quick: bool) -> list[Row]:
    """The steps declare nothing. The compiler sees from their code that they only read."""
    name = f"{MANY} steps that read a file and ask a model ({THINKING_S:g} s) at once, the run"
    return [_row("parallel", workflows.reviews, name, quick)]


def common_rows(quick: bool) -> list[Row]:
    """Each run has a new home, so that it cannot reuse results of an earlier one."""
    name = f"{MANY} branches that begin with the same work of 0.2 s, the run"
    return [_row("common", workflows.prepared, name, quick)]


def _row(switch: str, flow: Any, name: str, quick: bool) -> Row:
    """Alternate runs with the pass and without it."""
    ref = flow.__ramify_workflow__.ref
    both = {"with": OPTIONAL, "without": tuple(one for one in OPTIONAL if one != switch)}
    plans = {key: compile_workflow(flow, ref=ref, passes=passes).plan for key, passes in both.items()}
    times: dict[str, list[float]] = {"with": [], "without": []}

    async def think(request: ChatRequest) -> Scripted:
        await asyncio.sleep(THINKING_S)
        return "fine"

    for number in range(-1, 3 if quick else 20):  # the first one is a warm-up
        for key, plan in plans.items():

            async def work(runtime: Runtime, plan: Any = plan, key: str = key, number: int = number) -> None:
                begun = time.perf_counter()
                await runtime.run(flow, MANY, plan=plan)
                if number >= 0:
                    times[key].append(time.perf_counter() - begun)

            with tempfile.TemporaryDirectory() as home:
                asyncio.run(with_runtime(Path(home), think, work))
    return median_row(name, times["with"], "s", peer=f"without {switch}", peer_value=median(times["without"]))
