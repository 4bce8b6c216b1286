from __future__ import annotations

import io
import os
import pty
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TextIO

import pytest

from ramify.cli.branch_tree import TreeLine
from ramify.cli.progress import LiveProgress, PlainProgress, Progress, _bounded
from ramify.compiler.plan import OpKind
from ramify.fork_engine.types import Skipped
from ramify.runtime.events import Event, LLMDone, OpDone, RunEnded, RunStarted
from ramify.runtime.records import LLMRecord, RunStatus

PLAIN = """\
repair 5eed00000001 starts
left out of the snapshot: pipe (a FIFO)
[root] run_tests: 3/5 passed (0.50 s)
[root] model call (0.25 s)
[root] model call (0.25 s)
[root] fork: 3 branches
[root/fork.1.0.0] try_edit: 4/5 passed (0.50 s)
[root/fork.1.0.2] ↺ try_edit: 4/5 passed (0.50 s)
[root/fork.1.0.1] try_edit: 4/5 passed (0.50 s)
[root/fork.1.0.1] fork: 2 branches
[root/fork.1.0.1/fork.2.0.0] ✗ try_edit: ValueError: no (0.50 s)
[root/fork.1.0.1/fork.2.0.0] try_edit: 5/5 passed (0.50 s)
[root/fork.1.0.1] ✓ merged root/fork.1.0.1/fork.2.0.0
[root/fork.1.0.1] fork ends: 1 released, 1 merged
[root] ✓ merged root/fork.1.0.1
[root] fork ends: 2 released, 1 merged
[root] run_tests: 5/5 passed (0.50 s)
[root] model call (0.25 s)
repair 5eed00000001 done in 0.000 s: 6 steps (1 ↺ reused), 4 forks, 3 model calls, 89.0 s left
"""

SUMMARIES = {
    9: "2 branches",
    12: "merged root/fork.1.0.1/fork.2.0.0",
    13: "1 released, 1 merged",
    14: "merged root/fork.1.0.1",
    15: "2 released, 1 merged",
}


def events(story: Any, *, replayed_until: int = 0) -> Iterator[Event]:
    run = replace(story.run, status=RunStatus.RUNNING, consumed_s=1.0)
    yield RunStarted(run, resumed=replayed_until > 0, skipped=(Skipped("pipe", "a FIFO"),))
    for row in sorted([*story.ops, *story.llm], key=lambda row: row.seq):
        replayed = row.seq <= replayed_until
        if isinstance(row, LLMRecord):
            yield LLMDone(row, replayed)
        else:
            yield OpDone(replace(row, summary=SUMMARIES.get(row.seq, row.summary)), replayed)
    yield RunEnded(run, RunStatus.DONE)


def told(progress: Progress, story: Any, **how: int) -> None:
    with progress:
        for event in events(story, **how):
            progress(event)


def test_pipe_gets_a_line_per_operation(story: Any) -> None:
    out = io.StringIO()
    told(PlainProgress(out, clock=lambda: 0.0), story)
    assert out.getvalue() == PLAIN


def test_replayed_results_are_counted_in_one_line(story: Any) -> None:
    out = io.StringIO()
    told(PlainProgress(out, clock=lambda: 0.0), story, replayed_until=12)
    lines = out.getvalue().splitlines()
    assert lines[0] == "repair 5eed00000001 continues"
    assert lines[2:4] == [
        "[root] 12 results taken from the journal",
        "[root/fork.1.0.1] fork ends: 1 released, 1 merged",
    ]
    assert lines[-1] == PLAIN.splitlines()[-1]  # the counters count all of it


@pytest.mark.parametrize("kind", OpKind)
def test_an_operation_of_any_kind_is_a_line_or_none(story: Any, kind: OpKind) -> None:
    out = io.StringIO()
    run = replace(story.run, status=RunStatus.RUNNING)
    with PlainProgress(out, clock=lambda: 0.0) as progress:
        progress(RunStarted(run, resumed=False))
        progress(OpDone(replace(story.ops[0], kind=kind)))
        progress(RunEnded(run, RunStatus.DONE))
    said = out.getvalue().splitlines()[1:-1]
    assert all(line.startswith("[root] ") for line in said)
    own = (OpKind.PREFORK, OpKind.BARRIER, OpKind.ENTER, OpKind.SEAL, OpKind.CALL_LLM, OpKind.RESTORE, OpKind.COMMAND)
    assert len(said) == (kind not in own)


def test_run_that_was_done_before_is_reported(story: Any) -> None:
    out = io.StringIO()
    told(PlainProgress(out, clock=lambda: 0.0), story, replayed_until=99)
    assert "[root] 17 results taken from the journal" in out.getvalue().splitlines()


def test_quiet_says_nothing(story: Any, capfd: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    told(Progress.for_stream(out, quiet=True), story)
    assert (out.getvalue(), *capfd.readouterr()) == ("", "", "")


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal of 80 by 24: the end to write to, and the descriptor to read what came."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        yield stream, master
    os.close(master)


def test_stream_decides_between_tree_and_lines(terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _ = terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    assert type(Progress.for_stream(stream)) is LiveProgress
    monkeypatch.setenv("TERM", "dumb")
    assert type(Progress.for_stream(stream)) is PlainProgress
    assert type(Progress.for_stream(io.StringIO())) is PlainProgress


def read_all(master: int) -> str:
    os.set_blocking(master, False)
    pieces = []
    while True:
        try:
            pieces.append(os.read(master, 65536))
        except BlockingIOError:
            return b"".join(pieces).decode()


@pytest.mark.parametrize("no_colour", [True, False])
def test_on_a_terminal_the_tree_stays_when_the_run_ends(
    story: Any, terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch, no_colour: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    stream, master = terminal
    told(LiveProgress(stream, clock=lambda: 0.0), story)
    stream.flush()
    seen = read_all(master)
    assert ("\x1b[32m" in seen) is not no_colour
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "").splitlines()
    assert "├─ fork.1.0  3 branches" in lines
    assert "│  ├─ 1:  ✓ merged" in lines
    assert "│  └─ 2 released" in lines
    assert any(line.startswith("repair 5eed00000001 done") for line in lines)


def test_the_height_is_bounded() -> None:
    lines = [TreeLine("", str(n)) for n in range(50)]
    kept = _bounded(lines, 10)
    assert len(kept) == 10
    assert kept[0].text == "… 41 lines above"
    assert kept[1:] == lines[41:]
    assert _bounded(lines[:10], 10) == lines[:10]


def test_a_tree_higher_than_the_terminal_is_cut_to_its_newest_lines(
    story: Any, terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    progress = LiveProgress(terminal[0], clock=lambda: 0.0)
    first, step = next(iter(events(story))), story.ops[0]
    progress(first)
    for seq in range(200):
        progress(OpDone(replace(step, seq=seq, summary=f"number {seq}")))
    drawn = progress._draw().plain.splitlines()
    assert len(drawn) <= 24
    assert "number 199" in drawn[-2]
