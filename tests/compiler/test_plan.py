from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.compiler.plan import (
    STEPS,
    Effect,
    GraphBreak,
    OpId,
    OpKind,
    Plan,
    PlanBlock,
    PlanError,
    PlanOp,
    Site,
    StepPlan,
    ValueId,
    site_file,
)

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are shared
texts = st.text(max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
values = st.lists(texts.map(ValueId), max_size=3).map(tuple)
sites = st.builds(Site, texts, st.integers(), st.integers(), st.integers(), st.integers())
attrs = st.dictionaries(texts.filter(lambda key: key != "fork"), json_values, max_size=3)
CATCH_ALL = PlanOp(OpId("break.0"), OpKind.BREAK, attrs={"seal": True})


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    names = st.lists(texts, max_size=2).map(tuple)
    known = texts, st.sampled_from(Effect), st.booleans(), texts, texts, st.booleans(), names
    steps = draw(st.lists(st.builds(StepPlan, *known), max_size=3))
    ids = draw(st.lists(texts.map(lambda text: OpId("op" + text)), unique=True, max_size=5))
    ops = [CATCH_ALL]
    for op_id in ids:
        kind = draw(st.sampled_from([k for k in OpKind if steps or k not in STEPS]))
        step = draw(st.sampled_from(steps)).name if kind in STEPS else None
        ops.append(
            PlanOp(op_id, kind, draw(values), draw(values), draw(st.none() | sites), step, draw(attrs)),
        )
    params = {f"b{i}": draw(values) for i in range(draw(st.integers(1, 3)))}
    blocks = []
    for name in params:
        targets = draw(st.lists(st.sampled_from(sorted(params)), max_size=2))
        exits = tuple((to, tuple(ValueId(draw(texts)) for _ in params[to])) for to in targets)
        blocks.append(
            PlanBlock(
                name, params[name], tuple(draw(st.lists(st.sampled_from(ids), max_size=3)) if ids else ()), exits
            )
        )
    return Plan(
        draw(texts),
        draw(texts),
        "decorators",
        draw(texts),
        tuple(steps),
        tuple(ops),
        tuple(blocks),
        (GraphBreak(CATCH_ALL.id, "anywhere", "calls that the compiler did not see"),),
        draw(st.none() | st.floats(0, 1e6)),
        draw(st.none() | st.integers(0, 9)),
    )


def op(text: str, **more: Any) -> PlanOp:
    """`"seal.1 SEAL w1 -> w2"`"""
    name, kind, *rest = text.split()
    cut = rest.index("->") if "->" in rest else len(rest)
    return PlanOp(
        OpId(name), OpKind(kind), tuple(map(ValueId, rest[:cut])), tuple(map(ValueId, rest[cut + 1 :])), **more
    )


def small_plan() -> Plan:
    ops = (
        CATCH_ALL,
        op("enter.1 ENTER -> w1"),
        op("run.1 RUN w1 -> w2", step="edit", site=Site("app/a.py", 3, 4, 3, 20)),
        op("seal.1 SEAL w2 -> w3", site=Site("app/a.py", 3, 4, 3, 20)),
        op("fork.1 FORK w4 -> w5 ws1"),
        op("merge.1 MERGE w5 ws1 -> w6 ws2", attrs={"fork": "fork.1"}),
        op("release.1 RELEASE ws2", attrs={"fork": "fork.1"}),
        op("release.2 RELEASE w6"),
    )
    w3, w4 = ValueId("w3"), ValueId("w4")
    first, second = tuple(o.id for o in ops[1:4]), tuple(o.id for o in ops[4:])
    blocks = (PlanBlock("b1", (), first, (("b2", (w3,)),)), PlanBlock("b2", (w4,), second))
    breaks = (GraphBreak(CATCH_ALL.id, "anywhere", "calls that the compiler did not see"),)
    steps = (StepPlan("edit", Effect.REVERTIBLE),)
    return Plan("app/a.py:flow", "flow", "decorators", "0", steps, ops, blocks, breaks)


def without(plan: Plan, op: PlanOp) -> Plan:
    """The plan with an operation removed, and its outputs replaced by its inputs, as a person may edit it."""
    swap = dict(zip(op.outputs, op.inputs, strict=True))

    def swapped(values: tuple[ValueId, ...]) -> tuple[ValueId, ...]:
        return tuple(swap.get(value, value) for value in values)

    ops = tuple(replace(o, inputs=swapped(o.inputs)) for o in plan.ops if o.id != op.id)
    blocks = tuple(
        replace(
            block,
            ops=tuple(op_id for op_id in block.ops if op_id != op.id),
            exits=tuple((to, swapped(worlds)) for to, worlds in block.exits),
        )
        for block in plan.blocks
    )
    return replace(plan, ops=ops, blocks=blocks)


@calm
@given(plans())
def test_a_plan_is_the_same_after_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def edit(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return edit


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (_set("version", to=99), "plan.version"),
        (_set("ops", to={}), "plan.ops: a list"),
        (_set("ops", 1, "kind", to="NOPE"), "plan.ops[1].kind"),
        (_set("ops", 2, "step", to="ghost"), "plan.ops[2].step"),
        (_set("ops", 2, "site", "line", to="3"), "plan.ops[2].site.line"),
        (_set("ops", 2, "site", "line", to=True), "plan.ops[2].site.line"),
        (_set("ops", 2, "id", to="seal.1"), "plan.ops[3].id"),
        (_set("ops", 5, "attrs", "fork", to="seal.1"), "plan.ops[5].attrs.fork"),
        (_set("ops", 5, "extra", to=1), "plan.ops[5].extra"),
        (lambda data: data["ops"][5].pop("attrs"), "plan.ops[5].attrs"),
        (lambda data: data.pop("steps"), "plan.steps"),
        (lambda data: data["steps"][0].pop("parameters"), "plan.steps[0].parameters"),
        (_set("blocks", 0, "exits", 0, to=["b2"]), "plan.blocks[0].exits[0]"),
        (_set("blocks", 0, "exits", 0, 0, to="b9"), "plan.blocks[0].exits[0][0]"),
        (_set("blocks", 0, "exits", 0, 1, to=[]), "plan.blocks[0].exits[0][1]"),
        (_set("breaks", 0, "op", to="seal.1"), "plan.breaks[0].op"),
        (_set("breaks", to=[]), "plan.breaks[0]"),
        (_set("deadline_s", to="soon"), "plan.deadline_s"),
    ],
)
def test_a_wrong_plan_is_refused_by_the_name_of_the_key(edit: Callable[[Any], None], key: str) -> None:
    data = json.loads(small_plan().to_json())
    edit(data)
    with pytest.raises(PlanError) as error:
        Plan.from_json(json.dumps(data))
    assert key in str(error.value)


@pytest.mark.parametrize("version", [6, 9])
def test_an_earlier_plan_does_not_state_the_parameters(version: int) -> None:
    data = json.loads(small_plan().to_json()) | {"version": version}
    for step in data["steps"]:
        del step["parameters"]
    plan = Plan.from_json(json.dumps(data))
    assert (plan.version, plan.steps[0].parameters) == (version, ())
    del data["places"]
    with pytest.raises(PlanError, match=r"plan\.places"):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[1", "[]", "null", '{"version": 1}'])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(text)


def test_after_finds_the_consumer_in_this_block_and_in_the_next() -> None:
    plan = small_plan()
    run, seal = plan.op("run.1"), plan.op("seal.1")
    assert plan.after(run, OpKind.SEAL) == seal
    assert plan.after(seal, OpKind.FORK) == plan.op("fork.1")
    assert plan.after(run, OpKind.FORK) is None
    assert plan.before(seal, OpKind.RUN) == run
    assert plan.before(plan.op("fork.1"), OpKind.SEAL) is None


def test_a_fork_has_its_release_and_its_merge() -> None:
    plan = small_plan()
    fork = plan.op("fork.1")
    assert plan.release_of(fork) == plan.op("release.1")
    assert plan.after(fork, OpKind.MERGE) == plan.op("merge.1")


def test_after_a_seal_is_removed_the_fork_is_still_reached() -> None:
    plan = small_plan()
    plan = Plan.from_json(without(plan, plan.op("seal.1")).to_json())
    run = plan.op("run.1")
    assert plan.after(run, OpKind.SEAL) is None
    assert plan.after(run, OpKind.FORK) == plan.op("fork.1")


def test_a_seal_deleted_from_the_json_is_gone() -> None:
    data = json.loads(small_plan().to_json())
    data["ops"] = [o for o in data["ops"] if o["id"] != "seal.1"]
    plan = Plan.from_json(json.dumps(data))
    assert plan.after(plan.op("run.1"), OpKind.SEAL) is None


def test_a_consumer_of_a_missing_value_in_the_block_counts_as_the_next() -> None:
    chain = ("run.1 RUN w1 -> w2", "seal.1 SEAL w2 -> w3", "fork.1 FORK w3 -> w4 ws1", "release.1 RELEASE w4")
    ops = (CATCH_ALL, op("enter.1 ENTER -> w1"), *(op(text, step="edit") for text in chain))
    block = PlanBlock("b1", (), tuple(o.id for o in ops[1:]))
    full = replace(small_plan(), ops=ops, blocks=(block,))
    plan = replace(full, ops=tuple(o for o in ops if o.id != "seal.1"))
    run = plan.op("run.1")
    assert plan.after(run, OpKind.SEAL) is None
    assert plan.after(run, OpKind.FORK) == plan.op("fork.1")
    assert plan.after(run, OpKind.RELEASE) is None


def test_at_gives_the_innermost_call_of_that_kind() -> None:
    outer = op("run.1 RUN", step="edit", site=Site("app/a.py", 3, 4, 6, 5))
    inner = op("run.2 RUN", step="edit", site=Site("app/a.py", 4, 8, 4, 20))
    fork = op("fork.1 FORK", site=Site("app/a.py", 4, 10, 4, 15))
    for ops in ((outer, inner, fork), (fork, inner, outer)):
        plan = replace(small_plan(), ops=(CATCH_ALL, *ops))
        assert plan.at(OpKind.RUN, "app/a.py", 4, 10) == inner
        assert plan.at(OpKind.RUN, "app/a.py", 4, 20) == outer
        assert plan.at(OpKind.RUN, "app/a.py", 6, 5) is None
        assert plan.at(OpKind.RUN, "app/b.py", 4, 10) is None
        assert plan.at((OpKind.FORK, OpKind.RUN), "app/a.py", 4, 11) == fork


def test_a_failed_lookup_lists_the_known_names() -> None:
    plan = small_plan()
    assert plan.catch_all == CATCH_ALL
    assert plan.step("edit") == plan.steps[0]
    assert plan.step("ghost") is None
    with pytest.raises(PlanError, match=r"seal\.1"):
        plan.op("ghost")
    with pytest.raises(PlanError, match="catch-all"):
        _ = replace(plan, breaks=()).catch_all


def test_a_site_names_the_last_two_parts_of_a_path() -> None:
    assert site_file("/home/me/app/flow.py") == "app/flow.py"
    assert site_file("flow.py") == "flow.py"
