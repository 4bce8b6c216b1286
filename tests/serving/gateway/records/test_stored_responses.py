from __future__ import annotations

from typing import Any

import pytest

from ramify.serving.gateway.errors import ApiError
from ramify.serving.gateway.records.stored_responses import StoredResponses


@pytest.mark.parametrize("said", ["resp_b", "resp_A", "", " resp_a", "resp_a\0", ["resp_a"], {"id": "resp_a"}, 1])
def test_a_client_goes_on_with_its_own_responses_only(said: Any) -> None:
    stored = StoredResponses()
    stored.remember("a", "resp_a")
    stored.remember("b", "resp_b")
    stored.check({"previous_response_id": "resp_a"}, "a")
    stored.check({"previous_response_id": None}, "a")
    with pytest.raises(ApiError) as refused:
        stored.check({"previous_response_id": said}, "a")
    assert (refused.value.status, refused.value.code) == (400, "previous_response_not_found")
    assert refused.value.param == "previous_response_id"
    stored.check({"previous_response_id": said}, "")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"}]}, "input"),
    ],
)
def test_what_an_engine_stores_under_other_names_is_refused_among_clients(body: dict[str, Any], param: str) -> None:
    StoredResponses().check(body, "")
    with pytest.raises(ApiError) as refused:
        StoredResponses().check(body, "a")
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_client_with_many_responses_does_not_crowd_out_another() -> None:
    stored = StoredResponses(3)
    stored.remember("a", "one")
    for number in range(9):
        stored.remember("b", f"{number}")
    stored.check({"previous_response_id": "one"}, "a")
    stored.remember("a", "x" * 300)
    with pytest.raises(ApiError):
        stored.check({"previous_response_id": "x" * 300}, "a")
