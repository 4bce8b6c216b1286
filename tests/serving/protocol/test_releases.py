"""What a release says, and how it is cut into messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramify.serving.errors import BadTags
from ramify.serving.protocol.releases import parts, release_of


def test_a_release_names_a_workflow_and_perhaps_its_branches() -> None:
    assert release_of({"compound_id": "r"}) == ("r", None)
    assert release_of({"compound_id": "r", "branches": ["a"], "more": 1}) == ("r", ["a"])
    assert release_of({"compound_id": "r", "branches": []}) == ("r", [])


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("compound_id", {}),
        ("compound_id", {"compound_id": ""}),
        ("compound_id", {"compound_id": "r" * 257}),
        ("compound_id", {"compound_id": "r\nbranch of another"}),
        ("branches", {"compound_id": "r", "branches": "ab"}),
        ("branches", {"compound_id": "r", "branches": ["a", 1]}),
        ("branches", {"compound_id": "r", "branches": ["a" * 257]}),
        ("branches", {"compound_id": "r", "branches": {"a": 1}}),
    ],
)
def test_names_that_no_call_can_have_are_refused_by_field(field: str, body: dict[str, object]) -> None:
    with pytest.raises(BadTags, match=f"^{field}: .*1 to 256 characters") as refused:
        release_of(body)
    assert refused.value.field == field


@given(st.lists(st.text(min_size=1, max_size=256), max_size=400))
def test_parts_hold_all_names_in_order_and_fit(names: list[str]) -> None:
    cut = list(parts(names))
    assert [name for part in cut for name in part] == names
    assert all(part and len(json.dumps(part)) < 64 * 1024 for part in cut)
