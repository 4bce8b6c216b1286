"""The files beside a SQLite database, which SQLite trusts: refuse those that would make it act on other files.

SQLite plays a rollback journal back when a database is opened, also to read it. Then it deletes the file that the
journal names as that of a transaction over several databases. It also writes its log through a link. Ramify writes
neither such a journal nor such a link, but a home may come from somebody else.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ramify.runtime.errors import StoreError

_ENDS = ("-journal", "-wal", "-shm")
_MAGIC = bytes.fromhex("d9d505f920a163d7")  # SQLite's: a journal that names another file ends with it


def refuse_planted(database: str | os.PathLike[str]) -> None:
    """Raises `StoreError`, and `OSError` if the folder cannot be read. A missing file is no error."""
    file = os.path.realpath(database)  # SQLite looks beside the file that a link leads to
    for end in _ENDS:
        beside = file + end
        try:
            found = os.lstat(beside)
        except FileNotFoundError:
            continue
        if not stat.S_ISREG(found.st_mode):
            raise _refused(database, beside, "is not a file")
        if end == "-journal" and _names_another_file(beside):
            raise _refused(database, beside, "names another file, which SQLite would delete")


def _names_another_file(journal: str) -> bool:
    """Whether the journal is that of a transaction over several databases."""
    try:
        with Path(journal).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - len(_MAGIC)))
            return file.read() == _MAGIC
    except FileNotFoundError:  # its process ended the transaction meanwhile
        return False


def _refused(database: str | os.PathLike[str], beside: str, why: str) -> StoreError:
    return StoreError(
        f"the database {os.fspath(database)} is not opened: {beside} {why}. Ramify did not make it: find out who "
        "did, and move it away"
    )
