"""Concurrent tasks of a run that is killed and resumed: each keeps what it got, and nothing is done twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ordered_app
import pytest
from samples import sample

from ramify import Runtime
from ramify.runtime.errors import StepFailed
from tests.warm_process import WarmInterpreter

pytestmark = pytest.mark.timeout(900)  # the processes of all shapes run in the first test
HARNESS = Path(__file__).parents[2] / "apps" / "crash_trials.py"
TRIALS = sample(1, 4)  # crash points a shape; each takes two processes
Tasks = list[tuple[str, list[float]]]


def tasks_of(shape: str) -> Tasks:
    chance = random.Random(shape)
    names = ["a", "bo", "cyd", "dora"][: chance.randint(2, 4)]
    tasks = [(name, [chance.choice((0, 0.02, 0.05, 0.1)) for _ in range(chance.randint(1, 3))]) for name in names]
    tasks[0][1][0] = 0.15  # the first to begin is not the first to make the equal call
    return tasks


def judge(trial: dict[str, Any], tasks: Tasks) -> list[str]:
    """Return what is wrong. The log tells what was done, and, in every process, who got what."""
    if trial["code"] != 0:
        return [f"exit {trial['code']}"]
    wrong: list[str] = []
    got: dict[str, str] = {}
    for line in (*trial["before"], *trial["after"]):
        if line.startswith("got "):
            _, whose, value = line.split(" ", 2)
            if got.setdefault(whose, value) != value:
                wrong.append(f"{whose} got {got[whose]}, and later {value}")
    known = {line.split(" ")[1] for line in trial["before"] if line.startswith("got ")}
    done = Counter(line for line in (*trial["before"], *trial["after"]) if not line.startswith("got "))
    wrong += [
        f"{line} was done {n} times" for line, n in done.items() if n > 1 and line.removeprefix("work ") in known
    ]
    in_flight = len(tasks) + 1
    calls = sum(len(pauses) for _, pauses in tasks) + len(tasks)
    made = done["nid"] + done["look"] + done["asked"]
    if made > calls + in_flight:
        wrong.append(f"{made} equal calls were made instead of {calls}")
    return wrong


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory, warm: WarmInterpreter) -> Mapping[str, list[dict[str, Any]]]:
    """Runs that were killed and resumed, by shape; the first of a shape was not killed."""
    jobs = [[shape, "ordered_app", "flow", [shape, tasks_of(shape)], TRIALS] for shape in ordered_app.SHAPES]
    shown = warm.run_file(HARNESS, tmp_path_factory.mktemp("order"), json.dumps(jobs))
    assert shown.returncode == 0, shown.stderr
    found: dict[str, list[dict[str, Any]]] = {}
    for line in shown.stdout.splitlines():
        trial = json.loads(line)
        found.setdefault(trial["job"], []).append({**trial, "stderr": shown.stderr[-2000:]})
    return found


@pytest.mark.parametrize("shape", ordered_app.SHAPES)
def test_a_resumed_run_gives_each_task_what_it_got(trials: Mapping[str, list[dict[str, Any]]], shape: str) -> None:
    assert len(trials[shape]) == TRIALS + 1
    for trial in trials[shape]:
        wrong = judge(trial, tasks_of(shape))
        assert not wrong, f"{wrong}: {trial}"


async def test_steps_that_changed_a_world_in_another_order_than_their_tasks_began_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_app, "LOG", tmp_path / "log")
    async with Runtime(home=tmp_path / "home", sandbox="copy") as runtime:
        with pytest.raises(StepFailed):
            await runtime.run(ordered_app.paying)
        (record,) = await runtime.store.runs()
        assert await runtime.resume(record.id) == ["ada", "bob"]
    done = (tmp_path / "log").read_text().splitlines()
    assert sorted(done) == ["pay ada", "pay bob", "work ada", "work bob"]
    assert done.index("pay bob") < done.index("pay ada")
