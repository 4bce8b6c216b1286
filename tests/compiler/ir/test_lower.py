from __future__ import annotations

from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramify.compiler.emit import emit
from ramify.compiler.ir.graph import Graph, print_graph
from ramify.compiler.ir.lower import lower
from ramify.compiler.ir.verify import verify
from ramify.compiler.passes import run_passes
from ramify.compiler.plan import Effect, OpKind, Plan, Site
from ramify.compiler.spec import (
    END,
    Adopt,
    Body,
    CallLlm,
    Conditional,
    EnterBranch,
    ExitKind,
    Fork,
    Inlined,
    Item,
    Leave,
    Loop,
    Machine,
    MachineNode,
    Spec,
    StepCall,
    StepSpec,
    Try,
    Unseen,
    walk,
)
from tests.compiler.graph_parser import parse_graph

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are shared
STEPS = (
    StepSpec("edit", None, takes_sandbox=True),
    StepSpec("think", Effect.PURE, takes_sandbox=False),
    StepSpec("any", None, takes_sandbox=False),
)


def spec_of(body: Body | Machine) -> Spec:
    return Spec("app.py:flow", "flow", "decorators", "0", STEPS, body)


class Sites:
    """A new site, on a line of its own, each time."""

    def __init__(self) -> None:
        self.lines = count(1)

    def __call__(self) -> Site:
        line = next(self.lines)
        return Site("app/flow.py", line, 0, line, 9)


@st.composite
def bodies(draw: st.DrawFn, sites: Sites, forks: int = 0, loop: bool = False, depth: int = 0) -> Body:
    return tuple(draw(items(sites, forks, loop, depth)) for _ in range(draw(st.integers(0, 3))))


@st.composite
def items(draw: st.DrawFn, sites: Sites, forks: int, loop: bool, depth: int) -> Item:
    simple = [
        "run",
        "llm",
        "unseen",
        "return",
        "raise",
        *(["map", "adopt"] if forks else []),
        *(["break", "continue"] if loop else []),
    ]
    nested = ["fork", "choice", "loop", "try", "inlined", *(["enter"] if forks else [])]
    kind = draw(st.sampled_from(simple + (nested if depth < 3 else [])))
    site, up = sites(), draw(st.integers(0, max(forks - 1, 0)))

    def body(forks: int = forks, loop: bool = loop) -> Body:
        return draw(bodies(sites, forks, loop, depth + 1))

    match kind:
        case "run":
            return StepCall(draw(st.sampled_from(STEPS)).name, site)
        case "map":
            return StepCall("edit", site, over=up)
        case "llm":
            return CallLlm("chat", site)
        case "unseen":
            return Unseen("why", str(site), site)
        case "adopt":
            return Adopt(site, up)
        case "fork":
            return Fork(site, body(forks + 1))
        case "enter":
            return EnterBranch(up, body())
        case "choice":
            return Conditional((body(), body()))
        case "loop":
            return Loop(body(), body(loop=True), body(), draw(st.booleans()))
        case "try":
            return Try(body(), tuple(body() for _ in range(draw(st.integers(0, 2)))), body(), body())
        case "inlined":
            return Inlined("helper", body(loop=False))
        case _:
            return Leave(ExitKind(kind))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    names = [step.name for step in STEPS]
    targets = st.lists(st.sampled_from([*names, END]), min_size=1, unique=True).map(tuple)
    nodes = tuple(
        MachineNode(StepCall(name, None), draw(targets), draw(st.none() | st.just(Unseen("why", name))))
        for name in names
    )
    return Machine(draw(targets), nodes)


programs = st.builds(Sites).flatmap(bodies)


@calm
@given(programs | machines())
def test_whatever_is_lowered_passes_the_verifier_at_every_stage(body: Body | Machine) -> None:
    spec = spec_of(body)
    graph = run_passes(lower(spec), spec)
    assert parse_graph(print_graph(graph)) == graph
    plan = emit(graph, spec)
    assert Plan.from_json(plan.to_json()) == plan


@calm
@given(programs)
def test_every_operation_of_a_body_without_exits_is_in_the_graph(body: Body) -> None:
    items = list(walk(body))
    if any(isinstance(i, Leave) or (isinstance(i, Loop) and i.endless) for i in items):
        return
    graph = lower(spec_of(body))
    kinds = [op.kind for op in graph.ops()]
    expected = {
        OpKind.RUN: StepCall,
        OpKind.CALL_LLM: CallLlm,
        OpKind.BREAK: Unseen,
        OpKind.MERGE: Adopt,
        OpKind.FORK: Fork,
    }
    for kind, item in expected.items():
        assert kinds.count(kind) == sum(isinstance(i, item) for i in items)
    assert kinds.count(OpKind.RELEASE) == kinds.count(OpKind.FORK) + 1


def run(step: str, line: int) -> StepCall:
    return StepCall(step, Site("app/flow.py", line, 0, line, 9))


def lowered(*body: Item) -> Graph:
    graph = lower(spec_of(body))
    verify(graph)
    return graph


def test_every_exit_from_a_fork_goes_through_its_only_release() -> None:
    ways = Conditional(
        (
            (Leave(ExitKind.BREAK),),
            (Leave(ExitKind.CONTINUE),),
            (Leave(ExitKind.RETURN),),
            (Leave(ExitKind.RAISE),),
            (),
        )
    )
    site = Site("app/flow.py", 2, 0, 2, 9)
    graph = lowered(Loop((), (Fork(site, (ways,)), run("edit", 3))), run("any", 4))
    (release,) = [b for b in graph.blocks if any(op.fork == "fork.1" for op in b.ops)]
    assert sum(op.fork == "fork.1" for op in graph.ops()) == 1
    targets = {to: [op.step or op.kind for op in graph.by_id[to].ops] for to, _ in release.exits}
    # on to the step after the fork; out of the loop by break; round again; out of the workflow by return and raise
    assert sorted(targets.values()) == [[], ["RELEASE"], ["any"], ["edit"]]


def test_a_loop_leads_back_to_a_header_that_takes_the_world() -> None:
    graph = lowered(Loop((run("any", 1),), (run("edit", 2),)))
    (header,) = [b for b in graph.blocks if any(op.step == "any" for op in b.ops)]
    (body,) = [b for b in graph.blocks if any(op.step == "edit" for op in b.ops)]
    assert len(header.params) == 1
    assert [to for to, _ in body.exits] == [header.id]
    assert body.id in {to for to, _ in header.exits}


def test_a_handler_follows_the_start_and_the_end_of_its_try_body() -> None:
    graph = lowered(run("any", 1), Try((run("edit", 2),), ((run("think", 3),),)))
    by_step = {op.step: b for b in graph.blocks for op in b.ops if op.step}
    leading = {b.id for b in graph.blocks if by_step["think"].id in {to for to, _ in b.exits}}
    assert leading == {by_step["any"].id, by_step["edit"].id}


def test_a_helper_called_twice_is_two_copies_of_one_operation() -> None:
    helper = Inlined("helper", (run("edit", 9),))
    spec = spec_of((helper, helper))
    graph = run_passes(lower(spec), spec)
    assert [op.id for op in graph.ops() if op.kind is OpKind.RUN] == ["run.1", "run.1~2"]
    plan = emit(graph, spec)
    (block,) = plan.blocks
    assert block.ops == ("enter", "run.1", "seal.1", "run.1", "seal.1", "release.root")
    assert [op.id for op in plan.ops if op.kind is OpKind.SEAL] == ["seal.1"]


def test_a_nested_fork_forks_the_branch_that_was_entered() -> None:
    outer, inner = Site("app/flow.py", 1, 0, 1, 9), Site("app/flow.py", 2, 0, 2, 9)
    graph = lowered(Fork(outer, (EnterBranch(0, (Fork(inner, ()),)),)))
    first, second = [op for op in graph.ops() if op.kind is OpKind.FORK]
    assert second.inputs == (first.outputs[1],)


def test_code_after_an_exit_is_not_in_the_graph() -> None:
    graph = lowered(Leave(ExitKind.RETURN), run("edit", 2))
    assert [op.kind for op in graph.ops()] == [OpKind.ENTER, OpKind.RELEASE]
