"""Screens the unlikely candidates in forked interpreters inside one world, before any of them gets a world.

A world costs a mount and a new interpreter that imports pytest, about 0.15 s; a forked interpreter costs 0.03 s. So
the head of the ranking gets a world each at once, and the tail only if an edit fixes something here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ramify import Sandbox, step

from .edits import apply_edit
from .ranking import Candidate
from .suite import RUNNER, Suite, Trial, environment, read_trial

SCREENER = Path(__file__).with_name("screener.py")
LIMIT_S = 300.0  # wall seconds for one screening


@dataclass(frozen=True, slots=True)
class Screened:
    """One trial for each candidate, in their order."""

    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        mending = [trial for trial in self.trials if trial.fixed and not trial.broke]
        return f"{len(mending)} of {len(self.trials)} mend something, {sum(t.passes for t in mending)} everything"


@step(reuse=True)
async def screen(sandbox: Sandbox, suite: Suite, tail: list[Candidate]) -> Screened:
    """Return what each edit would do to the suite. A program that runs itself as another process is not seen here."""
    folder = sandbox.path / suite.program
    texts = {path: (folder / path).read_bytes().decode("utf-8") for path in {c.edit.path for c in tail}}
    asked = {
        "runner": RUNNER.read_text(),
        "mode": "check",
        "cwd": suite.program,
        "tests": suite.tests,
        "limit": suite.limit,
        "failing": suite.failing,
        "hangs": suite.hangs,
        "candidates": [[c.edit.path, apply_edit(texts[c.edit.path], c.edit)] for c in tail],
    }
    words = [sys.executable, "-S", "-c", SCREENER.read_text()]
    result = await sandbox.run(words, stdin=json.dumps(asked), env=environment(), timeout=LIMIT_S)
    if not result.stdout.startswith("["):
        return Screened(tuple(Trial() for _ in tail))
    answers = json.loads(result.stdout)
    return Screened(tuple(Trial() if answer is None else read_trial(suite, answer) for answer in answers))
