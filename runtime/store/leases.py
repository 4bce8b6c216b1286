"""The lease of a run: who works on it, in the database that all who might do so share.

Its owner renews it. Once it has not been renewed for `lasts_s`, another process may take it, and with it a higher
token (a fencing token: Kleppmann, "How to do distributed locking", 2016). Each transaction of an owner checks the
token of the lease and keeps it from changing until the commit, so an owner that was stopped, or whose machine was cut
off, writes nothing after the takeover, whatever it believes.

PostgreSQL's clock decides when a lease ends, so it does not matter whether the clocks of machines agree. A SQLite
file belongs to one machine; there the owners' clock does. Nothing depends on a session of the server, so this works
behind any pooler. A lost renewal or release only makes others wait, so these transactions do not wait for the disk;
one that takes a lease does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, CursorResult, text

from ramify.runtime.errors import LeaseHeld, LeaseLost, RunLocked
from ramify.runtime.records import Lease, RunId
from ramify.runtime.store.plain_queries import SERVER_NOW, leases_query

LASTS_S = 15.0
"""After how many seconds without a renewal another process may take a run."""
_BEATS = 5  # renewals in that time


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that takes leases. writer: the id of its committer. lasts_s: of its leases."""

    writer: str
    host: str
    pid: int
    lasts_s: float = LASTS_S

    @property
    def renew_every_s(self) -> float:
        return self.lasts_s / _BEATS


def this_process(writer: str, lasts_s: float = LASTS_S) -> Owner:
    return Owner(writer, os.uname().nodename, os.getpid(), lasts_s)


@dataclass(frozen=True, slots=True)
class FileLock:
    """What a process knows from the run's file lock. folder: identifies the folder of the lock, "" if there is none.
    taken: whether this process has it; then no other process that uses the folder lives and works on the run."""

    folder: str = ""
    taken: bool = True


_ENDED = "ended"
"""The owner of a lease that `end` has ended. NULL would say that its owner gave it back: who has the run's file lock
would be taken for one that works on it. Here it is one that was cut off, whose file lock may be replaced."""

_COLUMNS = "run_id, owner, token, host, pid, lock_folder, taken_at, renewed_at, renewals, lasts_s, stop_until"


def _now(connection: Connection) -> str:
    """The SQL expression of the present time, in Unix seconds; on SQLite, the parameter `now`."""
    return SERVER_NOW if connection.dialect.name == "postgresql" else ":now"


def take(connection: Connection, run: RunId, owner: Owner, lock: FileLock, now: float) -> int:
    """Take the lease of a run, and return its token. Raises `LeaseHeld` if another process has it, and `RunLocked` if
    the file lock is taken by one that has no lease (yet)."""
    values = {
        "run": run,
        "writer": owner.writer,
        "host": owner.host,
        "pid": owner.pid,
        "folder": lock.folder if lock.taken else "",  # a lock that is taken over by force says nothing to others
        "lasts": owner.lasts_s,
        "now": now,
    }
    at = _now(connection)
    expired = f"leases.owner = '{_ENDED}' OR leases.owner IS NOT NULL AND leases.renewed_at + leases.lasts_s < {at}"
    change = (
        "owner = :writer, token = leases.token + 1, host = :host, pid = :pid, lock_folder = :folder, "
        f"taken_at = {at}, renewed_at = {at}, renewals = 0, lasts_s = :lasts, stop_until = 0"
    )
    if lock.taken:
        free = f"leases.owner IS NULL OR leases.owner = :writer OR ({expired})"
        if lock.folder:
            free += " OR leases.lock_folder = :folder"
        taking = (
            f"INSERT INTO leases ({_COLUMNS}) "
            f"VALUES (:run, :writer, 1, :host, :pid, :folder, {at}, {at}, 0, :lasts, 0) "
            f"ON CONFLICT (run_id) DO UPDATE SET {change} WHERE {free} RETURNING token"
        )
    else:
        taking = f"UPDATE leases SET {change} WHERE run_id = :run AND ({expired}) RETURNING token"
    token = _execute(connection, taking, values).scalar_one_or_none()
    if token is not None:
        return int(token)
    lease = find(connection, [run], now).get(run)
    if lease is not None and lock.taken and _is_of_a_dead_process(connection, lease, owner):
        release(connection, run, Owner(lease.owner or "", lease.host, lease.pid, lease.lasts_s), lease.token)
        return take(connection, run, owner, lock, now)
    if lease is None or lease.owner is None:
        raise RunLocked(f"run {run} is being worked on by another process: wait for it or stop it")
    raise LeaseHeld(
        f"run {run} is being worked on by process {lease.pid} on {lease.host}, which renewed its lease "
        f"{max(lease.age_s, 0.0):.0f} s ago: wait for it or stop it",
        host=lease.host,
        pid=lease.pid,
        renewed=(lease.token, lease.renewals),
    )


def _is_of_a_dead_process(connection: Connection, lease: Lease, owner: Owner) -> bool:
    """Whether the owner was a process of this machine that has ended. Its lock was elsewhere: the database is a file
    that was copied or moved since."""
    if connection.dialect.name != "sqlite" or lease.owner is None or lease.host != owner.host:
        return False
    try:
        os.kill(lease.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def release(connection: Connection, run: RunId, owner: Owner, token: int) -> None:
    """Give a lease back. Does nothing if another process has it."""
    mine = {"run": run, "writer": owner.writer, "token": token}
    _execute(connection, f"UPDATE leases SET owner = NULL WHERE {_MINE}", mine)


def end(connection: Connection, run: RunId, host: str, pid: int) -> bool:
    """End the lease that a process has of a run, because the caller knows that the process is gone or is to stop. If
    it lives, the fence refuses its later writes. Returns False if that process does not have the lease."""
    values = {"run": run, "host": host, "pid": pid}
    theirs = f"run_id = :run AND host = :host AND pid = :pid AND owner IS NOT NULL AND owner <> '{_ENDED}'"
    change = f"owner = '{_ENDED}', renewed_at = renewed_at - lasts_s - 1"  # so that it is over for all who look
    return _execute(connection, f"UPDATE leases SET {change} WHERE {theirs}", values).rowcount == 1


def renew(connection: Connection, run: RunId, owner: Owner, token: int, now: float) -> bool:
    """Renew a lease. Returns False if another process has it."""
    mine = {"run": run, "writer": owner.writer, "token": token, "now": now}
    change = f"renewed_at = {_now(connection)}, renewals = renewals + 1"
    return _execute(connection, f"UPDATE leases SET {change} WHERE {_MINE}", mine).rowcount == 1


_AT_ONCE = 500
_MINE = "run_id = :run AND owner = :writer AND token = :token"


def ask_to_stop(connection: Connection, run: RunId, for_s: float, now: float) -> None:
    """Ask the owner to cancel the run, for `for_s` seconds from now; 0 withdraws that. A later owner is not asked."""
    until = f"{_now(connection)} + :for_s" if for_s else "0"
    change = f"UPDATE leases SET stop_until = {until} WHERE run_id = :run AND owner IS NOT NULL"
    _execute(connection, change, {"run": run, "for_s": for_s, "now": now})


def find(connection: Connection, runs: Iterable[RunId], now: float) -> dict[RunId, Lease]:
    """Return the leases of these runs."""
    names = {f"r{number}": run for number, run in enumerate(runs)}
    if not names:
        return {}
    query = leases_query(_now(connection), ", ".join(f":{name}" for name in names))
    found = _execute(connection, query, {**names, "now": now}).mappings()
    return {lease.run: lease for lease in (Lease.of_row(dict(row)) for row in found)}


def fence(owner: Owner, tokens: Mapping[RunId, int]) -> tuple[str, dict[str, object]]:
    """Return a query, and its parameters, for one row per lease that `owner` still has. On PostgreSQL, append `FOR
    SHARE`, so that nobody takes one before the transaction has ended."""
    each = [f"(run_id = :run{n} AND token = :token{n})" for n in range(len(tokens))]
    some = [" OR ".join(each[at : at + _AT_ONCE]) for at in range(0, len(each), _AT_ONCE)]
    terms = " OR ".join(f"({one})" for one in some)  # SQLite takes 1000 terms one after another
    values: dict[str, object] = {"writer": owner.writer}
    for number, (run, token) in enumerate(sorted(tokens.items())):
        values |= {f"run{number}": run, f"token{number}": token}
    return f"SELECT 1 AS mine FROM leases WHERE owner = :writer AND ({terms})", values


def lost(connection: Connection, owner: Owner, tokens: Mapping[RunId, int], now: float) -> dict[RunId, LeaseLost]:
    """Return, for each of these leases that `owner` does not have any more, the error that says who has it."""
    found = find(connection, tokens, now)
    return {
        run: lost_error(run, found.get(run))
        for run, token in tokens.items()
        if (there := found.get(run)) is None or (there.owner, there.token) != (owner.writer, token)
    }


def lost_error(run: RunId, lease: Lease | None) -> LeaseLost:
    if lease is None:
        return LeaseLost(f"run {run} was deleted while this process was stopped", run_id=run, host="", pid=0)
    if lease.owner == _ENDED:
        return LeaseLost(
            f"the lease of run {run} was ended: the fleet of this process took it for dead, and another node "
            "continues the run. This process has stopped working on it, and has written nothing since",
            run_id=run,
            host="",
            pid=0,
        )
    return LeaseLost(
        f"this process did not renew its lease in time, and process {lease.pid} on {lease.host} took over run {run}: "
        "this process has stopped working on it, and has written nothing since",
        run_id=run,
        host=lease.host,
        pid=lease.pid,
    )


def _execute(connection: Connection, query: str, values: Mapping[str, object]) -> CursorResult[Any]:
    named = {name: values[name] for name in set(re.findall(r":(\w+)", query))}
    return connection.execute(text(query), named)
