"""Channel versions are those of LangGraph's own savers, and threads of Ramify 0.1 keep their numbers."""

from __future__ import annotations

import pytest

from ramify.runtime.langgraph.checkpointer.saver import counter_of, next_version


def test_versions_have_the_form_of_langgraphs_savers() -> None:
    assert next_version(None, 0.25) == "00000000000000000000000000000001.0000000000000.25"
    assert (
        next_version("00000000000000000000000000000009.0.7", 0.5)
        == "00000000000000000000000000000010.00000000000000.5"
    )


@pytest.mark.parametrize("fraction", [0.0, 1e-9, 0.5, 0.999999999])
def test_each_version_is_greater_than_the_one_before(fraction: float) -> None:
    version = next_version(None, 0.999999)
    for _ in range(12):
        version, before = next_version(version, fraction), version
        assert version > before  # type: ignore[operator]
    assert counter_of(version) == 13


@pytest.mark.parametrize(("current", "expected"), [(1, 2), (1.5, 2.5), (7, 8)])
def test_a_thread_with_numbers_keeps_numbers(current: float, expected: float) -> None:
    assert next_version(current, 0.5) == expected


@pytest.mark.parametrize("version", ["v2", "", ".5", "２.5"])
def test_text_of_another_form_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="another checkpointer"):
        next_version(version, 0.5)
