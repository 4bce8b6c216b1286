"""SLO tags: three ways in, one meaning, and every malformed value is named."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadTags
from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.protocol.tags import CLASSES, HEADER, LEAST_TBT_S, SLOTags, without_tags

seconds = st.none() | st.floats(0, 1e6)
counts = st.none() | st.integers(0, 100)
texts = st.none() | st.text("abcé-/ ", min_size=1, max_size=20)


def tags_of(**given: Any) -> SLOTags:
    """A stream's reader takes time for a token."""
    if given["slo_class"] == "stream" and given["slo_tbt_s"] is not None and given["slo_tbt_s"] < LEAST_TBT_S:
        given["slo_tbt_s"] = None
    return SLOTags(**given)


some_tags = st.builds(
    tags_of,
    slo_deadline_s=seconds,
    slo_ttft_s=seconds,
    slo_tbt_s=seconds,
    slo_waiting_s=seconds,
    slo_think_s=seconds,
    slo_class=st.none() | st.sampled_from(CLASSES),
    compound_id=texts,
    compound_stage=counts,
    compound_width=counts,
    compound_last=st.none() | st.integers(0, 1),
    compound_deadline_s=seconds,
    compound_deadline_at=st.none() | st.floats(0, 1e10),
    plan_rest=st.none() | st.tuples(*[st.floats(0, 1e6)] * 4),
    fork_group=texts,
    app_id=texts,
    length_quantiles=st.none() | st.floats(2, 1e6).map(lambda limit: LengthSketch.cold(limit).to_wire()),
    goodput_weight=st.none() | st.floats(0.001, 1000),
)


@given(some_tags)
def test_every_route_gives_the_same_tags(tags: SLOTags) -> None:
    assert SLOTags.from_xargs(tags.to_xargs()) == tags
    assert SLOTags.from_header(tags.to_header()) == tags
    assert SLOTags.from_body({"vllm_xargs": tags.to_xargs()}) == tags
    assert tags.to_header().isascii() and "\n" not in tags.to_header()
    assert all(isinstance(v, str | int | float | list) for v in tags.to_xargs().values())


@given(some_tags, st.floats(0, 1e6), st.floats(0, 1e6))
def test_ageing_adds_up_and_stops_at_zero(tags: SLOTags, a: float, b: float) -> None:
    once, twice = tags.aged(a + b), tags.aged(a).aged(b)
    for name in ("slo_deadline_s", "slo_ttft_s", "slo_waiting_s", "slo_think_s", "compound_deadline_s"):
        left = getattr(once, name)
        assert left == (None if left is None else pytest.approx(getattr(twice, name), abs=1e-6))
        assert left is None or left >= 0
    assert (once.slo_tbt_s, once.compound_deadline_at) == (tags.slo_tbt_s, tags.compound_deadline_at)


def test_thesis_fields_mean_the_same() -> None:
    body = {"deadline": 20, "target_ttft": 1.0, "target_tbt": 0.1, "waiting_time": 5, "messages": []}
    assert SLOTags.from_body(body) == SLOTags(20, 1.0, 0.1, 5)
    assert SLOTags.from_body({"messages": [], "vllm_xargs": None}) == SLOTags()


def test_removing_tags_keeps_everything_else() -> None:
    body = {"deadline": 20, "model": "m", "vllm_xargs": {"compound_id": "r", "theirs": 1}}
    assert without_tags(body) == {"model": "m", "vllm_xargs": {"theirs": 1}}
    assert without_tags({"vllm_xargs": {"compound_id": "r"}}) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slo_deadline_s", -1),
        ("slo_deadline_s", math.nan),
        ("slo_deadline_s", math.inf),
        ("slo_deadline_s", 1e300),
        ("slo_deadline_s", "soon"),
        ("slo_deadline_s", True),
        ("slo_deadline_s", [1.0]),
        ("slo_class", "urgent"),
        ("slo_class", ["latency"]),
        ("compound_id", ""),
        ("compound_id", "x" * 10_000),
        ("compound_id", "a\nb"),
        ("compound_id", 7),
        ("compound_stage", 1.5),
        ("compound_stage", 10**9),
        ("compound_last", 2),
        ("compound_deadline_at", 1.7e12),
        ("plan_rest", [1.0, 2.0]),
        ("plan_rest", {"calls": 1}),
        ("length_quantiles", [1.0, math.nan]),
        ("length_quantiles", [0.0] * 100_000),
        ("length_quantiles", [1.0, 2.0]),
        ("length_quantiles", [9.0] + [1.0] * (len(LEVELS) - 1)),
        ("goodput_weight", 0),
    ],
)
def test_malformed_tag_is_named(name: str, value: object) -> None:
    with pytest.raises(BadTags, match=name) as caught:
        SLOTags.from_xargs({name: value})
    assert caught.value.field == name
    assert len(str(caught.value)) < 200


def test_parts_do_not_exceed_their_whole() -> None:
    with pytest.raises(BadTags, match="compound_stage"):
        SLOTags(compound_stage=4, compound_stages=3)
    with pytest.raises(BadTags, match="fork_need"):
        SLOTags(fork_need=9, fork_size=8)


def test_routes_must_agree() -> None:
    body = {"deadline": 20.0, "vllm_xargs": {"slo_deadline_s": 20.0}}
    assert SLOTags.from_body(body).slo_deadline_s == 20.0
    with pytest.raises(BadTags, match="slo_deadline_s: two routes disagree"):
        SLOTags.from_body({"deadline": 21.0, "vllm_xargs": {"slo_deadline_s": 20.0}})


def test_misspelt_tags_are_refused_but_foreign_keys_pass() -> None:
    assert SLOTags.from_xargs({"kv_transfer": "x"}) == SLOTags()
    with pytest.raises(BadTags, match="slo_dedline_s: no such tag"):
        SLOTags.from_xargs({"slo_dedline_s": 5})
    with pytest.raises(BadTags, match="kv_transfer"):
        SLOTags.from_header('{"kv_transfer": "x"}')


@pytest.mark.parametrize("header", ["", "{", "[1]", "null", "[" * 100_000, "\ud800"])
def test_header_that_is_not_an_object_is_refused(header: str) -> None:
    with pytest.raises(BadTags) as caught:
        SLOTags.from_header(header)
    assert caught.value.field == HEADER


def test_duplicate_tag_in_a_header_is_refused() -> None:
    with pytest.raises(BadTags, match=r"^slo_deadline_s: given twice"):
        SLOTags.from_header('{"slo_deadline_s": 5, "slo_deadline_s": 600}')


def test_body_field_is_refused_by_its_own_name() -> None:
    with pytest.raises(BadTags, match=r"^deadline: "):
        SLOTags.from_body({"deadline": -5})
    with pytest.raises(BadTags, match="vllm_xargs"):
        SLOTags.from_body({"vllm_xargs": [1]})


def test_deadline_left_is_the_earliest_deadline() -> None:
    assert SLOTags(slo_ttft_s=1.0).deadline_left(1000.0) is None
    assert SLOTags(30.0, compound_deadline_s=20.0, compound_deadline_at=1010.0).deadline_left(1000.0) == 10.0
    assert SLOTags(compound_deadline_at=900.0).deadline_left(1000.0) == 0.0


def test_every_field_has_a_check() -> None:
    for field in dataclasses.fields(SLOTags):
        with pytest.raises(BadTags, match=field.name):
            SLOTags(**{field.name: object()})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["slo_deadline_s", "fork_group", "length_quantiles", "slo_typo"])
def test_tag_outside_vllm_xargs_is_refused(name: str) -> None:
    with pytest.raises(BadTags, match=f"{name}.*vllm_xargs"):
        SLOTags.from_body({"messages": [], name: 3})
