"""A workflow that goes on after a failure takes the same way when it is resumed; what ended a run is tried again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import failing_app
import pytest
from samples import sample

from ramify import Runtime, step, workflow
from ramify.runtime.errors import RunFailed, StepFailed
from tests.warm_process import WarmInterpreter

pytestmark = pytest.mark.timeout(900)  # the processes of all shapes run in the first test
SHAPES = sample(6, len(failing_app.SHAPES))
HARNESS = Path(__file__).parents[2] / "apps" / "crash_trials.py"


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, warm: WarmInterpreter) -> Mapping[str, list[dict[str, Any]]]:
    """Runs that were killed and resumed, by shape; the first of a shape was not killed."""
    jobs = [[shape, "failing_app", "flow", [shape], sample(1, 100)] for shape in list(failing_app.SHAPES)[:SHAPES]]
    shown = warm.run_file(HARNESS, tmp_path_factory.mktemp("failures"), json.dumps(jobs))
    assert shown.returncode == 0, shown.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for line in shown.stdout.splitlines():
        trial = json.loads(line)
        found.setdefault(trial["job"], []).append({**trial, "stderr": shown.stderr[-2000:]})
    return found


@pytest.mark.parametrize("shape", list(failing_app.SHAPES)[:SHAPES])
def test_a_resumed_run_pays_once(trials: Mapping[str, list[dict[str, Any]]], shape: str) -> None:
    whole, *killed = trials[shape]
    assert killed
    for trial in (whole, *killed):
        assert trial["code"] == 0, trial
        payments = {line for line in (*trial["before"], *trial["after"]) if line.startswith("paid ")}
        assert len(payments) == 1, trial


async def resumed(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(failing_app, "RESUMED", True)
    return str(await runtime.resume(str(runtime.last_run_id)))


@pytest.mark.parametrize("shape", ["raised", "wrapped", "grouped", "looped"])
async def test_a_failure_that_ended_the_run_is_tried_again(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    monkeypatch.setattr(failing_app, "LOG", tmp_path / "log")
    (tmp_path / "log").touch()
    with pytest.raises(RunFailed):
        await runtime.run(failing_app.gives_up, shape)
    with pytest.raises(RunFailed):  # the cause is still there
        await runtime.resume(str(runtime.last_run_id))
    assert await resumed(runtime, monkeypatch) == "broken"
    done = (tmp_path / "log").read_text().splitlines()
    assert sorted({*done}) == sorted(done), "nothing else was done twice"


async def test_of_concurrent_customers_only_the_one_that_failed_is_tried_again(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_app, "LOG", tmp_path / "log")
    (tmp_path / "log").touch()
    with pytest.raises(RunFailed, match="some were not paid"):
        await runtime.run(failing_app.gives_up, "collected")
    assert await resumed(runtime, monkeypatch) == "confirmed broken"
    paid = [line.split(" ", 2)[2] for line in (tmp_path / "log").read_text().splitlines() if line.startswith("paid")]
    assert sorted(paid) == ["broken", "confirmed broken", "confirmed fine", "confirmed good", "fine", "good"]


async def test_a_failure_stands_if_an_irreversible_step_followed_it(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_app, "LOG", tmp_path / "log")
    (tmp_path / "log").touch()
    stands = "irreversible step 'pay' followed it.*--from STATE"
    with pytest.raises(RunFailed, match=stands):
        await runtime.run(failing_app.gives_up, "fallback")
    with pytest.raises(RunFailed, match=stands):
        await resumed(runtime, monkeypatch)
    assert [line.rpartition(" ")[2] for line in (tmp_path / "log").read_text().splitlines()] == ["before", "other"]
    base = (await runtime.store.checkpoints(str(runtime.last_run_id)))[0]
    assert await runtime.resume(str(runtime.last_run_id), back_to=base.id) == "broken", "a person said so"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


@step
async def unprintable() -> None:
    raise Unprintable


@workflow
async def ends_with_it() -> None:
    await unprintable()


async def test_an_error_that_cannot_print_itself_is_named(runtime: Runtime) -> None:
    with pytest.raises(StepFailed, match=r"Unprintable: <exception str\(\) failed>") as raised:
        await runtime.run(ends_with_it)
    assert isinstance(raised.value.__cause__, Unprintable)
