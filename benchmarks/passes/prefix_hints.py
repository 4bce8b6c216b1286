"""What a prefix hint saves: the time to the first token of a run's first model call, which follows a step."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.passes import workflows
from benchmarks.rows import Row, median_row, not_measured
from ramify import Runtime, paths
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import PREFIX, Plan
from ramify.runtime.codec import codec
from ramify.runtime.records import LLMRecord
from ramify.serving.client import LLMClient
from ramify.serving.errors import ServingError
from ramify.serving.gateway.server import LocalGateway
from ramify.serving.types import ChatRequest, ChatResult, Message

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
