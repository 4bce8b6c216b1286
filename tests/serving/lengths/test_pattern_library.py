"""Pattern graphs: encoded small, matched by prefix and similarity, and used to estimate later stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving_costs.synthetic_lengths import research
from ramify.serving.lengths.pattern_graph import (
    BUDGET,
    Kind,
    Names,
    Node,
    PatternGraph,
    decode,
    encode,
    linked,
    profiles,
)
from ramify.serving.lengths.pattern_library import Library, Matching, k_medoids, kernel, similarities
from ramify.serving.lengths.types import Estimates, Split
from tests.samples import sample

nodes = st.builds(
    Node,
    kind=st.sampled_from(Kind),
    name=st.sampled_from(["small", "large", "search", "shell"]),
    stage=st.just(0),
    input=st.integers(0, 200_000),
    output=st.integers(0, 50_000),
    seconds=st.floats(0, 600, allow_subnormal=False),
)
graphs = st.lists(st.lists(nodes, min_size=1, max_size=5), min_size=1, max_size=12).map(linked)


@given(graphs)
def test_encoded_graph_keeps_its_stages(graph: PatternGraph) -> None:
    names = Names()
    kept = decode(encode(graph, names, budget=10_000), names)
    for ours, theirs in zip(profiles(graph), kept, strict=True):
        assert theirs.identities == ours.identities
        assert theirs.calls == ours.calls
        assert theirs.output == pytest.approx(ours.output, rel=0.05, abs=1)
        assert theirs.input == pytest.approx(ours.input, rel=0.05, abs=1)
        assert theirs.seconds == pytest.approx(ours.seconds, rel=0.05, abs=0.01)


def test_long_loop_is_folded_into_200_bytes() -> None:
    stages = [
        [Node(Kind.TOOL, "shell", 0, seconds=1 + s % 7), Node(Kind.LLM, "m", 0, 900 * s, 100 + s)] for s in range(120)
    ]
    names = Names()
    code = encode(linked(stages), names)
    assert len(code) <= BUDGET
    kept = decode(code, names)
    assert len(kept) == 120
    assert sum(p.output for p in kept) == pytest.approx(sum(100 + s for s in range(120)), rel=0.1)


def test_wide_stage_is_one_row() -> None:
    names = Names()
    wide = linked([[Node(Kind.LLM, "m", 0, 10, 10, 1.0)], [Node(Kind.LLM, "m", 0, 10, 10, 1.0)] * 64])
    assert len(encode(wide, names)) < 20
    assert [p.calls for p in decode(encode(wide, names), names)] == [1, 64]


def test_encoded_graph_holds_no_text() -> None:
    names = Names()
    encode(research(1), names)
    assert set(names) == {"planner", "search", "drafter", "writer"}


@given(st.binary(max_size=60))
def test_invalid_graph_bytes_are_refused(data: bytes) -> None:
    try:
        decode(data, Names(["a", "b"]))
    except ValueError:
        return
    assert data[0] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        (Node(Kind.LLM, "m", -1),),
        (Node(Kind.LLM, "m", 0, seconds=float("nan")),),
        (Node(Kind.LLM, "m", 0, parents=(0,)),),
        (Node(Kind.LLM, "m", 3), Node(Kind.LLM, "m", 1, parents=(0,))),
    ],
)
def test_invalid_graph_is_refused(wrong: tuple[Node, ...]) -> None:
    with pytest.raises(ValueError, match="pattern graph"):
        PatternGraph(wrong)


def test_calls_follow_tools_and_tools_follow_the_stage_before() -> None:
    graph = linked([[Node(Kind.LLM, "a", 0)] * 2, [Node(Kind.LLM, "b", 0), Node(Kind.TOOL, "t", 0)]])
    assert [(n.name, n.stage, n.parents) for n in graph.nodes] == [
        ("a", 0, ()),
        ("a", 0, ()),
        ("t", 1, (0, 1)),
        ("b", 1, (2,)),
    ]


def _library(count: int = 60) -> Library:
    library = Library()
    for seed in range(count):
        library.add(research(seed), now=0.0)
    return library


def test_estimates_improve_as_more_stages_are_seen() -> None:
    library = _library()
    errors: dict[int, list[float]] = {}
    for seed in range(1_000, 1_040):
        stages = profiles(research(seed))
        total = left = sum(stage.seconds for stage in stages)
        matching = Matching(library)
        for s, stage in enumerate(stages[:4]):
            estimates = matching.estimate()
            assert estimates is not None
            errors.setdefault(s, []).append(abs(sum(estimates.times[estimates.seen :]) - left) / total)
            left -= stage.seconds
            matching.extend(stage)
    means = [float(np.mean(errors[s])) for s in sorted(errors)]
    assert means[3] < means[0]
    assert means[1] < means[0]


def test_plan_length_predicts_the_number_of_rounds() -> None:
    library = _library()
    for searches in (2, 6):
        matching = Matching(library)
        matching.extend(profiles(research(2_000, searches=searches))[0])
        estimates = matching.estimate()
        assert estimates is not None
        assert abs(estimates.stages - (searches + 2)) <= 1
        assert estimates.rest[0].calls == pytest.approx(3, rel=0.1)
        assert 0.95 <= estimates.rest[0].tool_s_before <= 2.1  # as the searches of `research` take


def test_other_tool_excludes_a_pattern() -> None:
    """Two kinds of requests begin alike and part at the tool: from then on only the one kind speaks."""
    library = Library()
    plan = Node(Kind.LLM, "m", 0, 100, 100, 1.0)
    for _ in range(10):
        library.add(linked([[plan], [Node(Kind.TOOL, "fast", 0, seconds=1), plan], [plan]]), 0.0)
        library.add(linked([[plan], [Node(Kind.TOOL, "slow", 0, seconds=1), plan], [plan], [plan], [plan]]), 0.0)
    matching = Matching(library)
    for stage in profiles(linked([[plan], [Node(Kind.TOOL, "slow", 0, seconds=1), plan]])):
        matching.extend(stage)
    estimates = matching.estimate()
    assert estimates is not None
    assert len(estimates.rest) == 3
    assert estimates.stages == 5


def test_unseen_prefix_gets_an_estimate_without_similarity() -> None:
    matching = Matching(_library())
    for stage in profiles(linked([[Node(Kind.LLM, "unheard", 0, 10, 10, 1.0)]])):
        matching.extend(stage)
    estimates = matching.estimate()
    assert estimates is not None
    assert estimates.similarity < 0.01


def test_without_history_there_is_no_estimate() -> None:
    assert Matching(Library()).estimate() is None


def test_matching_follows_library_changes() -> None:
    library = _library(20)
    matching, stages = Matching(library), profiles(research(3_000, searches=3))
    matching.extend(stages[0])
    before = matching.estimate()
    for seed in range(20, 60):
        library.add(research(seed), 0.0)
    matching.extend(stages[1])
    fresh = Matching(library)
    fresh.extend(stages[0])
    fresh.extend(stages[1])
    after, expected = matching.estimate(), fresh.estimate()
    assert before is not None
    assert after is not None
    assert after == expected


def test_use_fades_and_forgotten_patterns_are_dropped() -> None:
    library = Library()
    library.add(research(1), now=0.0)
    library.fade(now=3_600.0)
    assert library.mass == pytest.approx([0.9])
    library.fade(now=2 * 3_600.0)
    assert library.mass == pytest.approx([0.81])
    library.fade(now=40 * 3_600.0)
    assert len(library) == 0


def test_library_beyond_capacity_keeps_medoids() -> None:
    library = Library(capacity=20)
    for seed in range(200):
        library.add(research(seed), now=0.0)
    assert len(library) <= 20 + 64
    library.cluster(10)
    assert len(library) == 10
    assert library.mass.sum() == pytest.approx(200)
    assert {len(library.profiles(i)) for i in range(10)} == {4, 5, 6, 7, 8}, "each kind keeps a medoid"


def test_medoids_are_cluster_centres() -> None:
    points = np.array([0.0, 0.1, 0.2, 5.0, 5.1, 5.2, 9.0])
    distance = np.abs(points[:, None] - points[None, :])
    assert sorted(k_medoids(distance, np.ones(7), 3).tolist()) == [1, 4, 6]


@settings(deadline=None, max_examples=sample(10, 30))
@given(st.lists(graphs, min_size=1, max_size=6))
def test_similarity_is_symmetric_and_one_to_itself(some: list[PatternGraph]) -> None:
    library = Library()
    for graph in some:
        library.add(graph, 0.0)
    near = similarities(library.columns)
    assert np.diag(near) == pytest.approx(np.ones(len(some)))
    assert near == pytest.approx(near.T)
    assert near.min() >= 0
    assert near.max() <= 1 + 1e-9


def test_kernel_falls_as_attributes_differ() -> None:
    here = np.zeros(4)
    near, far = kernel(here, here + 0.2), kernel(here, here + 2.0)
    assert kernel(here, here) == 1
    assert 1 > near > far > 0


def test_splits_match_the_thesis_and_its_alternatives() -> None:
    estimates = Estimates(0, (1.0, 3.0, 4.0), ())
    assert estimates.share(1) == 0.5
    assert estimates.share(1, Split.SHARE) == 3 / 8
    assert estimates.share(1, Split.REMAINING) == 3 / 7
    assert estimates.share(9) == 1.0
