from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from story import seal, story

from ramify.inspect.checkpoint_graph import NODE, GraphRow, ancestry, rows
from ramify.runtime.records import ROOT, CheckpointRecord


def drawn(checkpoints: list[CheckpointRecord]) -> list[str]:
    return [f"{row.lines} {row.checkpoint.seq if row.checkpoint else ''}".rstrip() for row in rows(checkpoints)]


def test_lines_part_at_a_merge_and_join_at_a_fork() -> None:
    assert drawn(story().checkpoints) == ["● 14", "├┐", "│● 12", "│● 8", "├┘", "● 0"]


def test_branches_of_one_fork() -> None:
    branches = [seal(seq, f"root/f.0.{seq}", "5a" * 32, (0,), "") for seq in (1, 2, 3)]
    checkpoints = [seal(0, ROOT, "5a" * 32, (), ""), *branches]
    assert drawn(checkpoints) == ["● 3", "│● 2", "││● 1", "├┴┘", "● 0"]


def test_line_of_a_missing_parent_ends() -> None:
    one, two = seal(5, ROOT, "5a" * 32, (4,), ""), seal(6, "root/x.0.0", "5a" * 32, (3, 5), "")
    assert drawn([one, two]) == ["● 6", "● 5"]


def test_ancestry_omits_later_and_parallel_checkpoints() -> None:
    told = story().checkpoints
    assert [one.seq for one in sorted(ancestry(told, told[2]), key=lambda one: one.seq)] == [0, 8, 12]


@st.composite
def histories(draw: st.DrawFn) -> list[CheckpointRecord]:
    made = [seal(0, ROOT, "5a" * 32, (), "")]
    for seq in range(1, draw(st.integers(1, 14))):
        parents = draw(st.lists(st.integers(0, seq - 1), min_size=1, max_size=3, unique=True))
        made.append(seal(seq, ROOT, "5a" * 32, tuple(parents), ""))
    return made


@given(histories())
def test_each_checkpoint_is_drawn_once_below_all_that_descend_from_it(told: list[CheckpointRecord]) -> None:
    order = [row.checkpoint.seq for row in rows(told) if row.checkpoint]
    assert order == sorted((one.seq for one in told), reverse=True)


@given(histories())
def test_lines_lead_from_each_checkpoint_to_its_parents(told: list[CheckpointRecord]) -> None:
    """Follow the drawing downwards from every checkpoint: its parents are what is met first on its lines."""
    drawing = list(rows(told))
    for start, row in enumerate(drawing):
        if row.checkpoint is None:
            continue
        parents = set(row.checkpoint.parents)
        assert parents <= _met(drawing, start)


def _met(drawing: list[GraphRow], start: int) -> set[str]:
    columns, met = {drawing[start].lines.index(NODE)}, set()
    for row in drawing[start + 1 :]:
        lines = row.lines
        if row.checkpoint is not None:
            at = lines.index(NODE)
            if at in columns:
                met.add(row.checkpoint.id)
                columns.discard(at)
        elif any(lines[at] in "├┴┘┬┐" for at in columns if at < len(lines)):
            bound = {at for at, mark in enumerate(lines) if mark in "├┴┘┬┐"}
            if "┘" in lines:  # they come together
                columns = (columns - bound) | {min(bound)}
            elif min(bound) in columns or not columns:
                columns |= bound if min(bound) in columns else set()
    return met
