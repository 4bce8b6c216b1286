"""Records for the store's tests: makers with every field given. Tests that take `store` run on both databases."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ramify.compiler.plan import OpId, OpKind
from ramify.fork_engine.types import SnapshotId
from ramify.runtime.records import (
    ROOT,
    CheckpointId,
    CheckpointRecord,
    LLMRecord,
    OpRecord,
    OpStatus,
    RunId,
    RunRecord,
    RunStatus,
    Settings,
)
from ramify.runtime.store import RunStore
from ramify.runtime.store.address import parse
from ramify.runtime.store.engines import writer

sys.path.insert(0, str(Path(__file__).parents[2]))
import postgres

WHY_NOT = postgres.why_not()

RUN = RunRecord(
    id=RunId("run-1"),
    name="repair",
    workflow="repair.py:repair",
    frontend="decorators",
    workspace="/home/user/project",
    base_snapshot=SnapshotId("base"),
    plan_json='{"plan": 1}',
    args_json="[]",
    settings=Settings(sandbox="copy", base_url="http://localhost:8000", model="m"),
    status=RunStatus.RUNNING,
    created_at=1000.0,
    updated_at=1000.0,
)
OP = OpRecord(
    run_id=RUN.id,
    seq=1,
    key="o1.0",
    op_id=OpId("o1"),
    kind=OpKind.RUN,
    branch=ROOT,
    status=OpStatus.DONE,
    result_json='{"passed": 3}',
    attrs={"a": "b"},
)
LLM = LLMRecord(
    run_id=RUN.id,
    seq=2,
    key="o2.0",
    op_id=OpId("o2"),
    branch=ROOT,
    step_key=None,
    request_json='{"messages": []}',
    request_digest="r",
    result_json='{"text": ""}',
    result_digest="s",
)
CHECKPOINT = CheckpointRecord(
    id=CheckpointId("c1"),
    run_id=RUN.id,
    seq=1,
    branch=ROOT,
    snapshot_id=SnapshotId("s1"),
    content_key="k1",
    parents=(CheckpointId("c0"),),
    created_at=1001.0,
)

Make = Callable[..., Any]


@pytest.fixture
def a_run() -> Make:
    return lambda **fields: replace(RUN, **fields)


@pytest.fixture
def an_op() -> Make:
    return lambda **fields: replace(OP, **fields)


@pytest.fixture
def an_llm_call() -> Make:
    return lambda **fields: replace(LLM, **fields)


@pytest.fixture
def a_checkpoint() -> Make:
    return lambda **fields: replace(CHECKPOINT, **fields)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with postgres.server() as address:
        yield address


@pytest.fixture(scope="session")
def session_database(postgres_server: str) -> str:
    return postgres.new_database(postgres_server)  # one for all tests: a new one would cost each a second


@pytest.fixture
def one_database(session_database: str) -> str:
    """The address of a database on a server, without our tables."""
    import psycopg

    with psycopg.connect(session_database) as connection:
        connection.execute("DROP SCHEMA IF EXISTS ramify CASCADE")
    return session_database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database that does not exist yet, or of an empty one."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/home/ramify.db"
    database: str = request.getfixturevalue("one_database")
    return database


@pytest_asyncio.fixture
async def store(address: str) -> AsyncIterator[RunStore]:
    async with RunStore(address, clock=lambda: 5000.0) as opened:
        yield opened


@pytest.fixture
def change_leases(address: str) -> Callable[[str], None]:
    """Change all leases: `renewed_at = renewed_at - 7200` makes them as old as if their owners had been stopped."""

    def change(how: str) -> None:
        engine = writer(parse(address))
        with engine.begin() as connection:
            connection.exec_driver_sql(f"UPDATE leases SET {how}")
        engine.dispose()

    return change


async def _is_alive(store: RunStore, run: RunId) -> bool:
    lease = (await store.leases([run])).get(run)
    return lease is not None and lease.is_alive


@pytest.fixture
def is_alive() -> Callable[[RunStore, RunId], Awaitable[bool]]:
    """Whether a process has the lease of a run."""
    return _is_alive
