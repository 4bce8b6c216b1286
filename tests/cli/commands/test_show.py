from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ramify.cli.commands.show import op_lines, run_lines, slo_lines
from ramify.inspect.facts import deadline_line
from ramify.inspect.model_calls import call_times
from ramify.runtime.codec import codec
from ramify.runtime.records import RunStatus
from ramify.runtime.store import Tally
from ramify.serving.types import ChatResult, Ledger

TALLY = Tally(steps=7, reused=1, failed=1, forks=4, merges=2, llm_calls=3)
RUN = """\
run        5eed00000001  done
workflow   /src/agent.py:repair
workspace  /src/programs
arguments  [["gcd"],{}]
sandbox    copy
began      2023-11-14 22:13:20 UTC (3 hours ago)
deadline   90.0 s, 29.5 s used: met
steps      7 done, 1 of them reused; 1 failed attempt
worlds     4 forked, 2 merged
model      3 calls
result     {"repaired": 1}
"""
CALLS = """\
SEQ  BRANCH  TAGS                       QUEUED  FIRST TOKEN     END  DEADLINE  MET
  2  root    stage 1/2 x2              0.000 s       0.12 s  0.25 s    86.0 s  met
  3  root    stage 1/2 x2, 2 attempts   0.12 s       0.20 s  0.30 s    85.0 s  met
 17  root    stage 2/2 x1                    -            -  0.25 s    71.0 s  met
all          3 calls                    0.12 s            -  29.5 s    90.0 s  met
"""
OPS = """\
SEQ  PLAN OP  KIND     BRANCH                      STEP         TOOK  SNAPSHOT  RESULT
  1  o1       RUN      root                        run_tests  0.50 s            3/5 passed
  6  o6       RUN      root/fork.1.0.2             try_edit   0.50 s            reused from 5eed00000001#5: 4/5 passed
 10  o10      RUN      root/fork.1.0.1/fork.2.0.0  try_edit   0.50 s            failed: ValueError: no
 15  o15      RELEASE  root                                        -
"""


def test_run_facts(story: Any) -> None:
    run = story.run
    assert run_lines(run, "done", TALLY, run.created_at + 11_000) == RUN.splitlines()


def test_the_times_of_model_calls(story: Any) -> None:
    lines = slo_lines(story.run, [call_times(row) for row in story.llm])
    assert lines == CALLS.splitlines()


def test_operations(story: Any) -> None:
    failed = replace(story.ops[7], error="ValueError: no\nmore of it")
    lines = op_lines([story.ops[0], story.ops[3], failed, story.ops[12]])
    assert lines == OPS.splitlines()


@pytest.mark.parametrize(
    ("status", "deadline", "line"),
    [
        (RunStatus.DONE, 20.0, "20.0 s, 29.5 s used: missed"),
        (RunStatus.FAILED, 20.0, "20.0 s, 29.5 s used: missed"),
        (RunStatus.FAILED, 90.0, "90.0 s, 29.5 s used: not over yet"),
        (RunStatus.DONE, None, "none, 29.5 s used"),
    ],
)
def test_deadlines(story: Any, status: RunStatus, deadline: float | None, line: str) -> None:
    assert deadline_line(replace(story.run, status=status, deadline_s=deadline)) == line


def test_call_without_a_gateway_is_judged_by_its_duration(story: Any) -> None:
    late = replace(story.llm[2], tags_json='{"slo_deadline_s": 0.125}')
    assert (call_times(late).verdict, call_times(story.llm[2]).verdict) == ("missed", "met")
    assert call_times(replace(story.llm[2], tags_json="{}")).verdict == "-"


@pytest.mark.parametrize(
    ("met", "qoe", "said"),
    [(None, 0.8125, "QoE 0.81"), (True, 1.0, "met, QoE 1.00"), (False, None, "missed"), (None, None, "-")],
)
def test_a_stream_shows_its_quality_of_experience(story: Any, met: bool | None, qoe: float | None, said: str) -> None:
    ledger = Ledger(0.1, 0.2, 2.0, met=met, qoe=qoe)
    row = replace(story.llm[0], result_json=codec.encode(ChatResult("B", "stop", "m", ledger=ledger)))
    (line,) = [line for line in slo_lines(story.run, [call_times(row)]) if "stage" in line]
    assert line.endswith(f"  {said}")


def test_show_a_run(home: Any, ramify: Any) -> None:
    said = ramify("show")
    assert said.status == 0
    assert said.out.splitlines()[0] == "run        5eed00000001  done"
    assert CALLS.splitlines()[2] in said.out.splitlines()
    assert ramify("show", "5eed").out == said.out


def test_show_a_run_as_json(home: Any, ramify: Any) -> None:
    run = ramify("show", "@", "--json").json
    assert (run["id"], run["deadline"], run["result"]) == ("5eed00000001", "met", {"repaired": 1})
    assert [op["kind"] for op in run["operations"]][:2] == ["RUN", "FORK"]
    first = run["llm_calls"][0]
    assert (first["queued_s"], first["first_token_s"], first["end_s"], first["met"]) == (0.0, 0.125, 0.25, True)
    assert first["tags"]["compound_stage"] == 0


def test_show_a_state(home: Any, ramify: Any) -> None:
    said = ramify("show", "@:root")
    assert said.status == 0
    lines = said.out.splitlines()
    assert "label      merge root/fork.1.0.1" in lines
    assert lines[lines.index("3 paths changed since its parent") + 1 :] == [
        'A "caf\\351.txt"',
        "D gone.txt",
        "M lib/gcd.py",
    ]


def test_show_a_state_as_json(home: Any, ramify: Any) -> None:
    state = ramify("show", "@:root", "--json").json
    assert (state["branch"], state["run"]) == ("root", "5eed00000001")
    assert [change["path"] for change in state["changes"]] == ["caf\udce9.txt", "gone.txt", "lib/gcd.py"]
    base = ramify("show", "@:base", "--json").json
    assert (base["parents"], base["changes"]) == ([], [])
    assert ramify("show", base["snapshot"][:10], "--json").json["run"] is None  # a snapshot by itself


@pytest.mark.parametrize("text", ["nope", "@:nowhere", "@~99", "a:b:c"])
def test_unknown_states_are_refused(home: Any, ramify: Any, text: str) -> None:
    said = ramify("show", text)
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"ramify: {text}:") or "does not name" in said.err
    assert "Traceback" not in said.err
