from __future__ import annotations

from story import Story, op, seal

from ramify.browse.tui.branch_graph import graph, nodes, title
from ramify.compiler.plan import OpKind
from ramify.inspect.history import History
from ramify.runtime.codec import codec
from ramify.runtime.records import ROOT
from ramify.sandboxes.contract import RunResult


def of(told: Story) -> History:
    return History(told.run, tuple(told.ops), tuple(told.llm), tuple(told.checkpoints), ())


def test_every_moment_belongs_to_at_most_one_node(told: Story) -> None:
    history = of(told)
    found = list(nodes(history))
    held = [moment.seq for node in found for moment in node.moments]
    assert len(held) == len(set(held))
    assert {one.seq for one in history.moments} - set(held) == {13}  # a release alone makes no open end
    ends = {node.branch: node.parents for node in found if node.checkpoint is None}
    first, deeper, _, merged = (one.id for one in told.checkpoints)
    assert ends == {
        ROOT: (merged,),
        "root/fork.1.0.0": (first,),
        "root/fork.1.0.2": (first,),
        "root/fork.1.0.1/fork.2.0.0": (deeper,),
    }


def test_command_is_summarized_by_its_outcome(told: Story) -> None:
    result = RunResult("make test", 2, b"building\n3 failed\n", b"", 1.0)
    step = op(
        1, OpKind.RUN, step="check", summary="RunResult(command='make test', …", result_json=codec.encode(result)
    )
    seal_row = op(2, OpKind.SEAL, summary=step.summary)
    begin, sealed = seal(0, ROOT, "b" * 64, (), "workspace"), seal(2, ROOT, "c" * 64, (0,), "check")
    (first, second) = nodes(History(told.run, (step, seal_row), (), (begin, sealed), ()))
    assert (title(first), title(second)) == ("workspace", "check: exit 2, 3 failed")


def test_a_moment_leads_to_its_node(told: Story) -> None:
    drawn = graph(of(told))
    by_seq = {one.seq: one for one in drawn.history.moments}
    assert drawn.holding(by_seq[1]) == told.checkpoints[3].id
    assert drawn.holding(by_seq[5]) == "+root/fork.1.0.0"
    assert drawn.holding(by_seq[13]) is None


def test_many_branches_beside_each_other_stay_narrow(told: Story) -> None:
    ops = [op(1, OpKind.FORK, result_json='{"children": 200, "place": "o1.0"}')]
    ops += [op(2 + at, OpKind.RUN, f"root/o1.0.{at}", step="try_it") for at in range(200)]
    drawn = graph(History(told.run, tuple(ops), (), (seal(0, ROOT, "b" * 64, (), "workspace"),), ()))
    assert len(drawn.at_row) == 201
    for row, node in drawn.at_row.items():
        head = drawn.lines[row].text.partition(" ")[0]
        assert len(head) <= 16, head
        assert head.strip("│…┴┘├─") in ("○", "●", ""), (node, head)
    assert max(len(one.spans[0][0]) for one in drawn.lines) <= 17
