from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ramify.compiler.plan import OpKind
from ramify.runtime.records import OpStatus
from ramify.runtime.store import RunStore, Tally

Make = Callable[..., Any]


async def test_the_counts_of_each_run(store: RunStore, a_run: Make, an_op: Make, an_llm_call: Make) -> None:
    for name in ("run-1", "run-2"):
        await store.create_run(a_run(id=name))
    left, right = "root/o2.0.0", "root/o2.0.1"
    await store.commit(
        "run-1",
        ops=[
            an_op(seq=1),
            an_op(seq=2, kind=OpKind.SEAL),
            an_op(seq=3, kind=OpKind.FORK),
            an_op(seq=4, branch=left),
            an_op(seq=5, branch=left, reused_from="run-0#3"),
            an_op(seq=6, branch=right, status=OpStatus.FAILED),
            an_op(seq=7, branch=right),
            an_op(seq=8, kind=OpKind.MERGE),
            an_op(seq=9, kind=OpKind.RELEASE),
        ],
        llm=[an_llm_call(seq=10), an_llm_call(seq=11, branch=right)],
    )
    assert await store.tallies(["run-1", "run-2"]) == {
        "run-1": Tally(steps=4, reused=1, failed=1, forks=2, merges=1, llm_calls=2),
        "run-2": Tally(),
    }
    assert await store.tallies([]) == {}
