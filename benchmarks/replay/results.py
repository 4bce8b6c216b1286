"""Stored results: one JSON file for each replay in a folder, or the results of an evaluation packed into one file.

A result is stored under its job's key, which is the job's configuration. Each result names the code that computed it
(`code_version`). A packed file has one JSON line for each result, sorted by key and gzipped. Of the paths in a job it
holds only the last part.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import ramify
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.inputs.traces import MISSHAPEN, text
from benchmarks.replay.jobs import Result

_ROOT = Path(__file__).resolve().parents[2]
_KEY = re.compile(r"[0-9a-f]{24}")  # Job.key; here it names a file

T = TypeVar("T")


@lru_cache(maxsize=1)
def code_version() -> str:
    """Return the version of this code: the package's, and in a git checkout the commit, as in "0.1.0+3f3b942".

    "-dirty" is added where tracked files differ from the commit.
    """
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ramify.__version__
    return f"{ramify.__version__}+{commit}"


def read_stored(path: Path, parse: Callable[[str], T]) -> T | None:
    """Return what is stored at `path`, or None if nothing is or it cannot be parsed: then it is computed again."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, *MISSHAPEN):
        return None


def write_stored(path: Path, content: str) -> None:
    """Replace the file at `path` as a whole. Another process may write the same file at the same time."""
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(content, encoding="utf-8")
    part.replace(path)


def pack(path: Path, results: Iterable[Result]) -> None:
    """Write a packed file. The same results give the same bytes."""
    lines = [json.dumps({"key": one.job.key, "result": _without_folders(one)}) for one in results]
    path.write_bytes(gzip.compress("".join(line + "\n" for line in sorted(lines)).encode(), mtime=0))


def unpack(path: Path, folder: Path) -> int:
    """Store the results of a packed file that `folder` lacks, and return how many those are.

    Raises ReplayError, and stores nothing, if a line of the file is not a result.
    """
    packed = read_packed(path)
    folder.mkdir(parents=True, exist_ok=True)
    missing = [key for key in packed if read_stored(folder / f"{key}.json", Result.from_json) is None]
    for key in missing:
        write_stored(folder / f"{key}.json", packed[key].to_json())
    return len(missing)


def read_packed(path: Path) -> dict[str, Result]:
    """Return the results of a packed file by their keys. Raises ReplayError if a line is not a result."""
    packed: dict[str, Result] = {}
    for number, line in enumerate(text(path).splitlines(), 1):
        try:
            one = json.loads(line)
            key, result = one["key"], Result.from_json(json.dumps(one["result"]))
            if not _KEY.fullmatch(key):
                raise ValueError(f"{key[:40]!r} is no key")
        except MISSHAPEN as error:
            raise ReplayError(f"{path}: line {number} is no replay's result ({error})") from error
        packed[key] = result
    return packed


def _without_folders(result: Result) -> object:
    raw = json.loads(result.to_json())
    for name in ("trace", "steps"):
        raw["job"][name] = Path(raw["job"][name]).name
    return raw
