"""The rollout collector with a scripted policy: rollouts that meet share their tool work, and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

from examples.rollouts.__main__ import Shared, report
from examples.rollouts.workflow import EDITS, STOP, collect
from ramify import Runtime
from ramify.compiler.plan import OpKind
from ramify.serving.client import LLMClient
from ramify.serving.testing import ScriptedModel

POLICY = {"A": 8.0, "B": 4.0, "C": 2.0}


async def test_tool_work_is_shared_where_rollouts_meet(home: Path) -> None:
    model = ScriptedModel(lambda request: POLICY)
    async with (
        LLMClient("http://model.test/v1", transport=model) as client,
        Runtime(home=home, sandbox="copy", llm=client, reuse_answers=True) as runtime,
    ):
        found = await runtime.run(collect, 8, 3, temperature=1.0, width=2)
        rows = [row for row in await runtime.journal() if row.kind is OpKind.RUN]
        shared = Shared.of(await runtime.journal())
        said = report(found, shared, await runtime.llm_calls())
    assert [trajectory.seed for trajectory in found] == list(range(8))
    acted = [turn for trajectory in found for turn in trajectory.turns if turn.action != STOP]
    assert shared.calls == 1 + len(acted)  # `prepare`, and an edit an action
    done = [(row.snapshot_in, row.args_digest) for row in rows if row.reused_from is None]
    assert shared.reused == len(rows) - len(done) > 0
    assert f"{shared.calls} asked for, {shared.reused} reused" in said
    first = found[0].turns[0]
    assert math.isclose(math.exp(first.logprob), weight(first.action) / norm(), rel_tol=1e-6)
    assert all(0 <= turn.reward <= 1 for trajectory in found for turn in trajectory.turns)
    assert len({trajectory.turns for trajectory in found}) > 1  # a policy that explores


UNNAMED = min(POLICY.values()) / math.e
"""A letter that the policy does not name is held a nat less likely than its least likely one."""


def weight(action: str) -> float:
    """Of an action at the first turn, when all of them are on the table."""
    words = [*(f"{old} -> {new}" for old, new in EDITS), STOP]
    return POLICY.get("ABCDEFGHI"[words.index(action)], UNNAMED)


def norm() -> float:
    return sum(POLICY.values()) + (len(EDITS) + 1 - len(POLICY)) * UNNAMED
