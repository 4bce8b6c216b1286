"""Results are reused across branches, runs and processes, and never wrongly."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import reuse_app

from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.errors import RunFailed, WrongReuse
from ramify.runtime.estimates.cost_model import Choice, CostModel, regrets
from ramify.runtime.records import RunId, RunRecord, RunStatus, Settings
from ramify.runtime.reuse.reuse import model_of
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

EMBEDDED = Settings()
SANDBOXES = ["copy", pytest.param("namespaces", marks=pytest.mark.linux_ns)]


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log"
    path.touch()
    reuse_app.BROKEN.clear()
    monkeypatch.setattr(reuse_app, "LOG", path)
    return path


def executed(log: Path) -> int:
    return len(log.read_text().replace("\n", ""))


async def test_a_result_of_an_earlier_run_is_reused(runtime: Runtime, workspace: Path, log: Path) -> None:
    first = await runtime.run(reuse_app.builds, "a", workspace=workspace)
    source = (await runtime.journal())[0]
    assert await runtime.run(reuse_app.builds, "a", workspace=workspace) == first == ["hello.txt", "out/a"]
    taken = (await runtime.journal())[0]
    assert taken.reused_from == f"{source.run_id}#{source.seq}"
    assert executed(log) == 1


async def test_a_step_that_differs_is_computed_again(runtime: Runtime, workspace: Path, log: Path) -> None:
    await runtime.run(reuse_app.builds, "a", workspace=workspace)
    assert await runtime.run(reuse_app.builds, "b", workspace=workspace) == ["hello.txt", "out/b"]
    (workspace / "hello.txt").write_text("another\n")
    await runtime.run(reuse_app.builds, "a", workspace=workspace)
    assert executed(log) == 3


async def test_a_step_that_only_looks_equal_is_computed_again(runtime: Runtime, workspace: Path, log: Path) -> None:
    given = [{"a": 1, "b": [{"c": 1, "d": 2}]}, {"b": [{"c": 1, "d": 2}], "a": 1}, {"a": 1, "b": [{"d": 2, "c": 1}]}]
    given += [{"a": one} for one in (True, 1, 1.0, -0.0, 0.0, "é", "e\u0301", [1], (1,))]
    for value in given + given:
        assert await runtime.run(reuse_app.spells, value, workspace=workspace) == repr(value)
    assert executed(log) == len(given)


@pytest.mark.parametrize("base_url", [None, "http://model.test/v1"])
async def test_results_that_depend_on_a_model_are_not_reused_for_another(
    home: Path, workspace: Path, log: Path, base_url: str | None
) -> None:
    """An unnamed model, of a server or of the user's own client, may be another one in the next run."""

    async def said(model: str | None, named: str = "") -> str:
        transport = ScriptedModel(lambda request: f"{model or named} says {request.messages[-1].content}")
        async with (
            LLMClient("http://model.test/v1", transport=transport) as client,
            Runtime(home=home, sandbox="copy", llm=client, base_url=base_url, model=model) as runtime,
        ):
            return str(await runtime.run(reuse_app.asking, "hi", workspace=workspace))

    assert [await said("m1"), await said("m1")] == ["m1 says hi"] * 2
    assert executed(log) == 1
    assert await said("m2") == "m2 says hi"
    assert executed(log) == 2
    assert [await said(None, "one"), await said(None, "another")] == ["one says hi", "another says hi"]
    assert executed(log) == 4


def a_run(name: str, settings: Settings = EMBEDDED) -> RunRecord:
    told = ("flow", "app.py:flow", "decorators", "", SnapshotId("base"), "{}", "[]")
    return RunRecord(RunId(name), *told, settings, RunStatus.RUNNING, created_at=0.0, updated_at=0.0)


def test_the_embedded_model_is_the_same_in_every_run() -> None:
    one, other = (model_of(a_run(run), Settings()) for run in ("one", "other"))
    assert one == other
    assert one != model_of(a_run("one"), Settings(model="another"))


def test_a_users_own_client_counts_as_a_separate_model() -> None:
    own = Settings(model="m", client_url="http://a/v1")
    begun = a_run("one", own)
    words = {model_of(begun, each) for each in (own, replace(own, client_url="http://b/v1"), Settings(model="m"))}
    assert len(words) == 3
    there = Settings(base_url="http://a/v1", model="m")
    assert model_of(a_run("two", there), there) == model_of(a_run("three", there), there)
    unknown = Settings(model="m", client_url="")
    assert model_of(a_run("two", unknown), unknown) != model_of(a_run("three", unknown), unknown)
    assert model_of(a_run("two", replace(own, mixed=True)), there) != model_of(a_run("three", there), there)


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_attributes_are_part_of_a_state(
    home: Path, model: LLMClient, workspace: Path, log: Path, sandbox: str
) -> None:
    async with Runtime(home=home, sandbox=sandbox, llm=model) as runtime:
        for value in ("1", "2", "1"):
            assert await runtime.run(reuse_app.attributes, value, workspace=workspace) == value
    assert executed(log) == 2


async def test_the_same_content_with_other_times_is_the_same_state(
    runtime: Runtime, workspace: Path, log: Path
) -> None:
    await runtime.run(reuse_app.builds, "a", workspace=workspace)
    (workspace / "hello.txt").write_text("hello\n")  # a new time, so another base layer
    assert await runtime.run(reuse_app.builds, "a", workspace=workspace) == ["hello.txt", "out/a"]
    assert executed(log) == 1
    last = (await runtime.store.checkpoints((await runtime.record()).id))[-1]
    base = runtime.snapshots.get((await runtime.record()).base_snapshot)
    assert runtime.snapshots.get(last.snapshot_id).base == base.base  # stacked on the run's own base


async def test_a_lost_snapshot_is_no_hit(runtime: Runtime, workspace: Path, log: Path) -> None:
    await runtime.run(reuse_app.builds, "a", workspace=workspace)
    base = (await runtime.record()).base_snapshot
    runtime.snapshots.delete_unreachable({base})
    assert await runtime.run(reuse_app.builds, "a", workspace=workspace) == ["hello.txt", "out/a"]
    assert executed(log) == 2


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_commands_are_reused_one_by_one(
    home: Path, model: LLMClient, workspace: Path, log: Path, sandbox: str
) -> None:
    async with Runtime(home=home, sandbox=sandbox, llm=model) as runtime:
        first = await runtime.run(reuse_app.tools, "a", workspace=workspace)
        assert first[0] == "a\na\nyes\n"
        assert await runtime.run(reuse_app.tools, "a", workspace=workspace) == first
        rows = [row for row in await runtime.journal() if row.kind is OpKind.COMMAND]
        assert [row.reused_from is not None for row in rows] == [True, True]
        assert [choice.chose for choice in regrets(rows)] == ["take over"] * 2
    if sandbox == "copy":  # the others do not see the host's /tmp
        assert executed(log) == 1


async def test_a_command_that_is_surely_cheaper_is_run_again(
    runtime: Runtime, workspace: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await runtime.run(reuse_app.tools, "a", workspace=workspace)
    monkeypatch.setattr(CostModel, "again_instead", lambda *_, **__: Choice("run again", 0.001, 0.01))
    assert await runtime.run(reuse_app.tools, "a", workspace=workspace) == first
    assert executed(log) == 2
    rows = [row for row in await runtime.journal() if row.kind is OpKind.COMMAND]
    assert [row.reused_from for row in rows] == [None, None]
    assert [choice.chose for choice in regrets(rows)] == ["run again"] * 2


async def test_concurrent_branches_run_a_command_once(runtime: Runtime, workspace: Path, log: Path) -> None:
    said = await runtime.run(reuse_app.tools_at_once, workspace=workspace)
    assert said == ["x\nx\nyes\n", "x\nx\nyes\n", "y\ny\nyes\n"]
    assert executed(log) == 2


async def test_concurrent_runs_run_a_command_once(
    home: Path, model: LLMClient, workspace: Path, log: Path, runtime: Runtime
) -> None:
    async with Runtime(home=home, sandbox="copy", llm=model) as other:
        said = await asyncio.gather(*(r.run(reuse_app.slowly, workspace=workspace) for r in (runtime, other)))
    assert said == [["done\n", "done\n"]] * 2
    assert executed(log) == 1


@pytest.mark.parametrize("kind", ["result", "world"])
async def test_the_checking_mode_finds_a_wrong_hit(
    home: Path, model: LLMClient, workspace: Path, runtime: Runtime, kind: str
) -> None:
    await runtime.run(reuse_app.lying, kind, workspace=workspace)
    async with Runtime(home=home, sandbox="copy", llm=model, check_reuse=1.0) as checking:
        with pytest.raises(Exception) as caught:
            await checking.run(reuse_app.lying, kind, workspace=workspace)
        assert isinstance(caught.value.__cause__, WrongReuse)
        assert (await checking.record()).status is RunStatus.FAILED


async def test_a_wrong_hit_ends_the_run_and_not_only_its_branch(
    home: Path, model: LLMClient, workspace: Path, runtime: Runtime
) -> None:
    await runtime.run(reuse_app.lying_among_others, "result", workspace=workspace)
    async with Runtime(home=home, sandbox="copy", llm=model, check_reuse=1.0) as checking:
        with pytest.raises(RunFailed) as caught:
            await checking.run(reuse_app.lying_among_others, "result", workspace=workspace)
        assert isinstance(caught.value.__cause__, WrongReuse)


async def test_the_checking_mode_accepts_a_correct_hit(
    home: Path, model: LLMClient, workspace: Path, runtime: Runtime, log: Path
) -> None:
    wanted = [await runtime.run(app, "a", workspace=workspace) for app in (reuse_app.builds, reuse_app.tools)]
    async with Runtime(home=home, sandbox="copy", llm=model, check_reuse=1.0) as checking:
        again = [await checking.run(app, "a", workspace=workspace) for app in (reuse_app.builds, reuse_app.tools)]
    assert again == wanted
    assert executed(log) == 4


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("beside", ["before", "in"])
async def test_nothing_is_reused_while_a_background_process_runs(
    home: Path, model: LLMClient, workspace: Path, log: Path, sandbox: str, beside: str
) -> None:
    """A world with an undeclared process has no content key, so the step's state is unknown."""
    async with Runtime(home=home, sandbox=sandbox, llm=model) as runtime:
        for _ in range(2):
            await runtime.run(reuse_app.live, beside, workspace=workspace)
            rows = [row for row in await runtime.journal() if row.step in ("build", "starts", "uname -s")]
            assert rows
            assert not [row for row in rows if row.reused_from is not None]
    assert executed(log) == 2


async def test_a_resumed_run_reuses_like_an_unbroken_one(
    home: Path, model: LLMClient, workspace: Path, log: Path, runtime: Runtime
) -> None:
    """The code says whether a step is reusable; the resuming process says how many hits are checked."""
    wanted = await runtime.run(reuse_app.builds_then, "a", workspace=workspace)
    reuse_app.BROKEN.append("not yet")
    with pytest.raises(RunFailed):
        await runtime.run(reuse_app.builds_then, "a", workspace=workspace)
    reuse_app.BROKEN.clear()
    assert runtime.last_run_id is not None
    async with Runtime(home=home, sandbox="copy", llm=model, check_reuse=1.0) as later:
        assert await later.resume(runtime.last_run_id) == wanted
        built = [row for row in await later.journal() if row.step == "build" and row.kind is OpKind.RUN]
        assert [row.reused_from is not None for row in built] == [True, False]  # the second one was checked
    assert executed(log) == 3
