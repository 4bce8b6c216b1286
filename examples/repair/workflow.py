"""The repair: a search over worlds. Read it from `repair` at the bottom upwards.

For each program: run its suite, propose edits in the code that the failing tests ran, rank them (by a prior, then by
the model), fork a world for each of the best, and run the suite there. The first world whose suite passes is merged.
Two edits that each fix some tests are merged with each other in a world of their own. From an edit that fixes some
tests and breaks none, the search goes deeper. If the head of the ranking fixes nothing, its long tail is screened
first, and only edits that fix something there get a world. The other worlds are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ramify import fork, workflow
from ramify.fork_engine.errors import MergeConflict

from .hunt import BATCH, Half, Hunt, Ranking, batches, half_way, pairs
from .prompts import OPTIONS, choice_question, options, read_rewrites, rewrite_question, suspect
from .ranking import Candidate, candidates, combine
from .report import RepairReport, Row
from .screen import screen
from .steps import run_tests, survey, vote, write_edit, write_lines
from .suite import Suite, Survey

DEPTH = 2  # edits that may be combined
HEAD = 32  # candidates that get a world at once
CHUNK = 300  # of the tail, screened together
TAIL = 2400  # candidates that are looked at in all
DEEPER_AFTER = 2  # chunks screened without success, before the search goes deeper from the best partial edits


async def ranked(found: Survey, hunt: Hunt) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates, the model's own included, in the order of its votes and in the order without them."""
    own = []
    if (place := suspect(found)) is not None:
        lines = await write_lines(rewrite_question(found, place))
        own = read_rewrites(found, place, lines.texts)
    pool = candidates(found, own, limit=TAIL)
    hunt.pool = pool.size
    prior = list(pool.head)
    head = prior[:OPTIONS]
    if len(head) < 2:
        return prior, prior
    votes = await vote(choice_question(found, head), options(head))
    hunt.ranked_by, hunt.refused = ("prior" if votes.refused else "model"), votes.refused
    return combine(head, votes.scores) + prior[OPTIONS:], prior


async def search(found: Survey, hunt: Hunt, depth: int = 1) -> bool:
    """Return True if the current branch's world passes its suite in the end. Otherwise the world is unchanged."""
    order, prior = await ranked(found, hunt) if depth == 1 else (list(candidates(found, limit=TAIL).head),) * 2
    ranking = Ranking(order, prior)
    halves: list[Half] = []
    if await in_worlds(order[:HEAD], ranking, found, hunt, halves):
        return True
    for start in range(HEAD, len(order), CHUNK):
        if hunt.left < BATCH:
            return False
        if depth < DEPTH and start == HEAD + DEEPER_AFTER * CHUNK:
            for half in sorted(halves, key=lambda h: -len(h.fixed))[:2]:
                if await deeper(half, found, hunt, depth):
                    return True
        tail = order[start : start + CHUNK]
        seen = list(zip(tail, (await screen(found.suite, tail)).trials, strict=True))
        if await in_worlds([one for one, trial in seen if trial.passes][:BATCH], ranking, found, hunt, halves):
            return True
        if await in_pairs(halves, half_way(seen), ranking, found, hunt):
            return True
    return False


async def in_worlds(
    tried: Sequence[Candidate], ranking: Ranking, found: Survey, hunt: Hunt, halves: list[Half]
) -> bool:
    """Try candidates in worlds of their own, a batch at a time, until one passes. Partial edits are merged with each
    other.
    """
    for batch in batches(tried):
        if hunt.left < len(batch):
            return False
        async with fork(batch) as branches:
            hunt.forks += len(batch)
            await branches.map(write_edit)
            trials = await asyncio.gather(*(branch.run(run_tests, found.suite) for branch in branches))
            for branch, trial in zip(branches, trials, strict=True):
                if trial.passes:
                    await branch.adopt()
                    hunt.won(ranking, [branch.item], sum(t.passes for t in trials))
                    return True
        if await in_pairs(halves, half_way(zip(batch, trials, strict=True)), ranking, found, hunt):
            return True
    return False


async def in_pairs(halves: list[Half], news: list[Half], ranking: Ranking, found: Survey, hunt: Hunt) -> bool:
    """Merge the likeliest pairs of a new partial edit and a known one; afterwards the new ones are known."""
    for pair in pairs(halves, news, found.suite):
        if hunt.left >= 2 and await merged(pair, ranking, found.suite, hunt):
            return True
    halves += news
    return False


async def merged(pair: tuple[Half, Half], ranking: Ranking, suite: Suite, hunt: Hunt) -> bool:
    """Merge two edits from two branches in a world of their own. A merge that does not pass is released."""
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
            hunt.won(ranking, [half.candidate for half in pair], 1)
    return trial.passes


async def deeper(half: Half, found: Survey, hunt: Hunt, depth: int) -> bool:
    """Continue the search from an edit that fixes some tests, for the others."""
    rest = Hunt(min(hunt.left, HEAD + 2 * BATCH))
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


@workflow(deadline="10m")
async def repair(programs: list[str], budget: int = 120) -> RepairReport:
    """Repair programs of the workspace, one after the other, with at most `budget` forks for each."""
    rows = []
    for name in programs:
        found = await survey(name)
        hunt = Hunt(budget)
        repaired = False
        if not found.problem and found.failures:
            repaired = await search(found, hunt) and (await run_tests(found.suite)).passes
        rows.append(Row.of(found, hunt, repaired))
    return RepairReport(tuple(rows))
