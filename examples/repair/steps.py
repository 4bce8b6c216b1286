"""The steps of the repair: all that uses a world or asks the model."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from ramify import Sandbox, llm, step
from ramify.serving.errors import ServingError

from .edits import apply_edit
from .prompts import SYSTEM
from .ranking import Candidate
from .suite import Suite, Survey, Trial, command, environment, read_program, read_survey, read_trial

SUITE_LIMIT_S = 120.0  # wall seconds for one run of a suite
SAMPLES = 1  # rewrites that the model gives for the most suspicious line
LINE_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines that the model wrote. `refused` is the reason if it wrote nothing."""

    texts: tuple[str, ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        return self.refused or f"{len(self.texts)} from the model"


@dataclass(frozen=True, slots=True)
class Votes:
    """The model's log-probability of each option. `refused` is the reason if there are none."""

    scores: tuple[float, ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        return self.refused or "log-probabilities " + " ".join(f"{score:.1f}" for score in self.scores)


@step(reuse=True)
async def survey(sandbox: Sandbox, name: str) -> Survey:
    """Run a program's whole suite, traced: what fails, where, and with which values."""
    program = read_program(sandbox.path / name)
    if program.problem:
        return Survey(Suite(name, program.tests), problem=program.problem)
    return read_survey(program, await _run(sandbox, command("survey", Suite(name, program.tests), program.files)))


@step(reuse=True)
async def run_tests(sandbox: Sandbox, suite: Suite) -> Trial:
    """Run a suite until it is clear whether the state of this world fixes it. Equal states share one run."""
    return read_trial(suite, await _run(sandbox, command("check", suite)))


@step
async def write_edit(sandbox: Sandbox, candidate: Candidate) -> str:
    """Make an edit in the world of this branch."""
    path = sandbox.path / candidate.program / candidate.edit.path
    text = path.read_bytes().decode("utf-8")
    path.write_bytes(apply_edit(text, candidate.edit).encode("utf-8"))
    return candidate.shown


@step(effect="pure")
async def write_lines(question: str) -> Lines:
    """Return the model's own edits. If the model is down, the result says so, and the search continues."""
    try:
        return Lines(
            tuple(await llm.propose(question, n=SAMPLES, system=SYSTEM, max_tokens=LINE_TOKENS, stop=("\n\n",)))
        )
    except ServingError as error:
        return Lines(refused=f"{type(error).__name__}: {error}")


@step(effect="pure")
async def vote(question: str, options: list[str]) -> Votes:
    """Return the model's ranking of options. They are asked in both orders, since a small model favours early
    letters.
    """
    try:
        there, back = await asyncio.gather(
            llm.choose(question, options, system=SYSTEM), llm.choose(question, options[::-1], system=SYSTEM)
        )
    except ServingError as error:
        return Votes(refused=f"{type(error).__name__}: {error}")
    return Votes(tuple((a + b) / 2 for a, b in zip(there.scores, back.scores[::-1], strict=True)))


async def _run(sandbox: Sandbox, words: list[str]) -> dict[str, Any] | None:
    """Return the runner's answer; None if the mutated program crashed the interpreter."""
    result = await sandbox.run(words, env=environment(), timeout=SUITE_LIMIT_S)
    if not result.stdout.startswith("{"):
        if "No module named 'pytest'" in result.stderr:
            raise RuntimeError("pytest cannot be imported in the world: install it beside ramify (ramify[examples])")
        return None
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer
