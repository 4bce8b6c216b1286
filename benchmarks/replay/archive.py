"""Results that travel: replays in one file, to be put where others are kept.

A result's key names all that it depends on, code, trace and step model by their content (jobs.py): what another
machine replayed of the same is as good as what this one would, and what was replayed of anything else is not taken.
Lines of JSON, gzipped, in the order of their keys; of paths only the last part is written.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks.replay import keeping
from benchmarks.replay.errors import ReplayError
from benchmarks.replay.inputs.traces import MISSHAPEN, text
from benchmarks.replay.jobs import Result

_KEY = re.compile(r"[0-9a-f]{24}")  # Job.key; here it names a file


def pack(path: Path, results: Iterable[Result]) -> None:
    """The same results give the same bytes."""
    lines = [json.dumps({"key": one.job.key, "result": _bare(one)}) for one in results]
    path.write_bytes(gzip.compress("".join(line + "\n" for line in sorted(lines)).encode(), mtime=0))


def unpack(path: Path, kept: Path) -> int:
    """Puts what `kept` lacks there, and says how many that were. Raises ReplayError where the file is none of ours,
    and nothing is put there then."""
    found: dict[str, str] = {}
    for number, line in enumerate(text(path).splitlines(), 1):
        try:
            one = json.loads(line)
            key, result = one["key"], json.dumps(one["result"])
            Result.from_json(result)
            if not _KEY.fullmatch(key):
                raise ValueError(f"{key[:40]!r} is no key")
        except MISSHAPEN as error:
            raise ReplayError(f"{path}: line {number} is no replay's result ({error})") from error
        found[key] = result
    kept.mkdir(parents=True, exist_ok=True)
    missing = [key for key in found if keeping.kept(kept / f"{key}.json", Result.from_json) is None]
    for key in missing:
        keeping.keep(kept / f"{key}.json", found[key])
    return len(missing)


def _bare(result: Result) -> object:
    raw = json.loads(result.to_json())
    for name in ("trace", "steps"):
        raw["job"][name] = Path(raw["job"][name]).name
    return raw
