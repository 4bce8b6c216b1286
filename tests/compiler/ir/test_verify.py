from __future__ import annotations

import pytest

from ramify.compiler.errors import VerifyError
from ramify.compiler.ir.verify import RULES, verify
from ramify.compiler.passes import PIPELINE
from tests.compiler.graph_parser import parse_graph

ALL_PASSES = frozenset(each.name for each in PIPELINE)

GOOD = """\
graph "flow" "decorators"
step "edit" {"effect": "revertible"}
step "think" {"effect": "pure"}
step "mail" {"effect": "irreversible"}
block b0()
  enter: w1, e1 = ENTER
  run.1: w2 = RUN w1 : "edit"
  seal.1: w3 = SEAL w2
  ready.1: w20 = PREFORK w3 {"during": "run.2", "forks": ["fork.1"]}
  run.2: RUN : "think"
  fork.1: w4, ws5 = FORK w20 {"base": ["seal.1"]} @ "app/flow.py" 7:0-7:9
  -> b1(w4, ws5, e1)
  -> b2(w4, ws5, e1)
block b1(w6, ws7, e2)
  run.3: ws8 = RUN ws7 : "edit"
  seal.3: ws9 = SEAL ws8
  merge.1: w10, ws11 = MERGE w6, ws9 {"fork": "fork.1"}
  -> b2(w10, ws11, e2)
block b2(w12, ws13, e3)
  release.1: RELEASE ws13 {"fork": "fork.1"}
  barrier.4: e4 = BARRIER e3
  run.4: w14, e5 = RUN w12, e4 : "mail"
  -> exit(w14, e5)
block exit(w15, e6)
  release.root: RELEASE w15, e6
"""


def test_a_good_graph_passes() -> None:
    verify(parse_graph(GOOD), ALL_PASSES)


# For each rule, graphs that break it and no earlier rule: the text to replace in the good graph, and its replacement.
BROKEN = {
    "names are unique": [("run.3:", "run.1:"), ("block b1(w6", "block b2(w6")],
    "a world is made once": [
        ("block exit(w15", "block exit(w14"),
        ("ws8 = RUN", "ws7 = RUN"),
        ("e4 = BARR", "e5 = BARR"),
    ],
    "exits fit their targets": [
        ("-> exit(w14, e5)", "-> exit(w14)"),
        ("-> exit(", "-> nowhere("),
        ("-> b1(w4, ws5,", "-> b1(ws5, w4,"),
    ],
    "operations fit their signatures": [("w3 = SEAL w2", "ws3 = SEAL w2"), ("RELEASE ws13", "RELEASE w12, ws13")],
    "entered once, every block reachable": [
        ("  -> b1(w4, ws5, e1)\n", ""),
        ("  enter: w1, e1 = ENTER\n  run.1: w2 = RUN w1", "  run.1: w2 = RUN w1"),
        ("  release.1", "  again: w99 = ENTER\n  release.1"),
    ],
    "a world is used once": [
        ("w10, ws11 = MERGE w6", "w10, ws11 = MERGE w4"),
        ("-> b2(w4, ws5,", "-> b2(w3, ws5,"),
        ("SEAL w2", "SEAL w1"),
        ("-> exit(w14, e5)", "-> exit(w14, e3)"),
    ],
    "a world is ended on every path": [
        ("  release.root: RELEASE w15, e6\n", ""),
        ("RELEASE w15, e6", "RELEASE w15"),
        ('  release.1: RELEASE ws13 {"fork": "fork.1"}\n', ""),
    ],
    "branches belong to their fork": [
        ('ws9 {"fork": "fork.1"}', 'ws9 {"fork": "fork.2"}'),
        ('ws9 {"fork": "fork.1"}', "ws9"),
        ('RELEASE ws13 {"fork": "fork.1"}', "RELEASE ws13"),
    ],
    "steps are in the table": [('step "edit" {"effect": "revertible"}\n', "")],
    "a pure step holds no world": [
        ('w2 = RUN w1 : "edit"', 'w2 = RUN w1 : "think"'),
        ('RUN : "think"', 'RUN : "edit"'),
    ],
    "no irreversible step in a branch": [('ws8 = RUN ws7 : "edit"', 'ws8 = RUN ws7 : "mail"')],
    "an irreversible step is behind a barrier": [
        ("  barrier.4: e4 = BARRIER e3\n  run.4: w14, e5 = RUN w12, e4", "  run.4: w14, e5 = RUN w12, e3"),
    ],
    "a forked world is sealed": [
        ("w3 = SEAL w2", 'w3 = RUN w2 : "edit"'),
        ("  fork.1: w4, ws5 = FORK w20", "  break.1: w33 = BREAK w20\n  fork.1: w4, ws5 = FORK w33"),
    ],
    "a merge has its base": [
        ('{"base": ["seal.1"]} @', "@"),
        ('{"base": ["seal.1"]}', '{"base": ["seal.9"]}'),
    ],
    "worlds are prepared for forks": [
        ('"during": "run.2"', '"during": "run.1"'),
        ('"forks": ["fork.1"]', '"forks": []'),
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


def test_irreversible_steps_may_run_in_a_superstep() -> None:
    text = GOOD.replace('{"base"', '{"superstep": true, "base"').replace("RUN ws7 :", "RUN ws7, e9 :")
    text = text.replace("ws8 = RUN", "ws8, e10 = RUN").replace('e9 : "edit"', 'e9 : "mail"')
    text = text.replace("  run.3:", "  barrier.3: e9 = BARRIER e2\n  run.3:").replace("ws11, e2)", "ws11, e10)")
    verify(parse_graph(text), ALL_PASSES - {"lookahead"})


def test_a_graph_without_blocks_is_refused() -> None:
    with pytest.raises(VerifyError, match="no block"):
        verify(parse_graph('graph "g" "decorators"\n'))


CHANNELS = """\
graph "flow" "langgraph"
step "a" {"effect": "revertible"}
block b0()
  enter: w1, c2 = ENTER
  run.a: w3, c4 = RUN w1, c2 : "a"
  seal.a: w5 = SEAL w3
  fork.s: w6, ws7 = FORK w5 {"superstep": true, "base": ["seal.a"]}
  tools.b: ws8, c9 = CALL_TOOL ws7, c4 : "a"
  merge.s: w10, ws11, c12 = MERGE w6, ws8, c9 {"fork": "fork.s"}
  release.s: RELEASE ws11 {"fork": "fork.s"}
  -> exit(w10, c12)
block exit(w13, c14)
  release.root: RELEASE w13, c14
"""


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("a world is made once", "ws8, c9 =", "ws8, c4 ="),
        ("exits fit their targets", "exit(w10, c12)", "exit(c12, w10)"),
        ("operations fit their signatures", "RUN w1, c2", "RUN w1"),
        ("operations fit their signatures", "w5 = SEAL w3", "w5, c99 = SEAL w3, c4"),
        ("operations fit their signatures", "w6, ws7 = FORK w5", "w6, ws7, c99 = FORK w5, c4"),
        ("operations fit their signatures", "RELEASE ws11 {", "RELEASE ws11, c12 {"),
        ("a world is used once", "MERGE w6, ws8, c9", "MERGE w6, ws8, c4"),
        ("a world is ended on every path", "RELEASE w13, c14", "RELEASE w13"),
        ("steps are in the table", 'ws7, c4 : "a"', 'ws7, c4 : "b"'),
    ],
)
def test_versions_of_channels_are_linear_as_worlds_are(rule: str, old: str, new: str) -> None:
    verify(parse_graph(CHANNELS), ALL_PASSES)
    assert old in CHANNELS
    with pytest.raises(VerifyError) as error:
        verify(parse_graph(CHANNELS.replace(old, new)), ALL_PASSES)
    assert error.value.rule == rule
