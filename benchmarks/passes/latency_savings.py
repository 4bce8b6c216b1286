"""What single passes save when their plans run: parallel steps, shared work, prefix hints, worlds of fan-outs."""

from __future__ import annotations

import asyncio
import operator
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import Send

import ramify
from benchmarks.passes import workflows
from benchmarks.passes.recorded_turns import with_runtime
from benchmarks.rows import Row, median_row, not_measured
from ramify import Runtime, Sandbox, paths
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import PREFIX, Plan
from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord
from ramify.serving.client import LLMClient
from ramify.serving.errors import ServingError
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.testing import Scripted
from ramify.serving.types import ChatRequest, ChatResult, Message

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


NAME = "time to the first token of a run's first call, its system prompt read while a step of 1 s runs"
OTHER = ChatRequest((Message("system", "You count."), Message("user", "one, two")), max_tokens=1)


def hint_rows(quick: bool) -> list[Row]:
    """The gateway has a prefix cache, one slot, and no other client. Another prompt before each run evicts the cached
    prefix."""
    try:
        return [asyncio.run(_measured(3 if quick else 20))]
    except ServingError as error:
        return [not_measured(NAME, "ms", str(error))]


async def _measured(times: int) -> Row:
    flow = workflows.prepares_and_asks
    ref = flow.__ramify_workflow__.ref
    without = [name for name in OPTIONAL if name != "lookahead"]
    plans = {
        "with": compile_workflow(flow, ref=ref).plan,
        "without": compile_workflow(flow, ref=ref, passes=without).plan,
    }
    assert [any(PREFIX in op.attrs for op in plan.ops) for plan in plans.values()] == [True, False]
    took: dict[str, list[float]] = {name: [] for name in plans}
    tokens = 0
    with tempfile.TemporaryDirectory() as home:
        async with (
            LocalGateway(home=paths.home(), prompt_cache=True) as gateway,
            LLMClient(gateway.base_url) as client,
            Runtime(home=Path(home), sandbox="copy", llm=client) as runtime,
        ):
            for _ in range(times):
                for name, plan in plans.items():
                    await client.chat(OTHER)
                    result = await _first_call(runtime, plan)
                    assert result.ledger is not None
                    took[name].append(1000 * result.ledger.first_token_s)
                    tokens = result.prompt_tokens
    return median_row(
        NAME,
        took["with"],
        "ms",
        peer="without lookahead, ms",
        peer_value=median(took["without"]),
        note=f"without: {min(took['without']):.4g}–{max(took['without']):.4g}; SmolLM2-135M on this machine's CPU, "
        f"a prompt of {tokens} tokens, {times} runs of each",
    )


async def _first_call(runtime: Runtime, plan: Plan) -> ChatResult:
    await runtime.run(workflows.prepares_and_asks, plan=plan)
    calls: list[LLMRecord] = await runtime.llm_calls()
    result: ChatResult = codec.decode(calls[0].result_json)
    return result


FAN_OUT = 16
SEND_THINKING_S = 0.5


class State(TypedDict, total=False):
    ideas: list[int]
    done: Annotated[list[int], operator.add]


async def think(state: State) -> State:
    await asyncio.sleep(SEND_THINKING_S)
    return {"ideas": list(range(FAN_OUT))}


async def act(state: Any, sandbox: Sandbox) -> State:
    (sandbox.path / f"made-{state['idea']}").write_text("x")
    return {"done": [state["idea"]]}


def send_rows(quick: bool) -> list[Row]:
    """The longest wait of a task for its world, next to the whole invocation. The first one starts the sandboxes and
    is not counted."""
    waits: list[float] = []
    whole: list[float] = []

    async def work(home: Path, workspace: Path) -> None:
        graph: Any = StateGraph(State).add_node("think", think).add_node("act", act).add_edge(START, "think")
        graph.add_conditional_edges(
            "think", lambda state: [Send("act", {"idea": i}) for i in state["ideas"]], ["act"]
        )
        app = ramify.compile(graph, workspace, home=home, sandbox="namespaces", name="sends")
        try:
            for number in range(-1, 3 if quick else 20):
                begun = time.perf_counter()
                await app.ainvoke({})
                took = 1000 * (time.perf_counter() - begun)
                services = await app.session.portal.cross(app.session.services())
                rows = await app.session.portal.cross(services.store.ops(app.session.last_run_id))
                if number >= 0:
                    whole.append(took)
                    waits.append(max(float(row.attrs.get("fork_ms", 0.0)) for row in rows if row.step == "act"))
        finally:
            app.close()

    with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as workspace:
        asyncio.run(work(Path(home), Path(workspace)))
    return [
        median_row(
            f"the longest wait for a world of a fan-out of {FAN_OUT} Sends, without lookahead",
            waits,
            "ms",
            peer=f"the whole invocation, with a model that thinks for {SEND_THINKING_S:g} s",
            peer_value=sorted(whole)[len(whole) // 2],
        )
    ]
