from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.compiler.errors import TextError
from ramify.compiler.ir.graph import Block, Graph, Operation, dot, print_graph
from ramify.compiler.plan import Effect, OpId, OpKind, Site, StepPlan, ValueId
from tests.compiler.graph_parser import parse_graph

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are shared
names = st.text(max_size=6)
values = st.lists(names.map(ValueId), max_size=3).map(tuple)
json_values = st.none() | st.booleans() | st.integers() | names | st.lists(names, max_size=2)
numbers = st.integers(0, 999)
operations = st.builds(
    Operation,
    names.map(OpId),
    st.sampled_from(OpKind),
    values,
    values,
    st.none() | st.builds(Site, names, numbers, numbers, numbers, numbers),
    st.none() | names,
    st.dictionaries(names, json_values, max_size=2),
)
blocks = st.builds(
    Block,
    names,
    values,
    st.lists(operations, max_size=3).map(tuple),
    st.lists(st.tuples(names, values), max_size=2).map(tuple),
)
step_plans = st.builds(StepPlan, names, st.sampled_from(Effect), st.booleans(), names, names)
graphs = st.builds(
    Graph, names, names, st.lists(step_plans, max_size=2).map(tuple), st.lists(blocks, max_size=3).map(tuple)
)


@calm
@given(graphs)
def test_a_graph_is_the_same_after_its_text(graph: Graph) -> None:
    assert parse_graph(print_graph(graph)) == graph
    assert parse_graph(print_graph(graph)).digest == graph.digest


HEAD = 'graph "g" "decorators"\nblock b0()\n'


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1"),
        ("nonsense", "line 1"),
        ('graph "g"', "line 1"),
        (HEAD + "  enter: w1 = NOPE", "line 3"),
        (HEAD + "  enter w1 = ENTER", "line 3"),
        (HEAD + '  run: RUN : "s" {"a": } @ "f" 1:2-3:4', "line 3"),
        (HEAD + '  run: RUN @ "f" 1:2', "line 3"),
        (HEAD + "  -> b1(w1", "line 3"),
        ('graph "g" "d"\nstep "s" {"effect": "nope"}', "line 2"),
        ('graph "g" "d"\nstep "s" {"reuse": true}', "line 2"),
        ('graph "g" "d"\nblock b0() more', "line 2"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_line(text: str, where: str) -> None:
    with pytest.raises(TextError) as error:
        parse_graph(text)
    assert error.value.where == where


def test_dot_has_a_box_for_each_block_and_the_worlds_on_its_arrows() -> None:
    enter = Operation(OpId("enter"), OpKind.ENTER, (), (ValueId("w1"),))
    first = Block("b0", (), (enter,), (("b1", (ValueId("w1"),)),))
    text = dot(Graph("g", "decorators", (), (first, Block("b1", (ValueId("w2"),)))))
    assert '"b0" [label="b0\\nenter"]' in text
    assert '"b0" -> "b1" [label="w1"]' in text
