"""The effect of each compiler pass on what a run does and on its journal, and its absence if the pass is turned
off."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import passes_app
import pytest

from ramify import Runtime
from ramify.compiler.errors import WorkflowError
from ramify.compiler.estimates import Unmeasured
from ramify.compiler.passes import OPTIONAL
from ramify.compiler.pipeline import compile_workflow
from ramify.compiler.plan import OpId, OpKind, Plan
from ramify.runtime.codec import codec
from ramify.runtime.errors import StepFailed
from ramify.runtime.estimates.recorded_runs import CallStage, observed
from ramify.runtime.records import OpStatus
from ramify.serving.client import LLMClient

SANDBOXES = ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)]


@dataclass(frozen=True)
class Measured(Unmeasured):
    """Estimates by which `write` is cheap: repeating it costs less than a snapshot."""

    def step_s(self, step: str) -> float | None:
        return 0.001

    def rerun_s(self, step: str) -> float | None:
        return 0.001

    def seal_s(self) -> float | None:
        return 0.01

    def width(self, fork: OpId) -> int | None:
        return 2

    def calls(self, op: OpId) -> CallStage | None:
        return CallStage(op, 3, 100.0, 20.0, 2.0)


def plan_of(workflow: Any, *without: str, estimates: Any = None) -> Plan:
    passes = [name for name in OPTIONAL if name not in without]
    more = {} if estimates is None else {"estimates": estimates}
    return compile_workflow(workflow, ref=workflow.__ramify_workflow__.ref, passes=passes, **more).plan


async def kinds(runtime: Runtime) -> list[OpKind]:
    return [row.kind for row in await runtime.journal() if row.kind is not OpKind.COMMAND]


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_worlds_are_preforked_during_a_model_call_and_used_by_the_fork(
    home: Path, model: LLMClient, workspace: Path, sandbox: str
) -> None:
    async with Runtime(home=home, sandbox=sandbox, llm=model) as runtime:
        plan = plan_of(passes_app.searches)
        await runtime.run(passes_app.searches, "what?", workspace=workspace, plan=plan)
        (ready,) = [row for row in await runtime.journal() if row.kind is OpKind.PREFORK]
        assert (ready.op_id, ready.status, ready.attrs["width"]) == ("prefork.llm.1", OpStatus.DONE, "3")
        (fork,) = [row for row in await runtime.journal() if row.kind is OpKind.FORK]
        assert ready.snapshot_in == fork.snapshot_out


async def test_without_lookahead_nothing_is_preforked(runtime: Runtime, workspace: Path) -> None:
    plan = plan_of(passes_app.searches, "lookahead")
    assert all(op.kind is not OpKind.PREFORK for op in plan.ops)
    told = await runtime.run(passes_app.searches, "what?", workspace=workspace, plan=plan)
    assert OpKind.PREFORK not in await kinds(runtime)
    assert told == await runtime.run(passes_app.searches, "what?", workspace=workspace)


async def test_a_read_only_step_leaves_no_snapshot_and_no_world(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(passes_app.reads, workspace=workspace) == ["one\n", "one\ntwo\n", "2"]
    assert await kinds(runtime) == [
        OpKind.RUN,
        OpKind.SEAL,
        OpKind.RUN,
        OpKind.RUN,
        OpKind.SEAL,
        OpKind.RUN,
        OpKind.RUN,
    ]


@pytest.mark.parametrize("workflow", [passes_app.meets, passes_app.glances])
async def test_read_only_steps_run_in_parallel(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch, workflow: Any
) -> None:
    monkeypatch.setattr(passes_app, "MEETING", asyncio.Barrier(3))
    async with asyncio.timeout(60):
        assert await runtime.run(workflow, 3, workspace=workspace) == ["one\n"] * 3
    readings = [row for row in await runtime.journal() if row.step in ("meet", "glance")]
    assert len({row.snapshot_out for row in readings}) == 1


async def test_a_write_that_the_compiler_did_not_see_is_not_lost(
    runtime: Runtime, workspace: Path, tmp_path: Path
) -> None:
    """Neither in the run, nor if a resume takes the step's row from the journal."""
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(StepFailed, match="the flag is there"):
        await runtime.run(passes_app.hides_beside, str(flag), workspace=workspace)
    flag.unlink()
    done = len(await runtime.journal())
    assert await runtime.resume(str(runtime.last_run_id)) == [None, 1, 2]
    assert [row.step for row in (await runtime.journal())[done:]] == ["fails_while", "count"]
    alone = plan_of(passes_app.hides_beside, "parallel")
    assert await runtime.run(passes_app.hides_beside, str(flag), workspace=workspace, plan=alone) == [None, 2, 2]


async def test_equal_writes_are_no_conflict(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(WorkflowError, match="must conflict"):
        await runtime.run(passes_app.sets_and_resets, workspace=workspace)
    (workspace / "state").write_text("new")
    assert await runtime.run(passes_app.sets_and_resets, workspace=workspace) == "old"


async def test_files_written_by_steps_are_in_their_rows_and_in_the_next_plan(
    runtime: Runtime, workspace: Path
) -> None:
    await runtime.run(passes_app.writes, workspace=workspace)
    seen = await observed(runtime.store, passes_app.writes.__ramify_workflow__.ref)
    assert seen.wrote("write") == {"files": ("log",)}
    assert seen.wrote("count") == {}
    plan = plan_of(passes_app.writes, estimates=seen)
    assert plan.op("run.1").attrs["wrote"] == {"files": ["log"], "by": "recorded"}


@pytest.mark.parametrize("workflow", [passes_app.meets, passes_app.glances])
async def test_without_the_parallel_pass_read_only_steps_wait_for_each_other(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch, workflow: Any
) -> None:
    class Alone:
        inside = 0

        async def wait(self) -> None:
            self.inside += 1
            assert self.inside == 1
            await asyncio.sleep(0.01)
            self.inside -= 1

    monkeypatch.setattr(passes_app, "MEETING", Alone())
    plan = plan_of(workflow, "parallel")
    assert await runtime.run(workflow, 3, workspace=workspace, plan=plan) == ["one\n"] * 3


async def test_no_snapshot_after_a_step_that_is_cheap_to_repeat(runtime: Runtime, workspace: Path) -> None:
    plan = plan_of(passes_app.writes, estimates=Measured())
    assert await runtime.run(passes_app.writes, workspace=workspace, plan=plan) == 2
    assert await kinds(runtime) == [OpKind.RUN, OpKind.RUN, OpKind.SEAL, OpKind.RUN]
    whole = plan_of(passes_app.writes, "placement", estimates=Measured())
    assert sum(op.kind is OpKind.SEAL for op in whole.ops) == 3
    assert await runtime.run(passes_app.writes, workspace=workspace, plan=whole) == 2


async def test_only_steps_marked_by_the_common_pass_are_reused(runtime: Runtime, workspace: Path) -> None:
    for without, reusable in (((), True), (("common",), False)):
        plan = plan_of(passes_app.counts_in_branches, *without)
        await runtime.run(passes_app.counts_in_branches, workspace=workspace, plan=plan)
        rows = [row for row in await runtime.journal() if row.kind is OpKind.RUN]
        assert [row.lineage_key is not None for row in rows] == [reusable] * 3


async def test_an_irreversible_step_names_its_barrier(runtime: Runtime, workspace: Path) -> None:
    assert await runtime.run(passes_app.sends, workspace=workspace) == "hello"
    (sent,) = [row for row in await runtime.journal() if row.step == "send"]
    assert sent.attrs["barrier"] == "barrier.2"


async def test_calls_carry_the_rest_of_the_plan(runtime: Runtime, workspace: Path) -> None:
    plan = plan_of(passes_app.asks_twice, estimates=Measured())
    first, second = plan.expected
    assert (first.op, first.calls, first.seconds, first.tools_s) == ("llm.1", 3, 2.0, 0.001)
    assert (first.share, second.share) == pytest.approx((2.001 / 4.002, 1.0))
    assert (plan.rest_after(1), plan.rest_after(2)) == ((), None)
    await runtime.run(passes_app.asks_twice, "what?", workspace=workspace, plan=plan, deadline="60s")
    tags: list[Any] = [codec.decode(row.tags_json) for row in await runtime.llm_calls()]
    assert [tag.get("plan_rest") for tag in tags] == [(3, 100.0, 20.0, 0.001), None]
    dues = [tag["compound_due_s"] for tag in tags]
    assert 20 < dues[0] <= 30 < dues[1] <= 60, "each stage is due at its share of the deadline"
    assert all(tag["slo_deadline_s"] > 30 for tag in tags), "and only the workflow's is a limit"


async def tags_of(runtime: Runtime) -> list[Any]:
    """The tags of one call of each stage, in order."""
    tags = [codec.decode(row.tags_json) for row in await runtime.llm_calls()]
    return [tag for _, tag in sorted({tag["compound_stage"]: tag for tag in tags}.items())]


async def test_stages_are_due_on_a_first_run_too(runtime: Runtime, workspace: Path) -> None:
    """Nothing was measured: the time left is divided evenly among the stages in the code or, if the code does not
    tell their number, among one more than there have been."""
    await runtime.run(passes_app.asks_twice, "what?", workspace=workspace, deadline="600s")
    dues = [(tag["compound_stages"], tag["compound_due_s"] / tag["slo_deadline_s"]) for tag in await tags_of(runtime)]
    assert dues == [(2, pytest.approx(1 / 2, rel=0.01)), (2, pytest.approx(1, rel=0.01))]
    await runtime.run(passes_app.asks_in_a_loop, 3, workspace=workspace, deadline="600s")
    tags = await tags_of(runtime)
    assert all("compound_stages" not in tag and "plan_rest" not in tag for tag in tags), "which are no guesses"
    shares = [tag["compound_due_s"] / tag["slo_deadline_s"] for tag in tags]
    assert shares == pytest.approx([1 / 2, 1 / 3, 1 / 4], rel=0.01)


async def test_in_a_loop_the_stages_of_recorded_runs_are_expected(runtime: Runtime, workspace: Path) -> None:
    for rounds in (3, 2, 4):
        await runtime.run(passes_app.asks_in_a_loop, rounds, workspace=workspace, deadline="600s")
    await runtime.run(passes_app.asks_in_a_loop, 3, workspace=workspace, deadline="600s")
    tags = await tags_of(runtime)
    rests = [len(tag.get("plan_rest", ())) // 4 for tag in tags]
    assert rests == [1, 0, 0], "every one of them had two"
    plan = Plan.from_json((await runtime.record()).plan_json)
    shares = [stage.share for stage in plan.expected]
    assert 0 < shares[0] < shares[1] < 1
    dues = [tag["compound_due_s"] for tag in tags]
    assert dues[:2] == pytest.approx([share * 600 for share in shares], abs=20)
    assert dues[2] == pytest.approx(tags[2]["slo_deadline_s"] / 4, rel=0.01)


@pytest.mark.parametrize(("without", "grouped"), [((), True), (("stages",), False)])
async def test_samples_of_one_prompt_are_a_fork_group_to_the_scheduler(
    runtime: Runtime, workspace: Path, without: tuple[str, ...], grouped: bool
) -> None:
    plan = plan_of(passes_app.searches, *without)
    await runtime.run(passes_app.searches, "what?", workspace=workspace, plan=plan)
    groups = [
        (tag.get("fork_group"), tag.get("fork_size"))
        for tag in (codec.decode(row.tags_json) for row in await runtime.llm_calls())
    ]
    assert groups == [(f"{runtime.last_run_id}.0", 3) if grouped else (None, None)] * 3
    await runtime.run(passes_app.asks_twice, "what?", workspace=workspace)
    assert not any("fork_group" in row.tags_json for row in await runtime.llm_calls()), "each is asked alone"


async def test_without_stages_calls_carry_no_rest_and_no_due_time(runtime: Runtime, workspace: Path) -> None:
    plan = plan_of(passes_app.asks_twice, "stages", estimates=Measured())
    await runtime.run(passes_app.asks_twice, "what?", workspace=workspace, plan=plan, deadline="60s")
    tags: list[Any] = [codec.decode(row.tags_json) for row in await runtime.llm_calls()]
    assert [tag.get("plan_rest") for tag in tags] == [None, None]
    assert [tag.get("compound_due_s") for tag in tags] == [None, None]
