"""A data-cleaning agent: transformations are tried in forks, and what passes its checks is merged.

The table is laid out as a file a column, so that the columns are cleaned beside each other and their merges are
disjoint. For each column the model ranks the recipes; the best few are tried, each in a world of its own; a recipe
passes where it mends cells and harms none. The best that passed is merged into the column's world, and so on until
nothing is wrong or nothing helps. What no recipe mends is reported, never guessed.
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
SHOWN = 6  # cells of a column that the model is shown


@dataclass(frozen=True)
class Verdict:
    """What a recipe did to a column, in cells."""

    wrong_before: int
    wrong_after: int
    harmed: int

    @property
    def passed(self) -> bool:
        return self.wrong_after < self.wrong_before and self.harmed == 0


@dataclass(frozen=True)
class Column:
    name: str
    recipes: tuple[str, ...]  # that were merged, in order
    tried: int
    left: tuple[str, ...]  # cells that are still wrong


@step
async def lay_out(sandbox: Sandbox, table: str) -> list[str]:
    """The table as columns/NAME.txt, a cell a line; the columns' names."""
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
    """Rewrite the column by the recipe, in this world, and check it. A recipe that crashes is a failed branch."""
    command = ["python3", "-", f"columns/{column}.txt", recipe]
    return Verdict(**json.loads((await sandbox.run(command, stdin=SCRIPT, check=True)).stdout))


@step
async def put_together(sandbox: Sandbox, columns: list[str]) -> str:
    """clean.csv, of the columns as they are in this world."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(cells_of(sandbox, name) for name in columns), strict=True))
    (sandbox.path / "clean.csv").write_text(text.getvalue())
    return text.getvalue()


def cells_of(sandbox: Sandbox, column: str) -> list[str]:
    return (sandbox.path / "columns" / f"{column}.txt").read_text().split("\n")[:-1]


async def ranked(column: str, cells: list[str], known: list[str]) -> list[str]:
    """The recipes, the model's favourites first."""
    shown = ", ".join(repr(cell) for cell in cells[:SHOWN])
    choice = await llm.choose(f"These cells of the column {column!r} are malformed: {shown}. What mends them?", known)
    return [known[at] for at in choice.order]


async def clean(column: str, beam: int) -> Column:
    """Clean one column in the world that this is called in."""
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
    """clean.csv out of `table`. `beam`: recipes tried at once, on each column."""
    async with fork(await lay_out(table)) as branches:

        async def one(branch: object) -> Column:
            async with branch.enter():
                return await clean(branch.item, beam)

        columns = await asyncio.gather(*(one(branch) for branch in branches))
        for branch in branches:
            await branch.adopt()
    await put_together([column.name for column in columns])
    return list(columns)
