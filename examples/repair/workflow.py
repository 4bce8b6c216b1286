"""The repair: a search over worlds. Read it from `repair` at the bottom upwards.

For each program: run its suite, propose edits where the failing tests went, rank them (a prior, then the model),
fork a world for each of the best, run the suite there. The first world whose suite passes is merged. Two edits
that each mend some tests are merged with each other in a world of their own; an edit that mends some and breaks
none is gone deeper from. The loser worlds are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ramify import fork, workflow
from ramify.fork_engine.errors import MergeConflict

from .prompts import OPTIONS, choice_question, options, read_rewrites, rewrite_question, suspect
from .ranking import Candidate, candidates, combine
from .report import RepairReport, Row
from .steps import run_tests, survey, vote, write_edit, write_lines
from .suite import Suite, Survey

BATCH = 4  # worlds at a time; a whole batch is waited for, so that the result does not depend on who is first
DEPTH = 2  # edits that may stack up on one another
DEEPER_AT = 0.6  # of the budget spent without success: go deeper from the best half-way edits
PAIRS = 3  # merges of two half-way edits tried after each batch


@dataclass
class Hunt:
    """What one program's search has spent and found."""

    budget: int
    forks: int = 0
    edits: list[str] = field(default_factory=list)
    pool: int = 0  # distinct candidates
    place: int = 0  # of the winning edit in the order in which they were tried
    prior_place: int = 0  # and in the order without the model
    fixing: int = 0  # edits seen to mend everything, in the batch that ended the search
    ranked_by: str = "prior"

    @property
    def left(self) -> int:
        return self.budget - self.forks


@dataclass(frozen=True)
class Half:
    """An edit that mends some tests and breaks none."""

    candidate: Candidate
    fixed: frozenset[str]


async def ranked(found: Survey, hunt: Hunt) -> tuple[list[Candidate], list[Candidate]]:
    """Candidates in the order to try them in, with the model's own and its votes; and in the prior's order."""
    own = []
    if (place := suspect(found)) is not None:
        lines = await write_lines(rewrite_question(found, place))
        own = read_rewrites(found, place, lines.texts)
    pool = candidates(found, own)
    hunt.pool = pool.size
    prior = list(pool.head)
    head = prior[:OPTIONS]
    if len(head) < 2:
        return prior, prior
    votes = await vote(choice_question(found, head), options(head))
    hunt.ranked_by = f"prior (model unavailable: {votes.refused})" if votes.refused else "model"
    return combine(head, votes.scores) + prior[OPTIONS:], prior


async def search(found: Survey, hunt: Hunt, depth: int = 1) -> bool:
    """True where the current branch's world passes its suite in the end; it is unchanged otherwise."""
    order, prior = await ranked(found, hunt) if depth == 1 else (list(candidates(found).head),) * 2
    halves: list[Half] = []
    deeper_at = hunt.forks + int(hunt.left * DEEPER_AT)
    for batch in batches(order):
        if hunt.left < len(batch):
            return False
        async with fork(batch) as branches:
            hunt.forks += len(batch)
            await branches.map(write_edit)
            trials = await asyncio.gather(*(branch.run(run_tests, found.suite) for branch in branches))
            for branch, trial in zip(branches, trials, strict=True):
                if trial.passes:
                    await branch.adopt()
                    hunt.edits.append(branch.item.shown)
                    hunt.fixing = sum(t.passes for t in trials)
                    hunt.place = 1 + order.index(branch.item)
                    hunt.prior_place = 1 + prior.index(branch.item)
                    return True
        news = [Half(c, frozenset(t.fixed)) for c, t in zip(batch, trials, strict=True) if t.fixed and not t.broke]
        for pair in pairs(halves, news, found.suite):
            if await merged(pair, found.suite, hunt):
                return True
        halves += news
        if depth < DEPTH and halves and hunt.forks >= deeper_at:
            deeper_at = hunt.budget
            for half in sorted(halves, key=lambda h: -len(h.fixed))[:2]:
                if await deeper(half, found, hunt, depth):
                    return True
    return False


async def merged(pair: tuple[Half, Half], suite: Suite, hunt: Hunt) -> bool:
    """Two edits in two branches, merged in a world of their own: a merge that does not pass is simply released."""
    async with fork([suite.program]) as ground:
        async with ground[0].enter():
            async with fork([half.candidate for half in pair]) as branches:
                hunt.forks += 2
                await branches.map(write_edit)
                try:
                    await branches[0].adopt()
                    await branches[1].adopt()
                except MergeConflict:
                    return False
            trial = await run_tests(suite)
        if trial.passes:
            await ground[0].adopt()
            hunt.edits += [half.candidate.shown for half in pair]
    return trial.passes


async def deeper(half: Half, found: Survey, hunt: Hunt, depth: int) -> bool:
    """Search on from an edit that mends some tests, for what is left."""
    rest = Hunt(min(hunt.left, hunt.budget // 6))
    async with fork([half.candidate]) as branches:
        hunt.forks += 1
        await branches.map(write_edit)
        async with branches[0].enter():
            after = await survey(found.suite.program)
            solved = not after.problem and (not after.failures or await search(after, rest, depth + 1))
        hunt.forks += rest.forks
        if solved:
            await branches[0].adopt()
            hunt.edits += [half.candidate.shown, *rest.edits]
    return solved


def batches(order: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    for start in range(0, len(order), BATCH):
        yield list(order[start : start + BATCH])


def pairs(old: list[Half], new: list[Half], suite: Suite) -> list[tuple[Half, Half]]:
    """Pairs worth merging: together they mend every failing test; those that share nothing first."""
    wanted = frozenset(suite.failing)
    found = [
        (one, two)
        for place, two in enumerate(new)
        for one in [*old, *new[:place]]
        if one.fixed | two.fixed == wanted and not one.fixed >= two.fixed and not two.fixed >= one.fixed
    ]
    return sorted(found, key=lambda pair: len(pair[0].fixed & pair[1].fixed))[:PAIRS]


@workflow(deadline="150s")
async def repair(programs: list[str], budget: int = 160) -> RepairReport:
    """Repair programs of the workspace, one after the other, with at most `budget` forks each."""
    rows = []
    for name in programs:
        found = await survey(name)
        hunt = Hunt(budget)
        repaired = False
        if not found.problem and found.failures:
            repaired = await search(found, hunt) and (await run_tests(found.suite)).passes
        rows.append(Row.of(found, hunt, repaired))
    return RepairReport(tuple(rows))
