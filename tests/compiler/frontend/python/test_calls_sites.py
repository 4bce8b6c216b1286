from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpKind, Plan

# Each call is of another step, so a wrong site is noticed.
LAYOUTS = """
def made(index):
    async def numbered(sandbox: Sandbox, x=None): ...
    numbered.__qualname__ = f"s{index}"
    return step(numbered)

(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15, s16, s17, s18, s19, s20, s21, s22
) = map(made, range(23))

@workflow
async def flow(x=1):
    await s0(await s1(await s2(x)))
    await (
        s3
        (
            x,
        )
    )
    a, b = await asyncio.gather(s4(x), s5(s4))
    [await s6(i) for i in range(2)]
    tasks = [asyncio.create_task(s7(i)) for i in range(2)]
    await asyncio.gather(*tasks, *(s8(i) for i in range(2)))
    é = await s9({"ключ": await s10(x)}); await s11(x)  # columns count UTF-8 bytes
    if await s12(x) or await s13(x):
        await s14(x) if x else await s15(x)

    async def local(y):
        await s16(y)

    await local(1); await local(2)
    async with (
        fork([1, 2]) as branches,
        branches[0].enter(),
    ):
        await (branches
            .map(s17, [await s18(x)])
        )
        (await branches
            .run(
                s19,
            )
        ).best(
        )
        await (branches
            .best()
            .adopt
            ())
    await llm \\
        .chat(f"{await s20(x)!r}")
    try:
        return await s21(x)
    finally:
        while not await s22(x):
            pass
"""


def assert_sites_hold(plan: Plan, recorder: Any, never_called: set[str]) -> None:
    reached = set()
    for kind, step, file, line, col in recorder.calls:
        op = plan.at(kind, file, line, col)
        assert op is not None, f"no {kind} of {step} at {file}:{line}:{col}"
        assert op.step == step
        reached.add(op.id)
    kinds = {OpKind.RUN, OpKind.FORK, OpKind.MERGE, OpKind.CALL_LLM}
    assert {op.step for op in plan.ops if op.kind in kinds and op.id not in reached} == never_called


async def test_the_position_of_a_running_frame_is_the_site_of_its_operation(
    compile_source: Callable[..., Any], recorder: Any
) -> None:
    plan = compile_source(LAYOUTS).plan
    await sys.modules["sample"].flow()
    assert_sites_hold(plan, recorder, {"s13", "s15"})


async def test_frame_positions_are_sites_in_a_workflow_with_helpers(
    sample: Callable[[str], ModuleType], recorder: Any
) -> None:
    module = sample("repair")
    plan = compile_workflow(module.repair, ref="samples/repair.py:repair").plan
    await module.repair("text")
    assert_sites_hold(plan, recorder, set())


async def test_a_frame_that_awaits_unread_code_is_inside_the_graph_break(
    compile_source: Callable[..., Any],
) -> None:
    """While an awaited call runs, its caller's frame is at the `await`, not at the call."""
    plan = compile_source("""
@workflow
async def flow(strategy):
    value = await strategy(
        1,
    )
""").plan
    places = []

    async def strategy(x: int) -> None:
        frame = sys._getframe(1)
        line, _, col, _ = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        places.append((line, col))

    await sys.modules["sample"].flow(strategy)
    op = plan.at(OpKind.BREAK, "app/sample.py", *places[0])
    assert op is not None
    assert op.id == "break.1"
