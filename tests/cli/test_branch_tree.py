from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.cli.branch_tree import BranchTree, Look
from ramify.compiler.plan import OpKind
from ramify.inspect.text import printable
from ramify.runtime.records import OpStatus

WHOLE = """\
root
├─ run_tests  3/5 passed
├─ model (2 calls)
├─ fork.1.0  3 branches
│  ├─ 0: try_edit  4/5 passed
│  ├─ 1:  ✓ merged
│  │  ├─ try_edit  4/5 passed
│  │  └─ fork.2.0  2 branches
│  │     └─ 0:  ✓ merged
│  │        ├─ ✗ try_edit  ValueError: no
│  │        └─ try_edit  5/5 passed
│  └─ 2: ↺ try_edit  4/5 passed
├─ run_tests  5/5 passed
└─ model (1 call)
"""

FOLDED = """\
├─ fork.1.0  3 branches
│  ├─ 1:  ✓ merged
│  │  ├─ try_edit  4/5 passed
│  │  └─ fork.2.0  2 branches
│  │     └─ 0:  ✓ merged
│  │        ├─ ✗ try_edit  ValueError: no
│  │        └─ try_edit  5/5 passed
│  └─ 2 released
"""


def grown(story: Any) -> BranchTree:
    tree = BranchTree()
    for row in sorted([*story.ops, *story.llm], key=lambda row: row.seq):
        tree.add(row) if row in story.ops else tree.add_llm(row)
    return tree


def drawn(tree: BranchTree, **how: bool) -> str:
    return "".join(f"{line.prefix}{line.text}\n" for line in tree.lines(**how))


def test_the_whole_tree(story: Any) -> None:
    assert drawn(grown(story)) == WHOLE


def test_folded_released_branches_are_counted(story: Any) -> None:
    assert FOLDED in drawn(grown(story), fold=True)


def test_looks(story: Any) -> None:
    looks = {line.text: line.look for line in grown(story).lines()}
    assert looks["0: try_edit  4/5 passed"] is Look.DIM
    assert looks["1:  ✓ merged"] is Look.GOOD
    assert looks["2: ↺ try_edit  4/5 passed"] is Look.TAKEN
    assert looks["✗ try_edit  ValueError: no"] is Look.BAD


def test_a_row_that_comes_twice_counts_once(story: Any) -> None:
    tree = grown(story)
    for row in story.ops:
        tree.add(row)
    for row in story.llm:
        tree.add_llm(row)
    assert drawn(tree) == WHOLE


def test_before_its_release_a_fork_is_not_folded(story: Any) -> None:
    tree = BranchTree()
    for row in story.ops[:5]:
        tree.add(row)
    assert drawn(tree, fold=True) == drawn(tree)


def test_branches_are_in_the_order_of_their_numbers(story: Any) -> None:
    tree = BranchTree()
    for seq, index in enumerate((10, 9, 2), 100):
        tree.add(type(story.ops[2])(**{**row_fields(story.ops[2]), "seq": seq, "branch": f"root/fork.1.0.{index}"}))
    assert [line.text.split(":")[0] for line in tree.lines()][2:] == ["2", "9", "10"]


@pytest.mark.parametrize(("status", "text"), [(OpStatus.ASKED, "asked: go on?"), (OpStatus.DONE, "answered: yes")])
def test_a_question_and_its_answer_are_told_apart(story: Any, status: OpStatus, text: str) -> None:
    tree = BranchTree()
    row = {**row_fields(story.ops[0]), "kind": OpKind.INTERRUPT, "status": status, "summary": text.partition(": ")[2]}
    tree.add(type(story.ops[0])(**row))
    assert [line.text for line in tree.lines()][1:] == [text]


@pytest.mark.parametrize("kind", [OpKind.FORK, OpKind.MERGE, OpKind.RELEASE, OpKind.INTERRUPT])
def test_what_the_workflow_cancelled_is_no_branch_and_no_merge(story: Any, kind: OpKind) -> None:
    tree = BranchTree()
    row = {**row_fields(story.ops[0]), "kind": kind, "status": OpStatus.FAILED, "step": None, "summary": "cancelled"}
    tree.add(type(story.ops[0])(**row))
    assert not tree.root.merged
    name = "question" if kind is OpKind.INTERRUPT else row["op_id"]
    assert [line.text for line in tree.lines()][1:] == [f"✗ {name}  cancelled"]


def row_fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "a\rb", "a\udcffb", "\u202eabc"])
def test_program_output_has_no_control_characters(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text())
def test_printable_text_is_shown_as_it_is(text: str) -> None:
    assert (printable(text) == text) is all(c.isprintable() for c in text)
