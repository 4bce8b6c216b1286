from __future__ import annotations

import pytest

from ramify.compiler.errors import VerifyError
from ramify.compiler.ir.text import parse_graph
from ramify.compiler.ir.verify import RULES, verify

ALL_PASSES = frozenset({"effects", "fork_points"})

GOOD = """\
graph "flow" "decorators"
step "edit" {"effect": "revertible"}
step "think" {"effect": "pure"}
step "mail" {"effect": "irreversible"}
block b0()
  enter: w1 = ENTER
  run.1: w2 = RUN w1 : "edit"
  seal.1: w3 = SEAL w2
  run.2: RUN : "think"
  fork.1: w4, ws5 = FORK w3 @ "app/flow.py" 7:0-7:9
  -> b1(w4, ws5)
  -> b2(w4, ws5)
block b1(w6, ws7)
  run.3: ws8 = RUN ws7 : "edit"
  seal.3: ws9 = SEAL ws8
  merge.1: w10, ws11 = MERGE w6, ws9 {"fork": "fork.1"}
  -> b2(w10, ws11)
block b2(w12, ws13)
  release.1: RELEASE ws13 {"fork": "fork.1"}
  run.4: w14 = RUN w12 : "mail"
  -> exit(w14)
block exit(w15)
  release.root: RELEASE w15
"""


def test_a_good_graph_passes() -> None:
    verify(parse_graph(GOOD), ALL_PASSES)


# Each rule with graphs that break it, and no rule before it: what is replaced in the good graph, and by what.
BROKEN = {
    "names stand once": [("run.3:", "run.1:"), ("block b1(w6", "block b2(w6")],
    "a world is made once": [("block exit(w15)", "block exit(w14)"), ("ws8 = RUN", "ws7 = RUN")],
    "exits fit their targets": [
        ("-> exit(w14)", "-> exit()"),
        ("-> exit(", "-> nowhere("),
        ("-> b1(w4, ws5)", "-> b1(ws5, w4)"),
    ],
    "operations fit their signatures": [("w3 = SEAL w2", "ws3 = SEAL w2"), ("RELEASE ws13", "RELEASE w12, ws13")],
    "entered once, everything reached": [
        ("  -> b1(w4, ws5)\n", ""),
        ("  enter: w1 = ENTER\n  run.1: w2 = RUN w1", "  run.1: w2 = RUN w1"),
        ("  release.1", "  again: w99 = ENTER\n  release.1"),
    ],
    "a world is used once": [
        ("w10, ws11 = MERGE w6", "w10, ws11 = MERGE w4"),
        ("-> b2(w4, ws5)", "-> b2(w3, ws5)"),
        ("SEAL w2", "SEAL w1"),
    ],
    "a world is ended on every path": [
        ("  release.root: RELEASE w15\n", ""),
        ('  release.1: RELEASE ws13 {"fork": "fork.1"}\n', ""),
    ],
    "branches go back to their fork": [
        ('ws9 {"fork": "fork.1"}', 'ws9 {"fork": "fork.2"}'),
        ('ws9 {"fork": "fork.1"}', "ws9"),
        ('RELEASE ws13 {"fork": "fork.1"}', "RELEASE ws13"),
    ],
    "steps are in the table": [('step "edit" {"effect": "revertible"}\n', "")],
    "a pure step holds no world": [
        ('w2 = RUN w1 : "edit"', 'w2 = RUN w1 : "think"'),
        ('RUN : "think"', 'RUN : "edit"'),
    ],
    "nothing irreversible in a branch": [('ws8 = RUN ws7 : "edit"', 'ws8 = RUN ws7 : "mail"')],
    "a forked world is sealed": [
        ("w3 = SEAL w2", 'w3 = RUN w2 : "edit"'),
        ("  fork.1: w4, ws5 = FORK w3", "  break.1: w33 = BREAK w3\n  fork.1: w4, ws5 = FORK w33"),
    ],
}


@pytest.mark.parametrize(
    ("rule", "old", "new"), [(rule, old, new) for rule, cases in BROKEN.items() for old, new in cases]
)
def test_a_broken_graph_is_refused_by_the_rule_it_breaks(rule: str, old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(VerifyError) as error:
        verify(parse_graph(GOOD.replace(old, new)), ALL_PASSES)
    assert error.value.rule == rule
    assert error.value.mend


def test_every_rule_has_a_graph_that_breaks_it() -> None:
    assert [rule.name for rule in RULES] == list(BROKEN)


def test_a_rule_of_a_pass_holds_only_once_the_pass_has_run() -> None:
    unsealed = parse_graph(GOOD.replace("w3 = SEAL w2", 'w3 = RUN w2 : "edit"'))
    verify(unsealed, frozenset({"effects"}))
    with pytest.raises(VerifyError):
        verify(unsealed, ALL_PASSES)


def test_an_irreversible_step_in_a_branch_is_refused_with_the_path_to_it() -> None:
    broken = GOOD.replace('ws8 = RUN ws7 : "edit"', 'ws8 = RUN ws7 : "mail" @ "app/flow.py" 9:0-9:9')
    with pytest.raises(VerifyError, match=r"FORK at app/flow.py:7:0 -> mail at app/flow.py:9:0") as error:
        verify(parse_graph(broken), ALL_PASSES)
    assert error.value.where == "app/flow.py:9:0 (run.3)"


def test_a_superstep_joins_every_branch_so_its_steps_are_not_speculative() -> None:
    text = GOOD.replace("FORK w3", 'FORK w3 {"superstep": true}').replace('ws7 : "edit"', 'ws7 : "mail"')
    verify(parse_graph(text), ALL_PASSES)


def test_a_graph_without_blocks_is_refused() -> None:
    with pytest.raises(VerifyError, match="no block"):
        verify(parse_graph('graph "g" "decorators"\n'))
