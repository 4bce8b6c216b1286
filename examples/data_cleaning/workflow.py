"""A data-cleaning agent: transformations are tried in forks, and those that pass the checks are merged.

The table is stored with one file for each column, so that columns are cleaned at the same time and their merges never
conflict. For each column the model ranks the recipes. The best few are tried, each in a world of its own. A recipe
passes if it corrects cells and harms none. The best one is merged into the column's world, until nothing is wrong or
nothing helps. Cells that no recipe corrects are reported, never guessed.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from dataclasses import dataclass
from pathlib import Path

from ramify import Sandbox, fork, llm, step, workflow

from .recipes import RECIPES, wrong

SCRIPT = Path(__file__).with_name("recipes.py").read_text()
SHOWN = 6  # cells of a column that are shown to the model


@dataclass(frozen=True)
class Verdict:
    """What a recipe did to a column, in numbers of cells."""

    wrong_before: int
    wrong_after: int
    harmed: int

    @property
    def passed(self) -> bool:
        return self.wrong_after < self.wrong_before and self.harmed == 0


@dataclass(frozen=True)
class Column:
    name: str
    recipes: tuple[str, ...]  # the recipes that were merged, in order
    tried: int
    left: tuple[str, ...]  # cells that are still wrong


@step
async def lay_out(sandbox: Sandbox, table: str) -> list[str]:
    """Write the table as columns/NAME.txt, with one cell a line. Return the names of the columns."""
    rows = list(csv.DictReader(io.StringIO((sandbox.path / table).read_text())))
    (sandbox.path / "columns").mkdir()
    for name in rows[0]:
        cells = "".join(" ".join(row[name].splitlines()) + "\n" for row in rows)
        (sandbox.path / "columns" / f"{name}.txt").write_text(cells)
    return list(rows[0])


@step(effect="readonly")
async def faults(sandbox: Sandbox, column: str) -> list[str]:
    return wrong(column, cells_of(sandbox, column))


@step
async def apply(sandbox: Sandbox, recipe: str, column: str) -> Verdict:
    """Rewrite the column by the recipe in this world, and check it. A recipe that crashes is a failed branch."""
    command = ["python3", "-", f"columns/{column}.txt", recipe]
    return Verdict(**json.loads((await sandbox.run(command, stdin=SCRIPT, check=True)).stdout))


@step
async def put_together(sandbox: Sandbox, columns: list[str]) -> str:
    """Write clean.csv from the columns in this world."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(cells_of(sandbox, name) for name in columns), strict=True))
    (sandbox.path / "clean.csv").write_text(text.getvalue())
    return text.getvalue()


def cells_of(sandbox: Sandbox, column: str) -> list[str]:
    return (sandbox.path / "columns" / f"{column}.txt").read_text().split("\n")[:-1]


async def ranked(column: str, cells: list[str], known: list[str]) -> list[str]:
    """Return the recipes, the model's favourites first."""
    shown = ", ".join(repr(cell) for cell in cells[:SHOWN])
    choice = await llm.choose(f"These cells of the column {column!r} are malformed: {shown}. What mends them?", known)
    return [known[at] for at in choice.order]


async def clean(column: str, beam: int) -> Column:
    """Clean one column in the current world."""
    merged: list[str] = []
    tried = 0
    while left := await faults(column):
        order = await ranked(column, left, [recipe for recipe in RECIPES if recipe not in merged])
        for at in range(0, len(order), beam):
            async with fork(order[at : at + beam]) as branches:
                outcomes = await branches.map(apply, column, errors="return")
                tried += len(outcomes)
                good = [outcome for outcome in outcomes if outcome.error is None and outcome.value.passed]
                if good:
                    best = min(good, key=lambda outcome: outcome.value.wrong_after)
                    await best.adopt()
                    merged.append(best.item)
                    break
        else:
            break  # every recipe was tried, and none passed
    return Column(column, tuple(merged), tried, tuple(left))


@workflow(workspace=Path(__file__).with_name("data"), deadline="10m")
async def clean_table(table: str = "customers.csv", beam: int = 4) -> list[Column]:
    """Write clean.csv from `table`, trying `beam` recipes at once on each column."""
    async with fork(await lay_out(table)) as branches:

        async def one(branch: object) -> Column:
            async with branch.enter():
                return await clean(branch.item, beam)

        columns = await asyncio.gather(*(one(branch) for branch in branches))
        for branch in branches:
            await branch.adopt()
    await put_together([column.name for column in columns])
    return list(columns)
