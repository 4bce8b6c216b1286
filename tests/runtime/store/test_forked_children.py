"""A forked child holds no lock on the server, because it does not own the connection."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psycopg
import pytest

from tests.runtime.user_code.test_fork_guard import alive, child_of, start
from tests.warm_process import WarmInterpreter

pytestmark = pytest.mark.postgres


def sessions(database: str) -> int:
    """The number of our sessions on the server, after it has noticed which have ended."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ramify' AND datname = current_database()"
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(200):
            found = connection.execute(asked).fetchone()
            assert found is not None
            if not found[0]:
                break
            time.sleep(0.05)
        return int(found[0])


@pytest.mark.parametrize("kind", ["os.fork+thread", "process", "pool"])
def test_the_server_lock_of_a_killed_run_is_free_while_its_child_lives(
    home: Path, kind: str, one_database: str, warm: WarmInterpreter
) -> None:
    lines, status, _ = start(warm, home, kind, "die", database=one_database)
    with child_of(lines) as child:
        assert status == -signal.SIGKILL
        (run,) = [line["run"] for line in lines if "run" in line]
        again, status, errors = start(warm, home, kind, "resume", run, database=one_database)
        assert again[-1] == {"result": ["seen\n", "alive", "seen\n"]}, errors
        assert status == 0
        assert alive(child)


def test_a_run_continues_after_its_child_ended(home: Path, one_database: str, warm: WarmInterpreter) -> None:
    """Whatever a child does with its copy of the connection, also at its end, does not reach the server."""
    lines, status, errors = start(warm, home, "pool", "run", database=one_database)
    with child_of(lines) as child:
        assert (lines[-1], status) == ({"result": ["seen\n", "alive", "seen\n"]}, 0), errors
        assert alive(child)
        assert sessions(one_database) == 0
