"""mini-swe-agent's own loop with a scripted model: 24 turns that read, run tests, edit one line, and submit.

All turns before `DECISIVE` are the same for every attempt at a task. The decisive turn writes one of the eight lines
that the operator could be.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import Any

from benchmarks.rollouts.projects import Task

_TEMPLATES = {"system_template": "You fix bugs.", "instance_template": "Fix the bug: {{task}}"}
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def before(task: Task) -> list[str]:
    """The 20 turns before the decisive one."""
    project, at = task.project, task.number
    tests, file = project.tests[0], project.file
    run = project.test_command

    def lines(first: int, last: int) -> str:
        return f"sed -n '{max(1, first)},{max(2, last)}p' {file}"

    return [
        "ls -la",
        "head -c 1500 README*",
        "find . -name '*.py' | sort | xargs wc -l | tail -n 40",
        f"{run} 2>&1 | tail -n 40",
        f"grep -nE '^(def|class) ' {file}",
        lines(1, 80),
        f"head -n 80 {tests}",
        f"grep -n assert {tests} | head -n 60",
        f"grep -rn import {file} | head -n 30",
        f"{run} -x 2>&1 | head -n 60",
        lines(at - 80, at - 20),
        lines(at - 20, at + 20),
        lines(at + 20, at + 80),
        f"grep -nE 'if |while ' {file} | head -n 60",
        f"wc -l {file} {tests}",
        "find . -name '*.toml' -o -name '*.cfg' | sort",
        "head -n 40 pyproject.toml",
        f"python3 -c 'import ast; print(len(ast.parse(open(\"{file}\").read()).body))'",
        f"{run} --tb=long 2>&1 | tail -n 60",
        lines(at - 5, at + 5),
    ]


def after(task: Task, attempt: str) -> list[str]:
    """The decisive turn with this line, and the three after it."""
    number, file = task.number, task.project.file
    edit = f"s/^.*$/{attempt.replace('/', chr(92) + '/')}/"
    return [
        f"sed -i {quote(f'{number}{edit}')} {file} && sed -n {number}p {file}",
        f"{task.project.test_command} > .log 2>&1; echo $? | tee .status; tail -n 5 .log",
        f"grep -c . {file}; cat .status",
        f"{SUBMIT}; cat .status; sed -n {number}p {file}",
    ]


DECISIVE = 21


class Timed:
    """An environment of mini-swe-agent that adds up the seconds of its commands."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.seconds = 0.0

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        begun = time.perf_counter()
        try:
            result: dict[str, Any] = self.environment.execute(action, cwd)
            return result
        finally:
            self.seconds += time.perf_counter() - begun

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)


def agent(environment: Any, commands: Sequence[str]) -> Any:
    """An agent of mini-swe-agent whose model says these commands, one a turn."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.models.test_models import DeterministicModel, make_output

    outputs = [make_output("", [{"command": command}]) for command in commands]
    return DefaultAgent(DeterministicModel(outputs=outputs), environment, cost_limit=0, **_TEMPLATES)


def rollout(environment: Any, task: Task, attempt: str) -> str:
    """A whole rollout. Returns its submission: the exit code of the tests, and the line."""
    made = agent(environment, [*before(task), *after(task, attempt)])
    try:
        return str(made.run(task.project.name)["submission"])
    except IndexError:
        raise AssertionError(f"the rollout ended without a submission: {made.messages[-1]}") from None


@dataclass(frozen=True)
class Attempts:
    """What the attempts at a task submitted, and the seconds of all their commands and forks."""

    submissions: list[str]
    tool_s: float

    @property
    def best(self) -> str:
        return next((one for one in self.submissions if one.startswith("0\n")), "")


def whole_attempts(open_environment: Any, task: Task, count: int) -> Attempts:
    """Best of `count` by whole rollouts, with the last attempts, of which the very last is right.

    open_environment: makes a fresh environment, a context manager.
    """
    submissions, seconds = [], 0.0
    for attempt in task.project.attempts[-count:]:
        with open_environment() as environment:
            timed = Timed(environment)
            submissions.append(rollout(timed, task, attempt))
            seconds += timed.seconds
    return Attempts(submissions, seconds)


def forked_attempts(open_environment: Any, task: Task, count: int) -> Attempts:
    """Best of `count` by forks of the world and the messages at the decisive turn."""
    attempts = task.project.attempts[-count:]
    with open_environment() as environment:
        timed = Timed(environment)
        parent = agent(timed, [*before(task), "exit 1"])
        parent.add_messages(parent.model.format_message(role="user", content=task.project.name))
        for _ in range(DECISIVE - 1):
            parent.step()
        with _forked(environment, len(attempts)) as (forks, seconds):
            total, submissions = timed.seconds + seconds, []
            for fork, attempt in zip(forks, attempts, strict=True):
                child = Timed(fork)
                submissions.append(_finished(parent, child, after(task, attempt)))
                total += child.seconds
    return Attempts(submissions, total)


@contextmanager
def _forked(environment: Any, count: int) -> Iterator[tuple[list[Any], float]]:
    begun = time.perf_counter()
    forks = environment.fork(count)
    seconds = time.perf_counter() - begun
    try:
        yield forks, seconds
    finally:
        for fork in forks:
            fork.cleanup()


def _finished(parent: Any, environment: Timed, commands: Sequence[str]) -> str:
    """Go on with the parent's messages until the agent submits."""
    from minisweagent.exceptions import Submitted

    child = agent(environment, commands)
    child.messages = copy.deepcopy(parent.messages)
    try:
        while True:
            child.step()
    except Submitted as done:
        return str(done.messages[0]["extra"]["submission"])
