"""The length sketch: it is always a distribution, and conditioning behaves as conditioning."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ramify.serving.protocol.length_sketch import LEVELS, LengthSketch
from ramify.serving.protocol.tags import SLOTags

lengths = st.floats(0, 100_000, allow_nan=False, allow_subnormal=False)
sketches = st.lists(lengths, min_size=len(LEVELS), max_size=len(LEVELS)).map(
    lambda values: LengthSketch.from_wire(sorted(values))
)
shares = st.floats(0, 1)


@given(sketches, shares, shares, lengths)
def test_quantiles_never_decrease(sketch: LengthSketch, a: float, b: float, generated: float) -> None:
    low, high = sorted((a, b))
    assert sketch.quantile(low, generated) <= sketch.quantile(high, generated) * (1 + 1e-12)


@given(sketches, shares, lengths, lengths)
def test_bound_never_falls_while_tokens_come(sketch: LengthSketch, q: float, a: float, b: float) -> None:
    early, late = sorted((a, b))
    if late < sketch.values[-1]:
        assert sketch.quantile(q, early) <= sketch.quantile(q, late) * (1 + 1e-9) + 1e-9
    assert sketch.quantile(q, late) >= late


@given(sketches, lengths, lengths)
def test_survival_multiplies(sketch: LengthSketch, a: float, b: float) -> None:
    """P(length > b) = P(length > a) * P(length > b | length > a)."""
    early, late = sorted((a, b))
    if late >= sketch.values[-1]:
        return
    direct = 1 - sketch.cdf(late)
    by_way = (1 - sketch.cdf(early)) * (1 - sketch.condition(early).cdf(late))
    assert by_way == pytest.approx(direct, abs=1e-9)


@given(sketches, shares, lengths, lengths)
def test_conditioning_in_steps_equals_conditioning_at_once(
    sketch: LengthSketch, q: float, a: float, b: float
) -> None:
    early, late = sorted((a, b))
    if 1 - sketch.cdf(late) < 1e-6:
        return  # what is left of the probability is rounding
    at_once, in_steps = sketch.condition(late), sketch.condition(early).condition(late)
    assert in_steps.cdf(late + q * 1000) == pytest.approx(at_once.cdf(late + q * 1000), abs=1e-6)


@given(sketches, lengths)
@example(LengthSketch(LEVELS, (*[0.0] * (len(LEVELS) - 1), 100_000.0)), 99_999.99999999999)
def test_conditioned_sketch_is_valid(sketch: LengthSketch, generated: float) -> None:
    conditioned = sketch.condition(generated)
    LengthSketch(conditioned.levels, conditioned.values)  # its own checks hold
    assert conditioned.values[0] >= min(generated, sketch.values[0])
    assert LengthSketch.from_wire(conditioned.to_wire()).quantile(0.95) == pytest.approx(conditioned.quantile(0.95))


@given(sketches, shares, lengths)
def test_quantile_equals_conditioned_quantile(sketch: LengthSketch, q: float, generated: float) -> None:
    if 1 - sketch.cdf(generated) > 1e-6:
        conditioned = sketch.condition(generated)
        reached = sketch.quantile(q, generated)
        assert conditioned.quantile(q) == pytest.approx(reached, rel=1e-6, abs=1e-3)


@given(sketches, shares, shares, lengths)
def test_quantiles_equals_two_calls_of_quantile(sketch: LengthSketch, a: float, b: float, generated: float) -> None:
    assert sketch.quantiles(a, b, generated) == (sketch.quantile(a, generated), sketch.quantile(b, generated))


@given(sketches, lengths)
def test_mean_is_the_area_under_survival(sketch: LengthSketch, generated: float) -> None:
    mean = sketch.mean(generated)
    assert sketch.quantile(0, generated) * (1 - 1e-9) <= mean <= sketch.quantile(1, generated) * (1 + 1e-9) + 1e-9


@given(sketches, lengths, shares)
def test_cap_limits_all_quantiles(sketch: LengthSketch, limit: float, q: float) -> None:
    assert sketch.capped(limit).quantile(q) == pytest.approx(min(limit, sketch.quantile(q)), abs=limit)
    assert sketch.capped(limit).quantile(1) <= limit


@given(sketches)
def test_sketch_survives_the_tag(sketch: LengthSketch) -> None:
    tags = SLOTags.from_header(SLOTags(length_quantiles=sketch.to_wire()).to_header())
    assert tags.length_quantiles is not None
    assert LengthSketch.from_wire(tags.length_quantiles) == sketch


def test_figures_of_a_known_distribution() -> None:
    uniform = LengthSketch((0.0, 1.0), (0.0, 100.0))
    assert uniform.quantile(0.95) == 95
    assert uniform.mean() == 50
    assert uniform.quantile(0.5, generated=60) == 80
    assert uniform.mean(generated=60) == 80
    assert uniform.cdf(25) == 0.25


def test_answer_that_outlives_its_sketch_may_double() -> None:
    assert LengthSketch.known(10).quantile(1.0, generated=40) == 80
    assert LengthSketch.known(10).condition(40).quantile(0.5) == 60
    assert LengthSketch.known(10).quantile(0.5, generated=9) == 10


def test_cold_sketch_is_bounded_by_the_limit() -> None:
    cold = LengthSketch.cold(512)
    assert cold.quantile(0.95) == 512
    assert 1 <= cold.quantile(0.5) < 100
    assert cold.quantile(0.95, generated=300) == 512


@pytest.mark.parametrize(
    ("levels", "values"),
    [
        ((0.0, 1.0), (1.0,)),
        ((0.0,), (1.0,)),
        ((0.1, 1.0), (1.0, 2.0)),
        ((0.0, 0.5, 0.5, 1.0), (1.0, 2.0, 3.0, 4.0)),
        ((0.0, 1.0), (2.0, 1.0)),
        ((0.0, 1.0), (-1.0, 1.0)),
        ((0.0, 1.0), (1.0, float("inf"))),
        ((0.0, 0.5, 1.0), (1.0, float("nan"), 2.0)),
    ],
)
def test_invalid_distribution_is_refused(levels: tuple[float, ...], values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="a length sketch"):
        LengthSketch(levels, values)


def test_list_of_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="one for each level"):
        LengthSketch.from_wire([1.0, 2.0])


def test_a_number_that_no_float_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="length_quantiles"):
        LengthSketch.from_wire([10**400] * len(LEVELS))


def test_levels_are_fixed_by_the_wire_format() -> None:
    assert len(LEVELS) == 32
    assert {0.0, 0.05, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0} <= set(LEVELS)


def test_module_needs_only_the_standard_library() -> None:
    code = (
        "import json, sys; before = set(sys.modules); import ramify.serving.protocol.length_sketch;"
        "print(json.dumps(sorted({m.partition('.')[0] for m in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [m for m in json.loads(out.stdout) if m in ("numpy", "sklearn", "scipy", "httpx", "starlette")] == []
