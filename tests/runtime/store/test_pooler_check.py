"""Behind PgBouncer: used if each transaction may have its own session, refused if there are no transactions."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from ramify import Runtime, step, workflow
from ramify.runtime.errors import LeaseLost
from ramify.runtime.langgraph.checkpointer import Saver
from ramify.runtime.records import RunId, RunRecord
from ramify.runtime.store import RunStore
from ramify.runtime.store.engines import writer
from ramify.runtime.store.leases import FileLock
from ramify.runtime.store.pooler_check import SessionsShared, refuse_shared_sessions, session_of
from ramify.runtime.store.reader import reading
from tests.ports import free_port

sys.path.insert(0, str(Path(__file__).parents[2]))
import postgres

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/sbin")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(PGBOUNCER is None, reason="no PgBouncer: install it (apt-get install pgbouncer)"),
]
Pool = Callable[..., str]
Alive = Callable[[RunStore, RunId], Awaitable[bool]]


@contextmanager
def pooled(server: str, database: str, settings: dict[str, str]) -> Iterator[str]:
    """The address of that database behind a PgBouncer of our own."""
    assert PGBOUNCER is not None
    url, port = make_url(server), free_port()
    with tempfile.TemporaryDirectory(prefix="ramify-pgb-") as folder:
        users, config = Path(folder, "users"), Path(folder, "config")
        users.write_text(f'"{url.username}" ""\n')
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(users),
            "ignore_startup_parameters": "extra_float_digits",
            "logfile": f"{folder}/log",
            "query_wait_timeout": "20",
            **settings,
        }
        config.write_text(
            f"[databases]\n* = host={url.host} port={url.port}\n[pgbouncer]\n"
            + "".join(f"{name} = {value}\n" for name, value in lines.items())
        )
        words = [PGBOUNCER, str(config)]
        if os.geteuid() == 0:  # it refuses to run as root
            for path in (folder, users, config):
                shutil.chown(path, "postgres")
            words = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *words]
        bouncer = subprocess.Popen(words, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            address = f"postgresql://{url.username}@127.0.0.1:{port}/{database}"
            for _ in range(100):
                assert bouncer.poll() is None, Path(folder, "log").read_text()
                try:
                    psycopg.connect(address).close()
                    break
                except psycopg.OperationalError:
                    time.sleep(0.1)
            yield address
        finally:
            bouncer.kill()
            bouncer.wait()


@pytest.fixture
def pool(postgres_server: str) -> Iterator[Pool]:
    if "RAMIFY_TEST_POSTGRES" in os.environ:
        pytest.skip("the server is not ours: a pooler before it may not be let in")
    with contextmanagers() as enter:
        database = postgres.new_database(postgres_server).rpartition("/")[2]
        yield lambda **settings: enter(pooled(postgres_server, database, settings))


@contextmanager
def contextmanagers() -> Iterator[Callable[..., str]]:
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield stack.enter_context


@step
async def one() -> int:
    return 1


@workflow
async def count() -> int:
    return sum([await one() for _ in range(12)])


SHARED = [
    {"pool_mode": "transaction"},
    {"pool_mode": "transaction", "default_pool_size": "1"},
    {"pool_mode": "transaction", "default_pool_size": "8", "min_pool_size": "8"},
    {"pool_mode": "transaction", "server_round_robin": "1", "default_pool_size": "2", "min_pool_size": "2"},
    {"pool_mode": "transaction", "server_round_robin": "1", "default_pool_size": "5", "min_pool_size": "5"},
]


@pytest.mark.parametrize("settings", SHARED, ids=lambda settings: " ".join(settings.values()))
async def test_sessions_may_be_shared(settings: dict[str, str], pool: Pool, tmp_path: Path, is_alive: Alive) -> None:
    """Runs, their leases, and cancelling need no session. LangGraph's saver does, and says so."""
    address = pool(**settings)
    async with (
        Runtime(home=tmp_path / "home", database=address, sandbox="copy") as runtime,
        RunStore(address, clock=time.time, lease_s=0.5) as other,
    ):
        assert await runtime.run(count) == 12
        run = RunId(str(runtime.last_run_id))
        assert not await is_alive(other, run)
        async with runtime.store.held(run):
            assert await is_alive(other, run)
            async with other.requesting_stop(run):
                assert await runtime.store.stop_requested(run)
            await runtime.store.commit(run)
            await asyncio.to_thread(_expire, address)
            async with other.held(run, FileLock("another home")):
                with pytest.raises(LeaseLost, match=f"took over run {run}"):
                    await runtime.store.commit(run)
    with reading(address) as reader:
        assert [one.id for one in await reader.runs()] == [run]
        assert not (await reader.leases([run], time.time()))[run].is_alive
    with pytest.raises(SessionsShared, match=r"pool_mode = session") as refused:
        await asyncio.to_thread(Saver, address)
    assert "127.0.0.1" in str(refused.value)
    with psycopg.connect(address) as connection:  # no setting of ours is left for the pool's other clients
        assert connection.execute("SHOW search_path").fetchone() == ('"$user", public',)


def _expire(address: str) -> None:
    with psycopg.connect(address, prepare_threshold=None) as connection:
        connection.execute("UPDATE ramify.leases SET renewed_at = renewed_at - 7200")


async def test_a_pool_of_statements_is_refused(pool: Pool, tmp_path: Path) -> None:
    address = pool(pool_mode="statement")
    for _ in range(2):
        with pytest.raises(SessionsShared, match="pool_mode = transaction"):
            async with Runtime(home=tmp_path / "home", database=address, sandbox="copy"):
                pass
    with pytest.raises(SessionsShared), reading(address):
        pass


@pytest.mark.parametrize("settings", [{}, {"server_round_robin": "1"}], ids=["", "round robin"])
async def test_a_pooler_in_session_mode_is_used(
    settings: dict[str, str], pool: Pool, tmp_path: Path, is_alive: Alive
) -> None:
    address = pool(pool_mode="session", **settings)
    async with Runtime(home=tmp_path / "home", database=address, sandbox="copy") as runtime:
        assert await runtime.run(count) == 12
        run = RunId(str(runtime.last_run_id))
        async with runtime.store.held(run):
            assert await is_alive(runtime.store, run)
    saver = await asyncio.to_thread(Saver, address)
    await asyncio.to_thread(saver.close)


async def test_without_a_pooler_one_check_is_enough(postgres_server: str) -> None:
    engine = writer(RunStore(postgres_server, clock=time.time).address)
    asked: list[int] = []
    original = session_of
    with pytest.MonkeyPatch.context() as patch, closing(engine.raw_connection()):

        def counted(connection: object) -> int:
            asked.append(1)
            return original(connection)  # type: ignore[arg-type]

        patch.setattr("ramify.runtime.store.pooler_check.session_of", counted)
        refuse_shared_sessions(engine, postgres_server)
    engine.dispose()
    assert len(asked) == 1


async def test_a_pooler_that_changes_its_mode_later_is_noticed(
    postgres_server: str, one_database: str, monkeypatch: pytest.MonkeyPatch, a_run: Callable[..., RunRecord]
) -> None:
    """By each batch: it is written in the session that has our settings, or not at all."""
    async with RunStore(one_database, clock=time.time) as store:
        await store.create_run(a_run())
        writer = store._opened()._writer
        monkeypatch.setattr(writer, "_session", writer._session + 1)
        with pytest.raises(SessionsShared):
            await store.commit(a_run().id)
