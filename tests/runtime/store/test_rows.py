"""Every record is read from the database as it was written."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.runtime.errors import StoreError
from ramify.runtime.records import CheckpointRecord, LLMRecord, OpRecord, RunRecord, Settings
from ramify.runtime.store import RunStore, rows, tables
from ramify.runtime.store.reader import reading
from tests.samples import sample

# What os.fsdecode can give: any character, and the surrogates that stand for bytes that are not UTF-8.
TEXT = st.text(st.one_of(st.characters(), st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)), max_size=12)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(0, 2**62),
    float: st.floats(allow_nan=False),
    NoneType: st.none(),
}


def anything(hint: Any) -> st.SearchStrategy[Any]:
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, NewType):
        return anything(hint.__supertype__)
    if get_origin(hint) in (UnionType, Union):
        return st.one_of(*map(anything, get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(anything(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(TEXT, TEXT, max_size=3)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return st.builds(hint, **{name: anything(of) for name, of in get_type_hints(hint).items()})


RECORDS = st.tuples(
    anything(RunRecord),
    st.lists(anything(OpRecord), max_size=3, unique_by=lambda op: op.seq),
    st.lists(anything(LLMRecord), max_size=3, unique_by=lambda call: call.seq),
    st.lists(anything(CheckpointRecord), max_size=3, unique_by=lambda one: one.id),
)


@settings(max_examples=sample(10, 40), deadline=None)
@given(RECORDS)
def test_every_record_is_read_as_it_was_written(records: Any) -> None:
    run, ops, llm, checkpoints = records
    ops = [replace(op, run_id=run.id) for op in ops]
    llm = [replace(call, run_id=run.id) for call in llm]
    checkpoints = [replace(one, run_id=run.id) for one in checkpoints]

    async def there_and_back(path: Path) -> None:
        async with RunStore(path, clock=lambda: run.updated_at) as store:
            await store.create_run(run)
            await store.commit(run.id, ops=ops, llm=llm, checkpoints=checkpoints)
        async with RunStore(path, clock=lambda: 0.0) as store:
            assert await store.run(run.id) == run
            assert await store.ops(run.id) == sorted(ops, key=lambda op: op.seq)
            assert await store.llm(run.id) == sorted(llm, key=lambda call: call.seq)
            by_seq = sorted(checkpoints, key=lambda one: one.seq)
            assert await store.checkpoints(run.id) == by_seq
            for one in checkpoints:
                assert await store.checkpoint(one.id) == one

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(there_and_back(Path(folder) / "ramify.db"))


def test_unset_settings_are_not_stored() -> None:
    """An older Ramify that works in the same home reads the rows of the newer one."""
    plain = Settings("copy", "http://a/v1")
    assert set(json.loads(rows.settings_json(plain))) <= {"sandbox", "base_url", "model"}
    unknown = Settings("copy", client_url="", mixed=True)
    assert json.loads(rows.settings_json(unknown)) == {"sandbox": "copy", "client_url": "", "mixed": True}


def test_columns_have_the_types_of_the_tables() -> None:
    for table in (tables.runs, tables.ops, tables.llm, tables.effects, tables.answers, tables.checkpoints):
        for column in table.c:
            if column.name != "n":
                assert (column.name in rows.NUMBERS) == (column.type.python_type is int), column
                assert (column.name in rows.TIMES) == (column.type.python_type is float), column
                assert column.name in rows.NULLABLE or not column.nullable, column


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET created_at = 'x'",
        "UPDATE runs SET name = x'fffe'",
        "UPDATE ops SET seq = 'x'",
        "UPDATE ops SET started_at = x'00'",
    ],
)
async def test_a_value_of_another_type_is_a_store_error(tmp_path: Path, a_run: Any, an_op: Any, change: str) -> None:
    """SQLite keeps what it is given; a home may come from somebody else."""
    file = tmp_path / "ramify.db"
    async with RunStore(file, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        await store.commit(a_run().id, ops=[an_op()])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(change)
    with reading(str(file)) as reader, pytest.raises(StoreError, match=r"cannot read: column \w+ holds a value of"):
        await reader.runs()
        await reader.ops(a_run().id)


@pytest.mark.parametrize("value", ["5", "null", "[" * 100_000])
async def test_attributes_of_another_type_are_a_store_error(
    tmp_path: Path, a_run: Any, an_op: Any, value: str
) -> None:
    file = tmp_path / "ramify.db"
    async with RunStore(file, clock=lambda: 0.0) as store:
        await store.create_run(a_run())
        await store.commit(a_run().id, ops=[an_op()])
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE ops SET attrs_json = ?", (value,))
    with reading(str(file)) as reader, pytest.raises(StoreError, match="a row that this version cannot read"):
        await reader.ops(a_run().id)
