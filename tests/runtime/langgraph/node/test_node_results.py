"""How the journal keeps what a node returned, for a resume that has lost LangGraph's own record of it."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint

from ramify.runtime.langgraph.checkpointer.serializers import StrictSerializer, stored_json
from ramify.runtime.langgraph.node.node_results import packed_result, unpacked_result


@pytest.mark.parametrize(
    "serde", [JsonPlusSerializer(), JsonPlusSerializer(pickle_fallback=True), StrictSerializer()]
)
def test_a_final_stays_one_with_every_serialiser(serde: SerializerProtocol) -> None:
    final = entrypoint.final(value={"n": 1}, save=[2, 3])
    kind, packed = packed_result(serde, final)
    assert unpacked_result(serde, kind, packed) == final
    assert stored_json(kind, packed) == {"value": {"n": 1}, "save": [2, 3]}


def test_results_of_earlier_versions_are_read() -> None:
    serde = JsonPlusSerializer()
    assert unpacked_result(serde, *serde.dumps_typed({"n": 1})) == {"n": 1}
