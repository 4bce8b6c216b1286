"""Which version of its code a run is on: `patched(name)` is answered once, and the same ever after.

A run that comes to the question with nothing recorded beyond it takes the new code. One that is still being replayed,
so that the code of before went on from here, takes the old. The answer is a row of the journal, for a branch and all
that are forked from it.
"""

from __future__ import annotations

from ramify.compiler.plan import OpId, OpKind
from ramify.runtime import codec
from ramify.runtime.records import BranchPath
from ramify.runtime.run import RunScope, new_row

_OP = OpId("patched")


def is_patched(scope: RunScope, name: str) -> bool:
    """On the run's loop."""
    journal, path = scope.run.journal, scope.branch.path
    for branch in _and_above(path):
        key = _key(branch, name)
        if journal.knows(key):
            return bool(codec.decode(journal.row(key).result_json or "null"))
    answer = not journal.is_replayed(path)
    said = codec.encode(answer)
    at = scope.run.clock()
    row = new_row(
        scope,
        OpKind.CHANGE,
        _OP,
        _key(path, name),
        result_json=said,
        result_digest=codec.digest_text(said),
        started_at=at,
        summary=f"patched({name!r}): the {'new' if answer else 'old'} code",
    )
    journal.record_with_next(row)
    return answer


def _key(branch: BranchPath, name: str) -> str:
    return f"{branch}|{_OP}|{codec.digest(name)[:16]}"


def _and_above(path: BranchPath) -> list[BranchPath]:
    parts = path.split("/")
    return [BranchPath("/".join(parts[:count])) for count in range(len(parts), 0, -1)]
