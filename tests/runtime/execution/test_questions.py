"""A workflow that asks a person is stopped, answered and resumed, in any process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asking_app
import pytest

from ramify import Runtime
from ramify.runtime.errors import NotInARun, RunError, RunFailed, RunWaiting, SeveralQuestions
from ramify.runtime.records import RunStatus
from tests.warm_process import WarmInterpreter


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    asking_app.DONE.clear()
    yield


async def waiting(work: Any) -> RunWaiting:
    with pytest.raises(RunWaiting) as caught:
        await work
    return caught.value


async def question(work: Any) -> Any:
    return (await waiting(work)).question


async def test_it_stops_and_continues_with_the_answer(runtime: Runtime, workspace: Path) -> None:
    assert await question(runtime.run(asking_app.asks, "rm", workspace=workspace)) == {"really": "rm"}
    run = await runtime.record()
    assert (run.status, run.error) == (RunStatus.WAITING, "")
    assert await question(runtime.resume(run.id)) == {"really": "rm"}  # nobody answered
    assert await runtime.resume(run.id, answer={"yes": True}) == {
        "answer": {"yes": True},
        "files": ["after", "before", "hello.txt"],
    }
    assert asking_app.DONE == ["before", "after"]
    assert await runtime.resume(run.id) == {"answer": {"yes": True}, "files": ["after", "before", "hello.txt"]}


async def test_a_caught_failure_before_the_question_is_not_retried(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await question(runtime.run(asking_app.asks_after_a_failure, workspace=workspace)) == "it said 7, go on?"
    run = str(runtime.last_run_id)
    monkeypatch.setattr(asking_app, "BROKEN", [False])
    with pytest.raises(RunFailed, match="stopped"):
        await runtime.resume(run, answer="no")
    with pytest.raises(RunFailed, match="stopped"):
        await runtime.resume(run)
    assert asking_app.DONE == ["fails"], "the workflow went on after it, so it is not why the run ended"
    base = (await runtime.store.checkpoints(run))[0]
    assert await question(runtime.resume(run, back_to=base.id)) == "it said done, go on?"
    assert asking_app.DONE == ["fails", "fails"]


async def test_the_workflow_takes_the_same_path_as_when_it_asked(
    runtime: Runtime, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await question(runtime.run(asking_app.asks_after_a_failure, workspace=workspace)) == "it said 7, go on?"
    monkeypatch.setattr(asking_app, "BROKEN", [False])
    assert await runtime.resume(str(runtime.last_run_id), answer="yes") == [7, ["after", "hello.txt"]]
    assert asking_app.DONE == ["fails", "after"]


async def test_asking_the_same_again_is_another_question(runtime: Runtime) -> None:
    assert await question(runtime.run(asking_app.asks_in_a_loop)) == "more?"
    run = str(runtime.last_run_id)
    for answer in ("yes", "and more"):
        assert await question(runtime.resume(run, answer=answer)) == "more?"
    assert await runtime.resume(run, answer="stop") == ["yes", "and more", "stop"]


async def test_concurrent_questions_are_all_reported_and_answered_by_id(runtime: Runtime) -> None:
    asked = await waiting(runtime.run(asking_app.asks_at_once))
    run = str(runtime.last_run_id)
    assert [one.question for one in asked.questions] == ["left", "right"]
    left, right = (one.id for one in asked.questions)
    assert f"  {left}  left\n  {right}  right" in str(asked)
    with pytest.raises(SeveralQuestions, match=left) as refused:
        await runtime.resume(run, answer="which of them?")
    assert [one.id for one in refused.value.questions] == [left, right]
    again = await waiting(runtime.resume(run, answers={right: "R"}))
    assert [one.id for one in again.questions] == [left]
    assert await runtime.resume(run, answer="L") == ["L", "R"]


@pytest.mark.parametrize("answer", [True, False])
async def test_a_question_on_a_branch(runtime: Runtime, workspace: Path, answer: bool) -> None:
    assert await question(runtime.run(asking_app.asks_on_a_branch, workspace=workspace)) == "adopt b?"
    files = await runtime.resume(str(runtime.last_run_id), answer=answer)
    assert files == sorted([*(["b"] if answer else []), "end", "hello.txt"])
    assert sorted(asking_app.DONE) == ["a", "b", "end"]  # nothing twice


async def test_only_asked_questions_can_be_answered(runtime: Runtime, workspace: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        await runtime.run(asking_app.asks_in_a_step)
    assert isinstance(caught.value.__cause__, NotInARun)
    with pytest.raises(RunError, match="has no open question"):
        await runtime.resume(str(runtime.last_run_id), answer=1)


def test_on_the_command_line(tmp_path: Path, workspace: Path, warm: WarmInterpreter) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.run(["--home", tmp_path / "h", *arguments], cwd=tmp_path)

    app = f"{asking_app.__file__}:asks"
    asked = call("run", app, "rm", "--sandbox", "copy", "--workspace", str(workspace))
    assert (asked.returncode, asked.stdout) == (3, "")
    assert "--answer" in asked.stderr
    assert "waiting" in call("ls").stdout
    assert "asked" in call("tree").stdout
    done = call("resume", "--answer", '{"yes": false}', "-q")
    assert (done.returncode, '"yes": false' in done.stdout) == (0, True), done.stderr
