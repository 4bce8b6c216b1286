"""The data-cleaning agent with a scripted model: what passes its checks is merged, what harms is not."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from examples.data_cleaning.recipes import RECIPES, VALID, verdict, wrong
from examples.data_cleaning.workflow import clean_table
from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel
from ramify.serving.types import ChatRequest

HELPS = {
    "name": ("strip spaces", "title case"),
    "email": ("lower case", "strip spaces", "(at) to @"),
    "joined": ("dates written 31.12.2021", "dates written 2021/12/31", "blank out n/a and -"),
    "spent": ("blank out n/a and -", "drop thousands commas", "decimal commas to points", "two decimal places"),
    "country": ("upper case", "country names to codes"),
}


def harmful_first(request: ChatRequest) -> dict[str, float]:
    """Likes best what would throw the column away, then what helps it, in order."""
    question, *lines = request.messages[-1].content.splitlines()
    helps = next(recipes for column, recipes in HELPS.items() if f"the column {column!r}" in question)
    options = {line[3:]: line[0] for line in lines if line[1:3] == ") "}
    wanted = ["blank out everything", *(recipe for recipe in helps if recipe in options)]
    return {options[recipe]: 99.0 - at for at, recipe in enumerate(wanted)} or {"A": 1.0}


async def test_what_passes_is_merged(home: Path) -> None:
    client = LLMClient("http://model.test/v1", transport=ScriptedModel(harmful_first))
    async with client, Runtime(home=home, sandbox="copy", llm=client) as runtime:
        columns = {column.name: column for column in await runtime.run(clean_table, beam=2)}
        rows = await runtime.journal()
        table = runtime.snapshots.read(runtime.snapshots.get(rows[-2].snapshot_out or ""), "clean.csv").decode()
    assert {name: column.left for name, column in columns.items() if column.left} == {"email": ("edsger@example",)}
    assert all("blank out everything" not in column.recipes for column in columns.values())
    assert sum(column.tried for column in columns.values()) == sum(
        row.kind is OpKind.RUN and row.step == "apply" for row in rows
    )
    records = list(csv.DictReader(io.StringIO(table)))
    assert len(records) == 12
    assert records[0] == {
        "name": "Ada Lovelace",
        "email": "ada@example.org",
        "joined": "2021-03-04",
        "spent": "1204.50",
        "country": "GB",
    }
    assert [record["joined"] for record in records[3:6]] == ["2021-08-30", "", "2020-12-01"]
    assert all(wrong(name, [record[name]]) == [] for record in records for name in VALID if name != "email")


@given(st.sampled_from(list(VALID)), st.sampled_from(list(RECIPES)), st.lists(st.text("aB1 .,@-/", max_size=9)))
def test_a_recipe_leaves_the_number_of_cells_and_its_verdict_counts_them(
    column: str, recipe: str, cells: list[str]
) -> None:
    after = [RECIPES[recipe](cell) for cell in cells]
    said = verdict(column, cells, after)
    assert said["wrong_before"] == len(wrong(column, cells))
    assert said["wrong_after"] == len(wrong(column, after))
    assert 0 <= said["harmed"] <= len(cells)
    if after == cells:
        assert said["wrong_before"] == said["wrong_after"]
